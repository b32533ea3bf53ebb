"""The changes that change nothing, each with the reason, from equivalent.toml beside this file."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from mutants.change import Change

FILE = Path(__file__).with_name("equivalent.toml")

Name = tuple[str, str, str, str]


def equivalents(text: str) -> dict[Name, str]:
    """Return the reason of each change that *text*, a TOML document, calls equivalent."""
    found: dict[Name, str] = {}
    for entry in tomllib.loads(text).get("change", ()):
        name = (entry["file"], entry["function"], entry["was"], entry["becomes"])
        if name in found:
            raise ValueError(f"{name} stands there twice")
        if not entry["why"].strip():
            raise ValueError(f"{name} has no reason")
        found[name] = entry["why"]
    return found


def stale(known: Iterable[Name], changes: Iterable[Change]) -> list[Name]:
    """Return the names in *known* that none of *changes* has."""
    names = {change.name for change in changes}
    return [name for name in known if name not in names]
