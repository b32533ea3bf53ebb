"""The node of a combination: its hardware, its kubelet and cluster, the daemon, and how pods run."""

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml
from msgspec.structs import replace

from fakes.controlplane import control_plane
from fakes.sandboxes import GvisorSandbox
from fakes.stage import Stage, WatchfulRuntime, asks
from forked import Forked
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from matrix import oracle, space, ways
from matrix.claims import Cluster
from matrix.oracle import ViolationError
from matrix.space import Choice
from simulated import nvml
from simulated.cdi import resolve
from simulated.gpus import NOT_LOADED, SimulatedGpus
from simulated.node import SimulatedNode
from simulated.pods import Container, Pod, PodSpec, Workload
from simulated.podstatus import PodStatuses
from simulated.podworker import KubeletTimes
from simulated.stage import running

_TIMES = KubeletTimes(retry_first=0.1, retry=0.3, finished=0.1, sync=0.5, unprepare=0.5)
_VISIBLE, _MOUNTS = "NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices/"
_OTHERS = 0x1234
_CARD = "0000:40:00.0"
_INSTANCES = 7
_Hardware = TypeVar("_Hardware", nvml.Card, nvml.Slice)
EVERYTHING = "all"
THEIRS: Mapping[str, tuple[str, ...]] = {
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


class _Runtime(WatchfulRuntime):
    """Follows NVIDIA's variable, mounts and annotations; of GPUs who shares trespasses on nobody."""

    given: dict[str, set[str]]
    sandboxes: dict[str, GvisorSandbox]
    strays: Callable[[Pod, set[str]], list[str]]
    withheld: Callable[[Pod], list[str]]
    in_use: Callable[[Pod], list[str]]
    leaks = False
    """Sandboxes outlive the pods that they were made for."""

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        for text in grant.annotations.values():
            for name in text.split(","):
                grant.cdi_devices.add(name=name)
        names = [each.name for each in grant.cdi_devices]
        named = resolve(self._cdi, names)
        variables = {**grant.envs, **named.variables}
        told = {*variables.get(_VISIBLE, "").split(",")}
        mounts = [*named.mounts, *(each.container_path for each in grant.mounts)]
        told |= {each.removeprefix(_MOUNTS) for each in mounts}
        told |= {each.partition("=")[2] for each in names if "/imex-" not in each}
        paths = self.paths(grant)
        own = [path for path in paths if path.startswith(("/dev/vfio", "/dev/accel"))]
        taken = [path for path in own if self.node.tree.in_use(path)] + self.in_use(pod)
        if taken:
            self.trespasses.append(f"{pod.spec.name} started on {taken}, which somebody has open")
        self.given[pod.uid] = told | set(paths)
        if strays := self.strays(pod, self.given[pod.uid]):
            self.trespasses.append(f"{pod.spec.name} started on {strays}, which is not what it has")
        if withheld := self.withheld(pod):
            self.trespasses.append(f"{pod.spec.name} started on {withheld}, withheld by hand")
        await super(WatchfulRuntime, self).start(pod, container, grant)

    async def stop(self, pod: Pod, grace: float) -> None:
        await super().stop(pod, grace)
        sandbox = self.sandboxes.get(pod.uid)
        if sandbox is not None and self.leaks:
            sandbox.idle()
        elif sandbox is not None:
            self.end_sandbox(pod)

    def end_sandbox(self, pod: Pod) -> None:
        """End what is left of a pod's sandbox."""
        sandbox = self.sandboxes.pop(pod.uid, None)
        if sandbox is not None:
            sandbox.close()


class World(Stage):
    """The node of a choice, its kubelet, and the daemon."""

    runtime: _Runtime
    gpus: SimulatedGpus
    cluster: Cluster
    choice: Choice
    variables: Mapping[str, str] = {}
    arguments: Sequence[str] = ()
    """How the next daemon is told what is not in a file."""
    numbers = ""
    """Which groups and indexes the hardware has now: a choice's `node.numbers`."""
    marked = ""
    """What a person withholds: the id of a piece of hardware, or EVERYTHING."""
    exempt: frozenset[str] = frozenset()
    """The UIDs of the pods that had started before, which go on."""
    leavers: tuple[tuple[Pod, frozenset[str]], ...] = ()
    """Who left a process on which GPUs and slices."""
    layout: tuple[tuple[str, ...], ...]
    """How the GPUs are divided now: while all changes, not yet as the choice says."""
    limit = 40.0

    def adopt(self, choice: Choice) -> None:
        """Write the files that say what *choice* says."""
        self.choice = choice
        apart = space.in_document(choice)
        file, document = in_file(choice, apart), {each: choice[each] for each in apart}
        if choice["node.by"] == "ways":
            own = {path: value for path, value in choice.items() if space.is_set(path, value)}
            given = ways.by_ways(own, random.Random(repr(choice)))
            file, document = space.tree(given["file"]), given["document"]
            self.variables, self.arguments = ways.variables(given), ways.arguments(given)
        made = {"gpu": {}, "kubelet": {}, "labels": {}, "dra": {}, **file}
        _place(self.folder / "nvidia.yaml", theirs(choice))
        if document:
            made["named"] = {"folder": str(self.folder / "named"), "labels": []}
            _place(self.folder / "named/default", space.tree(document))
        if choice["node.root"] == "settings":
            made["gpu"]["driverRoot"] = str(self.folder / "driver")
        own = self.settings["kubelet"]
        keep = {key: own[key] for key in ("pluginDir", "podResourcesSocket")}
        fixed = {key: self.settings[key] for key in ("stateDir", "host", "http", "cdi")}
        made["labels"]["folder"] = str(self.folder / "features.d")
        made["dra"] |= self.cluster.settings()
        self.settings = {**made, **fixed, "kubelet": {**made["kubelet"], **keep}}
        self.cluster.adopt(choice)
        _place(self.config, self.settings)

    def launch(self, log: BinaryIO, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        """Run `holdfast` with the flags and variables that the choice is given by."""
        former, self._environment = self._environment, {**self._environment, **self.variables}
        try:
            return super().launch(log, *arguments, *self.arguments)
        finally:
            self._environment = former

    def show(self, choice: Choice) -> None:
        """Let NVML have the GPUs of *choice*, each divided as it says."""
        self.layout = choice["node.gpus"]
        now, known = self.now(choice), nvml.cards(len(self.layout))
        left = {id_: pid for pod, ids in self.leavers for pid in self.orphans(pod) for id_ in ids}
        cards = {
            oracle.gpu_index(now, place): replace(
                known[oracle.gpu_index(now, place)],
                uuid=card.uuid,
                bus=card.bus,
                mig=int(layout != ()),
                slices=tuple(_used(each, left) for each in _slices(place, layout)),
            )
            for place, (card, layout) in enumerate(zip(known, self.layout, strict=True))
        }
        shown = tuple(_used(cards[each], left) for each in sorted(cards))
        self.gpus.show(replace(self.gpus.stub, cards=shown))

    def uses_gpus(self, pod: Pod) -> None:
        """Let NVML name what *pod* leaves behind, on the GPUs and slices that it has."""
        things, own = self._things(pod)
        # On a GPU in MIG mode a program has the first of its slices.
        slices = {each.path: each for each in reversed(things) if each.kind == "slice"}
        used = (
            slices.get(each.path) if each.kind == "gpu" and each.in_mig_mode else each
            for each in own
        )
        ids = frozenset(each.id for each in used if each is not None)
        self.leavers = (*self.leavers, (pod, ids))
        self.show(self.now(self.choice))

    async def follow_leavers(self) -> None:
        """Let NVML name what was left only while it lives."""
        while True:
            await asyncio.sleep(0.02)
            left = tuple(each for each in self.leavers if self.orphans(each[0]))
            if left != self.leavers:
                self.leavers = left
                self.show(self.now(self.choice))

    def in_use(self, pod: Pod) -> list[str]:
        """Return which GPUs and slices of *pod* have a process that another pod left there."""
        things, own = self._things(pod)
        ids = {id_ for leaver, ids in self.leavers if leaver is not pod for id_ in ids}
        left = [each for each in things if each.id in ids]
        return sorted({each.id for each in own if any(oracle.shares(each, one) for one in left)})

    def now(self, choice: Choice) -> Choice:
        """Return *choice* with the hardware as it is: while all changes, not yet as it says."""
        return {**choice, "node.gpus": self.layout, "node.numbers": self.numbers}

    def renumber(self, choice: Choice) -> None:
        """Take functions and NVIDIA's driver out, and put them in again, numbered as *choice* says."""
        former = [each for each in oracle.hardware(self.now(choice)) if each.functions]
        for each in former:
            unplug(self.node, each)
        loaded = self.gpus.stub.init == 0
        if loaded:
            self.gpus.leave()
        self.numbers = choice["node.numbers"]
        for each in oracle.hardware(self.now(choice)):
            if each.functions:
                plug(self.node, each)
        self.show(self.now(choice))
        if loaded:
            self.load_driver()

    async def until_numbered(self) -> None:
        """Return when the daemon has seen the hardware's numbers, and specs of claims have them."""
        things = list(oracle.hardware(self.now(self.choice)))

        def misleads(pod: Pod) -> bool:
            with contextlib.suppress(OSError):  # what it has is not there any more
                names = self.cluster.dra.cdi(pod, pod.spec.containers[0])
                nodes = resolve(self.specs, names).nodes
                return bool(self.strays(pod, {each.path for each in nodes}))
            return False

        async def so() -> bool:
            rows = await self.asked("devices")
            running = [each for each in self.kubelet.pods.values() if each.starts]
            return (
                rows is not None
                and all(
                    each.path in row["nodes"]
                    for row in rows
                    for each in things
                    if row["nodes"] and oracle.is_of(each, row["id"])
                )
                and not any(map(misleads, running))
            )

        await self.until(so, "the daemon to see the numbers")

    def strays(self, pod: Pod, given: set[str]) -> list[str]:
        """Return which of the names and paths *given* to *pod* lead to what is not its own."""
        if pod.spec.containers[0].limits.keys() & oracle.published(self.choice).keys():
            return []  # docs/dra.md: what moved to claims is not gated when it starts again
        things, own = self._things(pod)
        led = [{name for each in all_ for name in _ways_to(each)} for all_ in (things, own)]
        return sorted(given & (led[0] - led[1])) if own else []

    def withheld(self, pod: Pod) -> list[str]:
        """Return what of a pod's hardware a person withholds from it."""
        if not self.marked or pod.uid in self.exempt:
            return []
        things, own = self._things(pod)
        marked = [each for each in things if self.marked in {each.id, EVERYTHING}]
        return sorted({each.id for each in own if any(oracle.shares(each, one) for one in marked)})

    def _things(self, pod: Pod) -> tuple[list[oracle.Thing], list[oracle.Thing]]:
        """Return all the hardware, and a pod's own; of what it has as a box nothing is told."""
        things = list(oracle.hardware(self.now(self.choice)))
        names = [each for limits in pod.spec.containers[0].limits for each in self.ids(pod, limits)]
        told = self.cluster.devices()  # a box is called by its first chip
        boxes = {each for each, device in told.items() if "shape" in device["attributes"]}
        names += [each for each in self.cluster.has(pod) if each not in boxes]
        return things, [each for each in things if any(oracle.is_of(each, name) for name in names)]

    async def reboot_as(self, choice: Choice) -> None:
        """Reboot the node: no process, and no CDI spec, is left, and numbers are given anew."""
        await self.kubelet.close()
        self.kill()
        self.node.reboot()
        for file in self.specs.iterdir():
            file.unlink()
        self.renumber(choice)
        self.another_kubelet()
        await self.kubelet.start()
        await self.come_up("reboot")

    def load_driver(self) -> None:
        """Load NVIDIA's driver, with the nodes of all that it may have."""
        self.gpus.load()
        self.gpus.make_capabilities(_INSTANCES)

    async def again(self) -> None:
        """End the daemon as a crash does, and start it; it has to come up."""
        self.kill()
        await self.come_up("restart")

    async def come_up(self, after: str) -> None:
        """Start the daemon, which always can."""
        said = await refusal(self)
        if said is not None:
            raise ViolationError(f"{after}: the daemon cannot start again: {said}")

    def answer(self, pod: Pod) -> set[str]:
        """Return what the container was given: names, indexes and paths."""
        return self.runtime.given.get(pod.uid, set())

    async def ask(
        self,
        name: str,
        what: str,
        count: int = 1,
        *,
        claim: bool = False,
        shared: str = "",
        admin: bool = False,
        patient: bool = True,
        **work: Any,
    ) -> Pod | None:
        """Submit a pod with *count* of a resource or shape, None where it finds no place.

        Where claims bring it, a *claim* of the pod's own does, or one that is *shared* by this
        name, or with *admin* access, or else the scheduler makes it. Who is not *patient* wants its
        place at once.
        """
        work = {"opens": not self.choice["node.sandbox"], **work}
        if what not in {**oracle.published(self.choice), **oracle.shapes(self.choice)}:
            return await self.kubelet.submit(
                PodSpec(name=name, containers=(asks(what, count, **work),), restart="Always")
            )
        if claim:
            self.cluster.claims(name, what, shared, admin=admin)
        else:
            self.cluster.wants(name, what, count)
        found: list[PodSpec | None] = [None]

        def placed() -> bool:
            found[0] = self.cluster.placed(name, Workload(**work))
            return found[0] is not None or not patient

        try:
            await self.until(placed, f"{name} to find a place")
        except AssertionError:
            found[0] = None
        if found[0] is None:
            self.cluster.delete(name)
            return None
        return await self.kubelet.submit(replace(found[0], restart="Always"))

    def has(self, pod: Pod, resource: str) -> list[str]:
        """Return what a pod has of a resource: ids of kubelet's, or names of claimed devices."""
        return self.cluster.has(pod) if pod.spec.claims else sorted(self.ids(pod, resource))

    def put_in_sandbox(self, pod: Pod, path: str) -> None:
        """Let the program of *pod* be in a sandbox, which has the device at *path* open."""
        made = GvisorSandbox(self, pod, self.node.node(path))
        self.runtime.sandboxes[pod.uid] = made
        made.at_work()
        made.opens_the_group()

    def let_end(self, pod: Pod) -> None:
        """Delete a pod, and do not wait."""
        self.cluster.delete(pod.spec.name)
        self.kubelet.delete(pod, grace=0.0)

    async def end(self, pod: Pod, *, grace: float = 0.0) -> None:
        """Delete a pod, and return when kubelet has done so."""
        self.cluster.delete(pod.spec.name)
        await super().end(pod, grace=grace)


def in_file(choice: Choice, apart: Collection[str]) -> dict[str, Any]:
    """Return what our file says of a choice: not what a document has *apart*, or NVIDIA's file."""
    left = {*apart, *(THEIRS if choice["node.by"] == "nvidia" else ())}
    return space.tree({path: value for path, value in choice.items() if path not in left})


def theirs(choice: Choice) -> dict[str, Any]:
    """Return NVIDIA's file of a choice; without any keys where it has none."""
    made: dict[str, Any] = {"version": "v1"}
    for path, keys in THEIRS.items() if choice["node.by"] == "nvidia" else ():
        if path.startswith("sharing.") and not choice["sharing.timeSlicing.resources"]:
            continue
        section = made
        for each in keys[:-1]:
            section = section.setdefault(each, {})
        section[keys[-1]] = choice[path]
    return made


def _place(file: Path, content: Mapping[str, Any]) -> None:
    draft = file.with_suffix(".new")
    draft.write_text(yaml.safe_dump(json.loads(json.dumps(content))))
    draft.replace(file)


def _used(made: _Hardware, left: Mapping[str, int]) -> _Hardware:
    """Return a GPU or a slice with the process that is *left* on it; a GPU has its slices' too."""
    own = (made, *(made.slices if isinstance(made, nvml.Card) else ()))
    pids = {left[each.uuid] for each in own if each.uuid in left}
    processes = tuple(("compute", pid, nvml.GIB) for pid in sorted(pids))
    return replace(made, used=nvml.GIB * len(pids), processes=processes)


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


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hm", dir="/tmp"))
    try:
        for each in ("cdi", "features.d", "named"):
            (folder / each).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def world(choice: Choice, library: Path) -> AsyncIterator[World]:
    """Yield the node of *choice*; the daemon is not started."""
    with _folder() as folder, control_plane(folder) as plane:
        node = SimulatedNode(folder / "node", chips=0)
        _build(node, choice)
        driver = node.root.run / "nvidia/driver" if choice["node.root"] == "operator" else None
        driver = driver or folder / "driver"
        (driver / "usr/lib64").mkdir(parents=True)
        shutil.copy2(library, driver / "usr/lib64" / nvml.LIBRARY)
        (driver / "usr/lib64/libcuda.so.550.54.15").touch()
        environment = {nvml.CONTROL: str(folder / "nvml"), **plane.server.environment}
        if choice["node.by"] == "nvidia":
            environment["CONFIG_FILE"] = str(folder / "nvidia.yaml")
        if choice["node.root"] == "environment":
            environment["NVIDIA_DRIVER_ROOT"] = str(driver)
        elif choice["node.root"] == "container":
            environment["CONTAINER_DRIVER_ROOT"] = str(driver)
        cluster = Cluster(plane, folder / "k")
        runtime = _Runtime(node, folder / "cdi")
        runtime.given, runtime.sandboxes = {}, {}
        runtime.leaks = choice["node.sandbox"] == "leaks"
        settings = {"http": {"port": 0}, "cdi": {"specDir": str(folder / "cdi")}}
        made = World(
            folder,
            runtime,
            settings=settings,
            times=_TIMES,
            environment=environment,
            own_process=True,
            dra=cluster.dra,
        )
        made.cluster = cluster
        made.kubelet.tell = PodStatuses(cluster.store, cluster.scheduler).tell
        made.gpus = SimulatedGpus(node, folder / "nvml", nvml.Node(init=NOT_LOADED))
        runtime.strays, runtime.withheld = made.strays, made.withheld
        runtime.in_use = made.in_use
        made.numbers = choice["node.numbers"]
        made.show(choice)
        made.adopt(choice)
        async with running(made):
            if choice["node.gpus"]:
                made.load_driver()
                made.gpus.add_imex_channel()
            following = asyncio.create_task(made.follow_leavers())
            try:
                yield made
                _check(runtime)
            finally:
                following.cancel()
                for sandbox in runtime.sandboxes.values():
                    sandbox.close()


def _check(runtime: _Runtime) -> None:
    if runtime.trespasses:
        raise ViolationError(
            f"start: {runtime.trespasses[0]} (a container starts on a device that nobody else has)"
        )


def _build(node: SimulatedNode, choice: Choice) -> None:
    if choice["node.functions"] == "virtual":
        node.tree.function(_CARD, vendor=_OTHERS, device=0x11, class_code=0x010802, driver="nvme")
    generation, _ = choice["node.tpus"]
    for place, thing in enumerate(oracle.hardware(choice)):
        if thing.functions:
            plug(node, thing)
        elif thing.kind == "tpu":
            device, subsystem = (
                oracle.CHIPS[generation],
                {"v2": 0x4E, "v3": 0x4F}.get(generation, 0),
            )
            node.tree.accel(thing.id, place, device=device, subsystem=subsystem)


def _ways_to(thing: oracle.Thing) -> Iterator[str]:
    """Yield by which path, and of a GPU by which index, a container reaches a piece of hardware."""
    yield thing.path
    if thing.kind in {"gpu", "slice"}:
        yield from (text for key, text in thing.names if key == "index")


def unplug(node: SimulatedNode, thing: oracle.Thing) -> None:
    """Take what is on VFIO out of the node."""
    for address, *_ in thing.functions:
        node.tree.unplug(address)
    node.tree.drop_group_node(int(Path(thing.path).name))


def plug(node: SimulatedNode, thing: oracle.Thing) -> None:
    """Put what is on VFIO into the node."""
    group = int(Path(thing.path).name)
    for address, model, code in thing.functions:
        vendor, device = (int(each, 16) for each in model.split(":"))
        node.tree.function(
            address, vendor=vendor, device=device, class_code=int(code, 16), group=group
        )
        if vendor == _OTHERS and node.tree.path(_CARD).exists() and address != _CARD:
            (node.tree.path(address) / "physfn").symlink_to(node.tree.path(_CARD))


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


async def promised(made: World, wait: Any, promise: str) -> None:
    """Await what is promised; raise ViolationError with the promise where it does not come."""
    try:
        await wait
    except ViolationError:
        raise
    except AssertionError as error:
        _check(made.runtime)
        text = str(error).splitlines()[0]
        rows = await made.asked("locks") or ()
        locks = [f"{each['device']} {each['state']}: {each['reason']}" for each in rows]
        raise ViolationError(f"{promise}: {text}; locks {locks}") from error
