"""Whatever a node's GPUs went through, all that tell of them say the same, as after a restart.

NVML is the stub in this process; the parts are those of the daemon, on a clock that a test moves.
"""

import asyncio
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from fakes.gpustage import GPU, sharing
from fakes.gpuworld import COUNT, GAUGES, SOON, STEPS, VERSIONS, GpuWorld, told_by
from fakes.nvml import build
from holdfast.app.wiring.assembly import Assembly
from holdfast.doctor.finding import Level, Node
from holdfast.doctor.nvidia.checks import nvidia_findings
from holdfast.model.cards import clash
from holdfast.model.devices import Device, FaultKind
from holdfast.model.nvidia import REPLICAS
from holdfast.settings import convert
from simulated.nvml import Card, uuid

_DEBUG = "example.com/debug"
_STEPS = (*STEPS, "granted", "granted", "over", "daemon", "settings")
_PLAIN = {
    "migStrategy": "mixed",
    "deviceIdStrategy": "uuid",
    "deviceListStrategy": ["envvar"],
    "api": "device-plugin",
    "replicas": 0,
    "match": {},
    "then": {"exclude": True},
}
_settings = st.fixed_dictionaries(
    {
        "migStrategy": st.sampled_from(["none", "single", "mixed"]),
        "deviceIdStrategy": st.sampled_from(["uuid", "index"]),
        "deviceListStrategy": st.sampled_from([["envvar"], ["cdi-cri"]]),
        "api": st.sampled_from(["device-plugin", "dra"]),
        "replicas": st.sampled_from([0, 0, 2]),
        # Not by index: a GPU that is lost has none after a restart.
        "match": st.sampled_from([{}, {}, {"uuid": uuid(0)}, {"pci": "*:12:*"}]),
        "then": st.sampled_from([{"exclude": True}, {"resource": _DEBUG}, {"ignoreHealth": True}]),
    }
)


