"""Values in groups, by something that they have in common."""

from collections.abc import Hashable, Iterable
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


def tied(things: Iterable[tuple[_Value, Iterable[Hashable]]]) -> list[list[_Value]]:
    """Split *things*, each with its ties, into those that share one, directly or through others.

    Those of one list come in any order.

    >>> tied([("a", {1}), ("b", {2}), ("c", {1, 3})])
    [['b'], ['c', 'a']]
    """
    sets: dict[int, tuple[set[Hashable], list[_Value]]] = {}
    set_of: dict[Hashable, int] = {}
    for number, (thing, own) in enumerate(things):
        ties, joined = set(own), [thing]
        for other in {set_of[tie] for tie in ties if tie in set_of}:
            others, members = sets.pop(other)
            ties |= others
            joined += members
        sets[number] = ties, joined
        set_of.update(dict.fromkeys(ties, number))
    return [members for _, members in sets.values()]
