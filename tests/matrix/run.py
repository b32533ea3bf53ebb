"""Holds the real daemon against the oracle: one combination, or a change from one to another."""

import asyncio
import contextlib
import json
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from fakes.stage import Stage, WatchfulRuntime, asks
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from matrix import oracle, space
from matrix.space import Choice, Refused
from simulated import nvml
from simulated.gpus import NOT_LOADED, SimulatedGpus
from simulated.node import SimulatedNode
from simulated.pods import Container, Phase, Pod, PodSpec
from simulated.podworker import KubeletTimes
from simulated.stage import running

_TIMES = KubeletTimes(retry_first=0.1, retry=0.3, finished=0.1)
_VISIBLE, _MOUNTS = "NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices/"
_PCI = {"v2": 0x27, "v3": 0x27, "v4": 0x5E, "v5p": 0x62, "v5e": 0x63, "v6e": 0x6F, "tpu7x": 0x76}
_THEIRS: Mapping[str, tuple[str, ...]] = {
    "gpu.migStrategy": ("flags", "migStrategy"),
    "gpu.deviceListStrategy": ("flags", "plugin", "deviceListStrategy"),
    "gpu.deviceIdStrategy": ("flags", "plugin", "deviceIDStrategy"),
    "gpu.passDeviceSpecs": ("flags", "plugin", "passDeviceSpecs"),
    "sharing.timeSlicing.renameByDefault": ("sharing", "timeSlicing", "renameByDefault"),
    "sharing.timeSlicing.failRequestsGreaterThanOne": (
        "sharing",
        "timeSlicing",
        "failRequestsGreaterThanOne",
    ),
    "sharing.timeSlicing.resources": ("sharing", "timeSlicing", "resources"),
}
"""What a file of NVIDIA's format says, by our key."""


class ViolationError(AssertionError):
    """A promise was not kept: the step, what was expected, and by which promise."""


class _Runtime(WatchfulRuntime):
    """Follows NVIDIA's variable, mounts and annotations; who shares a GPU trespasses on nobody."""

    given: dict[str, set[str]]

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        for names in grant.annotations.values():
            for name in names.split(","):
                grant.cdi_devices.add(name=name)
        told = {*grant.envs.get(_VISIBLE, "").split(",")}
        told |= {each.container_path.removeprefix(_MOUNTS) for each in grant.mounts}
        self.given[pod.uid] = told | {each.name.partition("=")[2] for each in grant.cdi_devices}
        self.given[pod.uid] |= set(self.paths(grant))
        await super(WatchfulRuntime, self).start(pod, container, grant)


class World(Stage):
    """The node of a choice, its kubelet, and the daemon."""

    runtime: _Runtime
    gpus: SimulatedGpus
    limit = 40.0

    def adopt(self, choice: Choice) -> None:
        """Write the files that say what *choice* says."""
        made = space.tree(choice)
        theirs: dict[str, Any] = {"version": "v1"}
        for path, keys in _THEIRS.items() if choice["node.by"] == "nvidia" else ():
            if path.startswith("sharing.") and not choice["sharing.timeSlicing.resources"]:
                continue
            section = theirs
            for each in keys[:-1]:
                section = section.setdefault(each, {})
            section[keys[-1]] = choice[path]
        if choice["node.by"] == "nvidia":
            made.pop("sharing", None)
            for path in _THEIRS:
                if path.startswith("gpu."):
                    made["gpu"].pop(path.removeprefix("gpu."), None)
        _place(self.folder / "nvidia.yaml", theirs)
        if choice["node.root"] == "settings":
            made["gpu"]["driverRoot"] = str(self.folder / "driver")
        own = self.settings["kubelet"]
        keep = {key: own[key] for key in ("pluginDir", "podResourcesSocket")}
        fixed = {key: self.settings[key] for key in ("stateDir", "host", "http", "cdi")}
        made["labels"]["folder"] = str(self.folder / "features.d")
        self.settings = {**made, **fixed, "kubelet": {**made["kubelet"], **keep}}
        _place(self.config, self.settings)

    def show(self, choice: Choice) -> None:
        """Let NVML have the GPUs of *choice*, each divided as it says."""
        cards = nvml.cards(len(choice["node.gpus"]))
        cards = tuple(
            replace(card, mig=int(layout != ()), slices=tuple(_slices(place, layout)))
            for place, (card, layout) in enumerate(zip(cards, choice["node.gpus"], strict=True))
        )
        self.gpus.show(replace(self.gpus.stub, cards=cards))

    async def again(self) -> None:
        """End the daemon as a crash does, and start it; it has to come up."""
        self.kill()
        said = await refusal(self)
        if said is not None:
            raise ViolationError(f"restart: the daemon cannot start again: {said}")

    def answer(self, pod: Pod) -> set[str]:
        """Return what the container was given: names, indexes and paths."""
        return self.runtime.given.get(pod.uid, set())


def _place(file: Path, content: Mapping[str, Any]) -> None:
    draft = file.with_suffix(".new")
    draft.write_text(yaml.safe_dump(json.loads(json.dumps(content))))
    draft.replace(file)