def _sections(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of the settings for what was *chosen* of `_settings`."""
    others = ("replicas", "match", "then")
    then = dict(chosen["then"]) | ({"api": chosen["api"]} if "resource" in chosen["then"] else {})
    return {
        "gpu": {name: each for name, each in chosen.items() if name not in others},
        "sharing": sharing(chosen["replicas"], renameByDefault="api" in chosen["api"]),
        "devices": [{"match": chosen["match"], **then}] if chosen["match"] else [],
    }


def _differ(old: Mapping[str, Any], new: Mapping[str, Any], world: GpuWorld) -> list[str]:
    """Return what a daemon that saw it all tells otherwise than one that starts now.

    What NVML does not tell now, such as how a GPU is divided, only the first one knows. That it
    then knows is no less.
    """
    if world.tells_all and world.loaded:
        return [f"{view}: {old[view]} != {new[view]}" for view in old if old[view] != new[view]]
    before, after = old["devices"], new["devices"]
    known, seen = (
        {uuid for each in of.values() for uuid in each.identity.uuids[-1:]}
        for of in (before, after)
    )
    known |= {card.uuid for card in world.cards if card.mig}
    both = before.keys() & after.keys()
    return [
        *(f"{uuid} is forgotten" for uuid in seen - known),
        *(
            f"{name} is healthy to one alone"
            for name in both
            if before[name].healthy is not after[name].healthy
        ),
    ]


def _wrong(world: GpuWorld, sections: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of *told* contradicts the rest of it, the doctor, or the node."""
    devices: Mapping[str, Device] = told["devices"]
    for name, device in devices.items():
        row = told["rows"][name]
        if (row["health"] == "Healthy") is not device.healthy:
            yield f"{name} is {row['health']}: {device.faults}"
        listed = {each.id: each for each in told["lists"].get(device.name.resource, ())}
        line = listed.get(device.name.id)
        if line is not None and ((line.healthy and row["faults"]) or line.numa_node != row["numa"]):
            yield f"kubelet is told {line}, people {row}"
    unhealthy = Counter(each.name.resource for each in devices.values() if each.faults)
    for (what, *labels), value in told["gauges"].items():
        if what == GAUGES[1] and value != unhealthy[labels[0]]:
            yield f"{value} of {labels} are unhealthy to the metrics, {unhealthy} to people"
    yield from _exclusion(world, devices.values())
    if world.loaded:
        yield from _as_it_is(world, sections, told)


def _exclusion(world: GpuWorld, devices: Any) -> Iterator[str]:
    """Yield which devices of one card may be had together, or of two cards may not."""
    for one, other in combinations(devices, 2):
        ids = [REPLICAS.parted(each.name.id) for each in (one, other)]
        beside = ids[0][0] != ids[1][0] and all(id_.startswith("MIG-") for id_, _ in ids)
        replicas = ids[0][0] == ids[1][0] and all(number for _, number in ids)
        same = not set(one.addresses).isdisjoint(other.addresses)
        # Slices that were made while a pod has the whole GPU exclude each other as that does.
        beside = beside and (one.keys & other.keys).isdisjoint(world.held)
        if one.name.id != other.name.id and clash(one.keys, other.keys, world.places) is not (
            same and not (beside or replicas)
        ):
            yield f"{one.name} and {other.name}: {one.keys} and {other.keys}"


def _as_it_is(
    world: GpuWorld, sections: Mapping[str, Any], told: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is not as the node has it, of each GPU that tells all."""
    gpu = sections["gpu"]
    node = Node(settings=convert(sections), root=world.folder / "n")
    wrong = [each.reason for each in nvidia_findings(node) if each.level is not Level.OK]
    for number, card in enumerate(world.cards):
        mine = [each for each in told["devices"].values() if card.uuid in each.identity.uuids]
        if any(each.numa_node != number % 2 for each in mine):
            yield f"{card.uuid} is elsewhere: {mine}"
        if card not in world.listed or card.errors:
            if any(each.healthy for each in mine):
                yield f"{card} does not answer, and is healthy"
            continue
        yield from _on_list(gpu, card, mine, told)
        nodeless = any(f"/nvidia{number} " in each or f"/nvidia{number}," in each for each in wrong)
        for each in mine:
            if any(f.kind is FaultKind.NO_NODE for f in each.faults) is not nodeless:
                yield f"{each.name} has {each.faults}, and the doctor says {wrong}"
            yield from _given(world, gpu, card, each, told["grants"][str(each.name)])
    if world.tells_all and gpu["migStrategy"] != "single" and not told["left out"]:
        labels = told["labels"]
        count = int(labels.get(f"{GPU}.count", 0))
        if count != len(world.listed):
            yield f"{count} GPUs by the labels, {len(world.listed)} by NVML"


def _on_list(
    gpu: Mapping[str, Any], card: Card, mine: list[Device], told: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what of a GPU that tells all is missing from the lists."""
    known = {REPLICAS.parted(each.name.id)[0] for each in mine}
    if gpu["migStrategy"] == "none" or not card.mig:
        wanted = {card.uuid}
    else:
        wanted = {each.uuid for each in card.slices if each.slices[0] == each.slices[1]}
    left = {name.rpartition("/")[2].partition("::")[0] for name in told["left out"]}
    if gpu["migStrategy"] != "single" and not wanted <= known | left:
        yield f"{wanted} are not advertised: {known}"


def _given(
    world: GpuWorld, gpu: Mapping[str, Any], card: Card, each: Device, answer: Any
) -> Iterator[str]:
    """Yield what is wrong with a device of a GPU that tells all, and with what a container gets."""
    names = {
        f"{spec['kind']}={each['name']}"
        for file in (world.folder / "cdi").glob("*.json")
        for spec in [json.loads(file.read_text())]
        for each in spec["devices"]
    }
    pieces = [piece.uuid for piece in card.slices]
    id_ = REPLICAS.parted(each.name.id)[0]
    index = str(world.listed.index(card))
    if id_ in pieces:
        index += f":{pieces.index(id_)}"
    nodes, envs, cdi = answer
    if card.remap == (1, 0) and each.healthy and not each.own.ignore_health:
        yield f"{each.name} waits for a reset, and is healthy"
    if each.identity.indexes[0] != index:
        yield f"{each.name} is not {index}: {each}"
    call = id_ if gpu["deviceIdStrategy"] == "uuid" else index
    if envs.get("NVIDIA_VISIBLE_DEVICES", call) != call or not {*cdi} <= {
        f"k8s.device-plugin.nvidia.com/gpu={call}"
    }:
        yield f"{each.name} is called {call}, and given as {envs}, {cdi}"
    if each.healthy and not ({*cdi} <= names and all(map(world.is_there, nodes))):
        yield f"{each.name} is given {nodes}, {cdi}, and not all of it is there: {names}"


async def _story(folder: Path, root: Path, first: Mapping[str, Any], story: Any) -> None:
    world, sections = GpuWorld(folder, root), _sections(first)
    async with AsyncExitStack() as stack:
        stack.callback(world.node.close)
        state = folder / "state"
        state.mkdir()
        running = await stack.enter_async_context(AsyncExitStack())
        parts = await running.enter_async_context(world.daemon(state, sections))
        for number, what, others in story:
            if what in {"daemon", "settings"}:
                await running.aclose()
                sections = _sections(others) if what == "settings" else sections
                parts = await running.enter_async_context(world.daemon(state, sections))
            elif what == "granted":
                await world.grant(parts, number)
            elif what == "over":
                await world.end(parts)
            else:
                world.change(number, what)
            await world.pass_by(SOON)  # all daemons here have one library, which it begins first
            await _compared(world, parts, sections, state)


async def _compared(
    world: GpuWorld, parts: Assembly, sections: Mapping[str, Any], state: Path
) -> None:
    """Return once all tell the same and nothing is wrong; raise AssertionError if that never is."""
    problems: list[str] = []
    copy = Path(shutil.copytree(state, world.folder / f"state-{world.made}-{id(problems)}"))
    async with world.daemon(copy, sections) as new:
        for _ in range(40):
            await world.pass_by(SOON)
            told, again = await told_by(parts), await told_by(new)
            problems = _differ(told, again, world)
            for by, what in ((parts, told), (new, again)):
                world.knows(by.core.ledger.book.value)
                problems += _wrong(world, sections, what)
            if not problems:
                return
    raise AssertionError("\n".join(problems))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of a file system with the libraries of both versions of the driver."""
    root = tmp_path_factory.mktemp("driver")
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    build(folder)
    for version in VERSIONS:
        (folder / f"libcuda.so.{version}").touch()
    return root


@pytest.mark.usefixtures("quiet")
@settings(
    deadline=None,
    max_examples=8,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@example(
    {**_PLAIN, "migStrategy": "none"},
    [(1, "hidden", _PLAIN), (0, "nameless", _PLAIN), (0, "answers", _PLAIN), (1, "daemon", _PLAIN)],
)
@given(
    _settings,
    st.lists(
        st.tuples(st.integers(0, COUNT - 1), st.sampled_from(_STEPS), _settings),
        min_size=4,
        max_size=10,
    ),
)
def test_all_that_tell_of_a_gpu_say_the_same_whatever_it_went_through(
    root: Path, first: Mapping[str, Any], story: Any
) -> None:
    """Lists, answers, specs, slices, labels, commands, metrics, the doctor, and a new daemon."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    try:
        asyncio.run(_story(folder, root, first, story))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
