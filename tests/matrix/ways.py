"""Holds the ways to give settings against one file with all of them.

Nothing is started. A value stands in the file, in the document that the node's label names, in a
variable or in a flag, some of them NVIDIA's. What wins is in docs/configuration.md and
docs/nvidia.md.
"""

import random
import tempfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from fakes.refusedsettings import REFUSED, TAKEN, tree
from holdfast.cli.nvidia import given
from holdfast.cli.run import run
from holdfast.errors import SettingsError
from holdfast.settings import Settings, known_paths, variable
from holdfast.settings.nvidia_plugin import VARIABLES, flags
from holdfast.settings.reloading import TakeUp, changed, take_up
from holdfast.settings.sources import SettingsSources
from matrix import drawn
from matrix.oracle import ViolationError

_WAYS = ("file", "document", "theirs", "their flag", "variable", "flag")
"""Each wins over those before it."""
_NAMED = "named"
_Given = dict[str, dict[str, Any]]
"""What each way gives: values by path, but texts by name where it has names of its own."""


def judge(chance: random.Random) -> None:
    """Raise ViolationError where settings given in any ways are not those of the file alone."""
    values = _values(chance)
    spread = by_ways(values, chance)
    with tempfile.TemporaryDirectory(prefix="hm-") as name:
        folder = Path(name)
        alone = _said(folder, {"file": values})
        said = _said(folder, spread)
    if said != alone:
        differs = (
            (said, alone)
            if isinstance(said, str) or isinstance(alone, str)
            else changed(alone, said)
        )
        told = {way: each for way, each in spread.items() if each}
        raise ViolationError(
            f"ways: {told}: {differs} (wherever a value stands, it is as in one file)"
        )


def _values(chance: random.Random) -> dict[str, Any]:
    """Return some values by path; by chance they are refused."""
    paths = [path for path in known_paths() if not path.startswith(f"{_NAMED}.")]
    values = {path: drawn.any_value(path, chance) for path in chance.sample(paths, 12)}
    rows = [*(row for row, _ in REFUSED), *TAKEN]
    return values | (chance.choice(rows) if chance.random() < 0.5 else {})


def by_ways(values: Mapping[str, Any], chance: random.Random) -> _Given:
    """Return *values* as some ways give them, some of them over other values that do not count."""
    found: _Given = {way: {} for way in _WAYS}
    for path, value in values.items():
        ways = _possible(path, values, chance)
        last = chance.choice(list(ways)) if _is_text(value) else "file"
        for way in _WAYS[: _WAYS.index(last) + 1]:
            if way == last:
                found[way] |= ways[way](value)
            elif way in ways and chance.random() < 0.3:
                other = drawn.any_value(path, chance)
                found[way] |= ways[way](other) if _is_text(other) else {}
    return found


def variables(given: _Given) -> dict[str, str]:
    """Return the environment that *given* has."""
    return {**given.get("theirs", {}), **given.get("variable", {})}


def arguments(given: _Given) -> list[str]:
    """Return the flags that *given* has."""
    own = [f"--set={path}={text}" for path, text in given.get("flag", {}).items()]
    return own + [f"--{name}={text}" for name, text in given.get("their flag", {}).items()]


def _possible(
    path: str, values: Mapping[str, Any], chance: random.Random
) -> dict[str, Callable[[Any], dict[str, Any]]]:
    """Return by which ways the key at *path* can be given, and what each has of a value."""

    def called(name: str) -> Callable[[Any], dict[str, Any]]:
        return lambda value: {name: _text(value, chance)}

    found: dict[str, Callable[[Any], dict[str, Any]]] = {"file": lambda value: {path: value}}
    if take_up(path) is not TakeUp.POD:
        found["document"] = found["file"]
    # Alone it says where the host has the driver, too (docs/nvidia.md).
    alone = path == "gpu.driverRoot" and not values.get("gpu.driverRootOnHost")
    if theirs := [name for name, key in VARIABLES.items() if key == path and not alone]:
        name = chance.choice(theirs)
        found["theirs"] = called(name)
        if (flag := name.lower().replace("_", "-")) in flags():
            found["their flag"] = called(flag)
    return found | {"variable": called(variable(path)), "flag": called(path)}


def _is_text(value: Any) -> bool:
    """Tell whether a variable or a flag can have *value*: NUL ends both."""
    return "\\x00" not in repr(value)


def _text(value: Any, chance: random.Random) -> str:
    """Return what says *value* outside of files: text itself, entries with commas, or YAML."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):  # text has no exponent
        return format(Decimal(repr(value)), "f")
    if isinstance(value, list) and chance.random() < 0.5:
        joined = ",".join(map(str, value))
        parts = [part for each in joined.split(",") if (part := each.strip())]
        if parts == [str(each) for each in value] and not joined.startswith(("[", "{")):
            return joined
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 30)
    return text.removesuffix("...\n").strip()


def _said(folder: Path, spread: _Given) -> Settings | str:
    """Return the settings that the ways of *spread* give, or why they are refused."""
    document = folder / _NAMED / "mine"
    document.parent.mkdir(exist_ok=True)
    document.write_text(yaml.safe_dump(tree(spread.get("document", {}))))
    named = {"folder": str(document.parent), "labels": ["example.com/of-its-own"]}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({**tree(spread["file"]), _NAMED: named}))
    with run.make_context("run", ["--config", str(file), *arguments(spread)]) as context:
        overrides, theirs = context.params["changes"], given()
    try:
        return (
            SettingsSources(file, variables(spread), overrides, theirs=theirs)
            .found("mine")
            .settings
        )
    except SettingsError as error:
        return str(error).removesuffix(f" (with the document {document})")