def _slices(place: int, layout: Sequence[str]) -> list[nvml.Slice]:
    if layout == space.EMPTY:
        return []
    found = []
    for number, profile in enumerate(layout):
        part = "c." in profile
        instance = int(profile.partition(".")[2][0] if part else profile[0])
        own = int(profile[0])
        uuid = oracle.slice_uuid(place, number)
        made = nvml.Slice(uuid, gi=number, profile=profile, slices=(instance, own))
        found.append(made)
    return found


@contextlib.asynccontextmanager
async def world(choice: Choice, library: Path) -> AsyncIterator[World]:
    """Yield the node of *choice*; the daemon is not started."""
    folder = Path(tempfile.mkdtemp(prefix="hm-", dir="/tmp"))
    try:
        node = SimulatedNode(folder / "node", chips=0)
        _build(node, choice)
        driver = node.root.run / "nvidia/driver" if choice["node.root"] == "operator" else None
        driver = driver or folder / "driver"
        (driver / "usr/lib64").mkdir(parents=True)
        shutil.copy2(library, driver / "usr/lib64" / nvml.LIBRARY)
        (driver / "usr/lib64/libcuda.so.550.54.15").touch()
        for each in ("cdi", "features.d"):
            (folder / each).mkdir()
        environment = {nvml.CONTROL: str(folder / "nvml")}
        if choice["node.by"] == "nvidia":
            environment["CONFIG_FILE"] = str(folder / "nvidia.yaml")
        if choice["node.root"] == "environment":
            environment["NVIDIA_DRIVER_ROOT"] = str(driver)
        elif choice["node.root"] == "container":
            environment["CONTAINER_DRIVER_ROOT"] = str(driver)
        runtime = _Runtime(node, folder / "cdi")
        runtime.given = {}
        settings = {"http": {"port": 0}, "cdi": {"specDir": str(folder / "cdi")}}
        made = World(
            folder,
            runtime,
            settings=settings,
            times=_TIMES,
            environment=environment,
            own_process=True,
        )
        made.gpus = SimulatedGpus(node, folder / "nvml", nvml.Node(init=NOT_LOADED))
        made.show(choice)
        made.adopt(choice)
        async with running(made):
            if choice["node.gpus"]:
                made.gpus.load()
                made.gpus.add_imex_channel()
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _build(node: SimulatedNode, choice: Choice) -> None:
    generation, count = choice["node.tpus"]
    for place in range(count):
        address, device = f"0000:00:{5 + place:02x}", _PCI[generation]
        if oracle.is_accel(generation):
            subsystem = {"v2": 0x4E, "v3": 0x4F}.get(generation, 0)
            node.tree.accel(f"{address}.0", place, device=device, subsystem=subsystem)
            continue
        for function in range(2 if generation == "tpu7x" else 1):
            node.tree.tpu(f"{address}.{function}", group=10 + place, device=device)
    for place in range(choice["node.functions"]):
        node.tree.function(
            f"0000:40:00.{place}", vendor=0x1234, device=0x11, class_code=0x010802, group=40 + place
        )


async def refuses(choice: Choice, wrong: Refused, library: Path) -> None:
    """See that the daemon does not start with *wrong*, names its key, and makes nothing."""
    async with world(choice, library) as made:
        section = made.settings
        *sections, last = wrong.path.split(".")
        for each in sections:
            section = section.setdefault(each, {})
        section[last] = wrong.value
        said = await refusal(made)
        if said is None:
            raise ViolationError(
                f"start: {wrong.path}: {wrong.value!r} cannot work and is taken (what cannot work "
                "is refused before anything changes)"
            )
        if wrong.key not in said:
            raise ViolationError(
                f"start: refused without its key {wrong.key}: {said!r} (the key to change is named)"
            )
        if (made.state / "ledger.db").exists():
            raise ViolationError("start: it is refused, and a ledger was made all the same")


async def refusal(made: World) -> str | None:
    """Start the daemon; return why it refuses to, None once it answers."""
    made.start()

    async def decided() -> bool:
        return made.process.poll() is not None or await made.asked("status") is not None

    end = asyncio.get_running_loop().time() + made.limit
    while not await decided():
        if asyncio.get_running_loop().time() > end:
            raise ViolationError("start: the daemon neither refuses nor answers")
        await asyncio.sleep(0.02)
    if made.process.poll() is None:
        return None
    return (made.log.strip().splitlines() or [""])[-1]


async def serves(choice: Choice, library: Path, chance: random.Random) -> bool:
    """Hold the daemon against what is foretold of *choice*; return False where it is refused."""
    async with world(choice, library) as made:
        said = await refusal(made)
        if said is not None:
            _judge_refusal(choice, said)
            return False
        await end_to_end(made, choice, chance)
        return True


def _judge_refusal(choice: Choice, said: str) -> None:
    if not any(path in said for path in space.tree(choice)) or "Traceback" in said:
        raise ViolationError(f"start: refused without a key to change: {said!r}")
    if choice["node.by"] == "nvidia" and "sharing" in said:
        raise ViolationError(
            f"start: refused: {said!r}; NVIDIA's plugin takes this file (docs/nvidia.md: the same)"
        )


