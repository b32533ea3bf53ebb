"""Values in groups, by something that they have in common."""

from collections.abc import Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, tuple[_Value, ...]]:
    """Return the values of each key, the keys and the values in the order in which they come.

    >>> grouped((len(word), word) for word in ("to", "be", "or", "not"))
    {2: ('to', 'be', 'or'), 3: ('not',)}
    """
    found: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}
