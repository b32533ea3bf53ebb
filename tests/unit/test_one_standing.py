"""Whether a device may be given, and why not, is derived in one place: see `model.book.standing`."""

import ast
from collections.abc import Iterator
from pathlib import Path

_DAEMON = Path(__file__).parents[2] / "daemon/holdfast"
_QUESTIONS = frozenset(
    {"are_locked", "lock_on", "locks_on", "why_withheld", "quarantines_on", "belongs_to"}
)
"""What a standing is made of. Whoever asks one of these has begun to write a second truth."""
_DECIDES = {
    "model/book/": "moves locks within a commit, and makes the standings",
    "model/gate/": "decides within the commit of a start",
    "model/dra/passage.py": "decides within the commit of a claim",
    "model/dra/handover.py": "picks a share within the commit of a claim",
}
"""Where they may be asked: the rules of what is being committed, which is published later."""


def _asked() -> Iterator[tuple[str, str]]:
    for file in sorted(_DAEMON.rglob("*.py")):
        name, text = str(file.relative_to(_DAEMON)), file.read_text("utf-8")
        if name.startswith("_pb/") or not any(each in text for each in _QUESTIONS):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in _QUESTIONS:
                yield name, called.attr
            if isinstance(called, ast.Name) and called.id in _QUESTIONS:
                yield name, called.id


def test_only_rules_within_a_commit_ask_what_standings_are_made_of() -> None:
    strays = [each for each in _asked() if not each[0].startswith(tuple(_DECIDES))]
    assert strays == []


def test_each_exception_is_needed() -> None:
    asked = {name for name, _ in _asked()}
    unused = [each for each in _DECIDES if not any(name.startswith(each) for name in asked)]
    assert unused == []
