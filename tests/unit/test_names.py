"""A name says what the thing is: each class has one, which is a noun, and few modules share one."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FILES = [
    file
    for folder in ("daemon/holdfast", "deploy/kubectl-holdfast")
    for file in sorted((_ROOT / folder).rglob("*.py"))
    if "_pb" not in file.parts and not file.is_symlink()
]
_MOST_MODULES = 3
_OF_EACH_PACKAGE = {"__init__", "__main__", "adapter"}

_PARTICIPLES = re.compile(
    r".*(ed|ings?)|begun|done|given|gone|held|hidden|kept|known|left|lost|made|read|said|seen|sent"
    r"|shown|thrown|told|written|asks|did|does|has|leave|leaves|other|says",
    re.IGNORECASE,
)
"""Participles and verbs as the last word of a name."""
_WORD = re.compile(r"[A-Z][a-z0-9]*")
_NOUNS = {
    "Binding": "a driver's to a function, in the words of Linux",
    "Ending": "an end, and what comes of it",
    "Finding": "what the doctor finds",
    "Holding": "what a pod or claim has",
    "Listing": "what a driver lists",
    "Mapping": "a memory mapping of Linux",
    "Need": "what a key needs; no participle",
    "Offering": "what is offered to kubelet",
    "Reading": "a value that was read off",
    "Setting": "a value that a person sets",
    "Sharing": "the section `sharing` of NVIDIA's plugin",
    "Sighting": "one time that something was seen",
    "Slicing": "time-slicing, in the words of NVIDIA's plugin",
    "Standing": "of a device: see `model.book.standing`",
    "Watched": "a value that others watch: see STYLE.md",
}
"""Last words of names that look like participles, and are nouns or terms."""


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements below *node*; of expressions, in which no class is, none is visited."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case):
            yield each
            yield from _statements(each)


@cache
def _classes() -> Sequence[tuple[str, str]]:
    return [
        (node.name, str(file.relative_to(_ROOT)))
        for file in _FILES
        for node in _statements(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def _last_word(name: str) -> str:
    last: str = _WORD.findall(name)[-1]
    return one if (one := last.removesuffix("s")) in _NOUNS else last


def _is_no_noun(name: str) -> bool:
    last = _last_word(name)
    return last not in _NOUNS and _PARTICIPLES.fullmatch(last) is not None


def test_there_are_classes() -> None:
    assert len(_classes()) > 500


def test_no_two_classes_have_the_same_name() -> None:
    times = Counter(name for name, _ in _classes())
    assert [(name, where) for name, where in _classes() if times[name] > 1] == []


def test_a_class_is_called_by_a_noun() -> None:
    assert [(name, where) for name, where in _classes() if _is_no_noun(name)] == []


def test_a_participle_or_verb_is_found() -> None:
    assert all(map(_is_no_noun, ("Told", "_Kept", "Preparing", "GpuSeen", "_Says", "Did")))
    assert not any(map(_is_no_noun, ("Settings", "Standings", "_Claim", "GpuReading")))


def test_each_exception_is_needed() -> None:
    assert set(_NOUNS) == {_last_word(name) for name, _ in _classes()} & set(_NOUNS)


def test_few_modules_share_a_name() -> None:
    times = Counter(file.stem for file in _FILES)
    often = {name for name, count in times.items() if count > _MOST_MODULES}
    assert sorted(often - _OF_EACH_PACKAGE) == []
