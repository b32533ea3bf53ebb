"""What people read is plain English: no phrase of the old dialect, no link that leads nowhere.

Scanned are the pages, the alerts and the dashboard, the help of commands, settings and metrics, and
every text in the daemon's code: log events, errors, reasons, remedies, docstrings and comments.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click
import pytest

from holdfast.cli import program
from holdfast.settings import schema
from holdfast.telemetry.metrics import Metrics

_ROOT = Path(__file__).parents[2]
_PAGES = [
    *_ROOT.glob("*.md"),
    *(_ROOT / "docs").glob("*.md"),
    *(_ROOT / "deploy").rglob("*.md"),
]
_DECISIONS = [*(_ROOT / "docs/decisions").glob("*.md")]  # records, in the words of their time
_HISTORY = {"CHANGELOG.md"}  # it quotes the words of former versions
_OTHERS = [
    *(_ROOT / "deploy").glob("*/*.yaml"),
    *(_ROOT / "deploy").glob("*/*.json"),
    *(_ROOT / "deploy").glob("*/*.service"),
    *(_ROOT / "deploy/helm/holdfast").rglob("*.txt"),
    _ROOT / "deploy/helm/holdfast/values.yaml",
    _ROOT / "Makefile",
]
_DIALECT = (
    "for ever",
    "whom",
    "besides",
    "by now",
    "of ours",
    "told of",
    "nobody's",
    "anew",
    "mend",
    "mends",
    "guilty",
    "in truth",
)
_FOUND = re.compile(rf"\b({'|'.join(_DIALECT)})\b", re.IGNORECASE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MOST_WORDS = 20


def _named(paths: Iterable[Path]) -> list[str]:
    return [str(path.relative_to(_ROOT)) for path in sorted(paths) if path.name not in _HISTORY]


def _help() -> Iterator[str]:
    context = click.Context(program)
    found = (program.get_command(context, name) for name in program.list_commands(context))
    for command in (program, *filter(None, found)):
        yield command.help or ""
        for option in command.params:
            yield (isinstance(option, click.Option) and option.help) or ""


def _metrics() -> Iterator[str]:
    for family in Metrics().registry.collect():
        yield family.documentation


def _texts(source: str) -> Iterator[str]:
    """Yield every text and docstring in *source*, and the comments that may have a phrase."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant):
            yield " ".join(str(node.value).split())
    if _FOUND.search(source) is None:  # so no comment has a phrase: to look for them takes long
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


_CODE = _named(
    file
    for folder in (
        _ROOT / "daemon/holdfast",
        _ROOT / "deploy/kubectl-holdfast",
        _ROOT / "deploy/helm/holdfast/files",
    )
    for file in folder.rglob("*.py")
    if "_pb" not in file.parts
)
_HELP: Mapping[str, Callable[[], str]] = {
    "the help of the commands": lambda: "\n".join(_help()),
    "the help of the metrics": lambda: "\n".join(_metrics()),
    "the settings": lambda: json.dumps(schema()),
}
_ALL = [*_named(_PAGES), *_named(_OTHERS), *_CODE, *_HELP]


def _read(name: str) -> str:
    """Return what people read of a page, a file or a text of the daemon's, by its name in `_ALL`."""
    if name in _HELP:
        return _HELP[name]()
    text = (_ROOT / name).read_text("utf-8")
    if name.endswith(".py"):
        return "\n".join(_texts(text))
    return re.sub(r"`[^`]*`", "", text) if name.endswith(".md") else text


def test_there_is_much_to_read() -> None:
    assert len(_ALL) > 200
    for name in ("README.md", "docs/operations.md", "deploy/alerts/holdfast.yaml", "the settings"):
        assert len(_read(name)) > 1000
    assert "devices not free yet" in _read("daemon/holdfast/reclaim/watcher.py"), "log events"
    assert "ends the drain" in _read("README.md")
    assert "readiness check" in _read("the help of the commands")


@pytest.mark.parametrize("name", _ALL)
def test_it_is_written_in_plain_english(name: str) -> None:
    assert sorted(set(_FOUND.findall(_read(name)))) == []


def test_a_phrase_of_the_dialect_is_found() -> None:
    texts = _texts('def f() -> str:\n    """By\n    now."""\n    return "for whom"  # anew\n')

    assert [_FOUND.findall(text) for text in texts] == [["By now"], ["whom"], ["anew"]]


def _anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, by the rule of GitHub."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("name", _named([*_PAGES, *_DECISIONS]))
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    page = _ROOT / name
    for link in _LINK.findall(page.read_text("utf-8")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target.read_text("utf-8")), link


def test_the_glossary_is_short_and_its_words_are_used() -> None:
    glossary = (_ROOT / "docs/architecture.md").read_text("utf-8").partition("## Glossary\n")[2]
    words = re.findall(r"^\| ([\w ]+) \| .+ \|$", glossary, re.MULTILINE)[1:]
    pages = "\n".join(_read(name) for name in _named(_PAGES)).replace(glossary, "")

    assert 0 < len(words) <= _MOST_WORDS
    assert words == sorted(words, key=str.lower)
    assert [word for word in words if word.lower() not in pages.lower()] == []
