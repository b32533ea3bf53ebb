"""Text of others: how people are shown it, lists, sizes and history; numbers and patterns in it."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

MOST_SHOWN = 8000
"""Characters; more of one text is nothing that a person reads."""

MOST_MOVES = 2000
"""How many lines of history one answer has at the most: all at once are in the daemon's memory."""

_MOST_DIGITS = 4300
_LARGER = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def printable(text: str, most: int = MOST_SHOWN) -> str:
    r"""Return the first *most* characters of *text*, with escapes for those that do not print.

    What is left cannot begin a line, move a cursor, change the direction of reading or fail to be
    encoded: control and format characters, separators other than a space, and halves of surrogate
    pairs (bytes that are no UTF-8) become what Python writes for them, such as ``\x1b``.
    """
    rest = len(text) - most
    shown = "".join(each if each.isprintable() else _escaped(each) for each in text[:most])
    return shown if rest <= 0 else f"{shown}... ({rest} more characters)"


def some(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """Return *names* as a list in a text, the first *most* of them.

    >>> some(("a", "b", "c"), 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def sized(count: int) -> str:
    """Return *count* bytes for people."""
    name, size = next((each for each in _LARGER if count >= each[1]), ("B", 1))
    return f"{count / size:.1f} {name}" if size > 1 else f"{count} B"


def is_number(text: str) -> bool:
    """Tell whether *text* is digits of ASCII, and nothing else, and no more than Python reads."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def like(text: str, pattern: str) -> bool:
    """Tell whether *text* is like *pattern*, in which ``*`` and ``?`` alone stand for others.

    Upper and lower case are the same.

    >>> like("Model [SXM]", "model [s*]")
    True
    """
    return fnmatchcase(text.lower(), pattern.lower().replace("[", "[[]"))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
