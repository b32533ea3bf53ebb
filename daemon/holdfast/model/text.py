"""How text of others (a command, a pod, a file, an error of another program) is shown to people."""

MOST_SHOWN = 8000
"""Characters; more of one text is nothing that a person reads."""


def printable(text: str, most: int = MOST_SHOWN) -> str:
    r"""Return the first *most* characters of *text*, with escapes for those that do not print.

    What is left cannot begin a line, move a cursor, change the direction of reading or fail to be
    encoded: control and format characters, separators other than a space, and halves of surrogate
    pairs (bytes that are no UTF-8) become what Python writes for them, such as ``\x1b``.
    """
    rest = len(text) - most
    shown = "".join(each if each.isprintable() else _escaped(each) for each in text[:most])
    return shown if rest <= 0 else f"{shown}... ({rest} more characters)"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
