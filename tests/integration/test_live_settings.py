"""What the table says is taken up live is: no part keeps a value of the settings before."""

import functools
import inspect
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from holdfast.app.wiring.assembly import Assembly
from holdfast.app.wiring.core import Core
from holdfast.app.wiring.hosts import Hosts
from holdfast.app.wiring.live import LiveSettings
from holdfast.app.wiring.parts import VENDORS
from holdfast.ledger.ledger import open_ledger
from holdfast.settings import Settings, convert, known_paths, plain
from holdfast.settings.reloading import TakeUp, take_up
from holdfast.settings.sources import LoadedSettings
from holdfast.settings.types import Section
from holdfast.telemetry.metrics import Metrics
from manual_clock import ManualClock
from simulated.node import SimulatedNode

_LIVE = [path for path in known_paths() if take_up(path) is TakeUp.LIVE]
_OTHERWISE: Mapping[str, object] = {
    "devices": [{"resource": "example.com/x", "api": "dra", "match": {"index": 0}}],
    "gpu.disableHealthChecks": "79",
    "gpu.enableHealthChecks": "79",
    "labels.folder": "/srv/features.d",
    "labels.enabled": True,
}
"""Another value of keys for which none can be made up."""

_BY_CHANCE = re.compile(
    r"latency$|\.version$|\._place\._left|\.gauges\._started$|\.store\._(seal\._fd|back\._index)$"
)
"""What differs between two starts whatever their settings are, or counts changes."""


def _another(path: str) -> object:
    """Return another value than the default of the key at *path*."""
    kind: Any = known_paths()[path]
    value: Any = plain(Settings())
    for name in path.split("."):
        value = value[name]
    if path in _OTHERWISE:
        return _OTHERWISE[path]
    if get_origin(kind) is Literal:
        return next(each for each in get_args(kind) if each != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return [*value, "another"]
    assert isinstance(value, int | float), path
    return value + 1


def _with(base: dict[str, Any], path: str, value: object) -> Settings:
    *parents, last = path.split(".")
    tree = changed = msgspec.json.decode(msgspec.json.encode(base))
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[last] = value
    return convert(changed)


@asynccontextmanager
async def _built(settings: Settings) -> AsyncIterator[Assembly]:
    """Yield the parts of a daemon that was started with *settings*."""
    host = Hosts(settings)
    clock = ManualClock()
    state = Path(settings.state_dir)
    state.mkdir(exist_ok=True)
    ledger = await open_ledger(state, host.lanes["ledger"], clock=clock, boot=host.boot, locks=())
    try:
        core = Core(LiveSettings(LoadedSettings(settings=settings)), host, ledger, clock, Metrics())
        yield Assembly(core, VENDORS)
    finally:
        await ledger.close()
        host.close()


def _held(start: object) -> dict[str, object]:
    """Return every plain value that *start* holds, by the way to it."""
    found: dict[str, object] = {}
    seen: set[int] = set()
    left: list[tuple[str, object]] = [("parts", start)]
    while left:
        path, each = left.pop()
        if isinstance(each, Settings):
            found[path] = _not_live(each)
        elif isinstance(each, Section | str | int | float | None):
            found[path] = each
        elif id(each) not in seen:
            seen.add(id(each))
            left += [(f"{path}{name}", below) for name, below in _below(each)]
    return found


def _below(each: Any) -> Iterator[tuple[str, object]]:
    """Yield what is reached from *each*: items, attributes, and what a function closes over."""
    if isinstance(each, Mapping):
        yield from ((f"[{key}]", below) for key, below in each.items())
    elif isinstance(each, list | tuple):
        yield from ((f"[{place}]", below) for place, below in enumerate(each))
    elif isinstance(each, functools.partial):
        yield from ((".func", each.func), (".args", each.args), (".keywords", each.keywords))
    elif inspect.ismethod(each):
        yield from ((".self", each.__self__), (".func", each.__func__))
    elif inspect.isfunction(each):
        names = each.__code__.co_freevars
        cells = each.__closure__ or ()
        yield from (
            (f".{name}", cell.cell_contents) for name, cell in zip(names, cells, strict=True)
        )
    elif isinstance(each, msgspec.Struct):
        yield from ((f".{name}", getattr(each, name)) for name in each.__struct_fields__)
    elif type(each).__module__.startswith("holdfast."):
        yield from ((f".{name}", below) for name, below in vars(each).items())


def _not_live(settings: Settings) -> dict[str, Any]:
    """Return what of *settings* only a restart changes: a part may hold on to that."""
    tree = plain(settings)
    for path in _LIVE:
        *parents, last = path.split(".")
        node = tree
        for name in parents:
            node = node[name]
        del node[last]
    return tree


@pytest.mark.parametrize("path", _LIVE)
async def test_no_part_keeps_the_former_value_of_a_live_key(
    path: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    node = SimulatedNode(short_path / "node", chips=1)
    (node.root.proc / "driver/nvidia").mkdir(parents=True)
    (short_path / "token").touch()
    names = ("sys", "proc", "dev", "cgroup", "etc", "run")
    (short_path / "dp").mkdir()
    base = {
        "stateDir": str(short_path / "state"),
        "host": {name: str(getattr(node.root, name)) for name in names},
        "kubelet": {"pluginDir": str(short_path / "dp")},
        "tpu": {"api": "dra"},
        "dra": {"serviceAccount": str(short_path)},
        "events": {"enabled": True},
    }
    before, after = convert(base), _with(base, path, _another(path))
    try:
        async with _built(before) as parts:
            parts.take_up(after)
            taken_up = _held(parts)
        # With another descriptor in use, none of the daemon's own is the same as before.
        with (short_path / "token").open("rb"):
            async with _built(after) as parts:
                begun = _held(parts)
    finally:
        node.close()
    assert after.gate in begun.values(), "the gate's own, by whatever way it was reached"
    assert {"parts.dra", "parts.events"}.isdisjoint(begun), "both doors and the Events are built"
    ignored = _BY_CHANCE.search
    assert {key: taken_up[key] for key in taken_up if not ignored(key)} == {
        key: begun[key] for key in begun if not ignored(key)
    }