async def end_to_end(made: World, choice: Choice, chance: random.Random) -> None:
    """Offer, prefer, allocate, start, reach, end, free, next: for every resource that there is."""
    wanted = oracle.foretold(choice)
    await until_offered(made, wanted)
    await _told(made, choice)
    _spec(made, choice)
    for resource, offers in wanted.items():
        by_id = {each.id: each for each in offers}
        most = 1 if _only_one(choice, offers) else len(offers)
        for count in dict.fromkeys((1, most)):
            pod = await _runs(made, resource, count)
            had = [by_id[each] for each in made.ids(pod, resource)]
            if len(had) != count:
                raise ViolationError(f"allocate: {count} of {resource} asked, {had} given")
            _reaches(made, pod, had)
            await made.end(pod)
            await promised(made, made.until_free(), "end: what its pod had is free again")
            await until_offered(made, wanted)
    if chance.random() < 0.3:
        await made.again()
        await until_offered(made, wanted)


def _spec(made: World, choice: Choice) -> None:
    """See that a spec has the host's paths: the root is the host's own unless it is said."""
    file = made.folder / "cdi/k8s.device-plugin.nvidia.com-gpu.json"
    if choice["node.root"] == "container" and file.exists():
        text = file.read_text()
        if f'"hostPath": "{made.folder}' in text or f'"hostPath":"{made.folder}' in text:
            raise ViolationError(
                "start: CONTAINER_DRIVER_ROOT alone, and the spec has the container's paths for "
                "the host's (docs/nvidia.md: NVIDIA's driver root is the host's / by default)"
            )


def _only_one(choice: Choice, offers: Sequence[oracle.Offer]) -> bool:
    fail = choice["sharing.timeSlicing.failRequestsGreaterThanOne"]
    return bool(fail) and any(each.shared for each in offers)


async def until_offered(made: World, wanted: Mapping[str, Sequence[oracle.Offer]]) -> None:
    """Return when kubelet has exactly what is *wanted*, all of it Healthy."""

    def now() -> dict[str, set[str]]:
        endpoints = made.kubelet.devices.endpoints
        return {name: each.healthy for name, each in endpoints.items() if each.healthy}

    ids = {resource: {each.id for each in offers} for resource, offers in wanted.items()}
    try:
        await made.until(lambda: now() == ids, "the devices")
    except AssertionError as error:
        rows = await made.asked("devices") or ()
        why = sorted({reason for row in rows for reason in row["reasons"]})
        raise ViolationError(
            f"offer: expected {_count(ids)}, kubelet has {_count(now())}; {why[:3]} "
            f"(each healthy device is offered, under the name that is foretold) {_end(error)}"
        ) from error


def _count(ids: Mapping[str, set[str]]) -> dict[str, str]:
    return {name: f"{len(each)}: {', '.join(sorted(each)[:3])}" for name, each in ids.items()}


def _end(error: AssertionError) -> str:
    text = str(error)
    return "" if text.startswith("waited") else text[-1500:]


async def _told(made: World, choice: Choice) -> None:
    """See that labels are what is promised."""
    wanted = oracle.labels(choice)
    file = made.folder / "features.d/holdfast"
    if wanted:

        def wrong() -> dict[str, str | None]:
            lines = file.read_text().splitlines() if file.exists() else []
            there = dict(line.split("=", 1) for line in lines if "=" in line)
            return {key: there.get(key) for key, text in wanted.items() if there.get(key) != text}

        try:
            await made.until(lambda: not wrong(), "the labels")
        except AssertionError as error:
            raise ViolationError(
                f"labels: {wrong()}, expected {dict(sorted(wanted.items()))} (as NVIDIA's GPU "
                "feature discovery)"
            ) from error


async def _runs(made: World, resource: str, count: int) -> Pod:
    name = f"pod-{len(made.runtime.given)}"
    spec = PodSpec(name=name, containers=(asks(resource, count),))
    pod = await made.kubelet.submit(spec)
    if pod.phase is Phase.FAILED:
        raise ViolationError(f"allocate: {count} of {resource}: {pod.message} (it is allocated)")
    await promised(made, made.running(pod), f"start: a pod with {count} of {resource} runs")
    if made.runtime.failures:
        raise ViolationError(f"start: {made.runtime.failures[0]} (it is given what it needs)")
    return pod


async def promised(made: World, wait: Any, promise: str) -> None:
    try:
        await wait
    except AssertionError as error:
        text = str(error).splitlines()[0]
        raise ViolationError(f"{promise}: {text}; locks {await made.locks()}") from error


def _reaches(made: World, pod: Pod, had: Sequence[oracle.Offer]) -> None:
    """See that the container was told of, or handed, each device that it has."""
    given = made.answer(pod)
    for each in had:
        if each.path not in given and not each.told & given:
            raise ViolationError(
                f"start: the container has {each.id} and was given {sorted(given)} (it is given "
                "what it needs)"
            )
