"""What is remembered of things that come and go, such as pods, and is dropped with them."""

from collections.abc import Iterable
from typing import Any


def keep_only(those: Iterable[object], *known: dict[Any, Any]) -> None:
    """Drop from each of *known* what is remembered of others than *those*."""
    for each in known:
        for gone in each.keys() - those:
            del each[gone]
