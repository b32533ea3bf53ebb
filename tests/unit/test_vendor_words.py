"""The core speaks of hardware in its own words: what a vendor calls it stays in the vendor's code."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[2]
_CONTRACT = "The core knows no vendor, not even through others"
_PACKAGE = _REPOSITORY / "daemon/holdfast"
_OF_ALL = {"vfio"}
"""Adapters whose word is one of the kernel's, for hardware of any vendor."""


def _contract() -> dict[str, Any]:
    settings = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    contract: dict[str, Any]
    (contract,) = [each for each in contracts if each["name"] == _CONTRACT]
    return contract


def _vendors() -> set[str]:
    return {init.parent.name for init in _PACKAGE.glob("vendors/*/__init__.py")} - _OF_ALL


_WORDS = re.compile(
    "|".join(
        (
            r"nvidia|gpu|\bmig\b|\bxid|\btpu|google|::|\.shared\b",
            *(rf"\b{each}" for each in sorted(_vendors())),
        )
    ),
    re.IGNORECASE,
)
"""Words of the vendors; the name of each package of theirs is one."""


def _core() -> Iterator[Path]:
    """Yield the files of the rooms that import no vendor."""
    for room in _contract()["source_modules"]:
        path = _REPOSITORY / "daemon" / room.replace(".", "/")
        yield from path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each text that the code uses, without those that only describe it."""
    described = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for node in constants:
        if isinstance(node.value, str) and id(node) not in described:
            yield node.lineno, node.value


def test_the_core_may_import_no_package_of_any_vendor() -> None:
    theirs = {
        f"holdfast.{room}.{vendor}"
        for vendor in _vendors()
        for room in ("host", "model")
        if (_PACKAGE / room / vendor).is_dir()
    }
    assert len(_vendors()) > 1
    assert theirs <= set(_contract()["forbidden_modules"]), (
        f"add it to {_CONTRACT!r}, pyproject.toml"
    )


def test_no_text_of_the_core_has_a_vendors_word() -> None:
    found = [
        f"{file.relative_to(_REPOSITORY)}:{line}: {text}"
        for file in _core()
        for line, text in _texts(ast.parse(file.read_text("utf-8")))
        if _WORDS.search(text)
    ]
    assert not found


def test_a_vendors_word_would_be_found() -> None:
    (text,) = _texts(ast.parse('"""Of a GPU."""\nKEY = "gpu/GPU-1"\n'))
    assert text == (2, "gpu/GPU-1")
    for word in ("gpu/", "mig/", "G::0", "a.b/c.shared", "nvidia.com/gpu", "xid", "google.com/tpu"):
        assert _WORDS.search(word)
