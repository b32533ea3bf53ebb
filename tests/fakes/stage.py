"""A whole node for stories: chips, kubelet, runtime and the real daemon, which may be killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from grpc.aio import AioRpcError
from msgspec.structs import replace

import simulated.stage
from fakes.commands import holdfast
from forked import Forked, daemons
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast.app.daemon import run
from holdfast.app.wiring.parts import VENDORS
from holdfast.runtime.clock import SystemClock
from holdfast.settings import convert
from holdfast.settings.sources import LoadedSettings
from holdfast.vendors.context import Vendor
from simulated.devicemanager import Endpoint
from simulated.dramanager import DraManager
from simulated.node import SimulatedNode
from simulated.pods import Container, Phase, Pod, PodSpec, Workload
from simulated.podworker import KubeletTimes
from simulated.runtime import Runtime

TPU = "google.com/tpu"
POOL = "example.com/chip"
CHIPS = ("0000:00:05.0", "0000:00:06.0", "0000:00:07.0", "0000:00:08.0")
"""The chips of a node that has four."""
# What a user waits minutes for, a test waits a moment for.
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "discovery": {"rescan": "500ms", "heldCheck": "200ms"},
    "gate": {"wait": "500ms", "poll": "50ms"},
    "reclaim": {"poll": "100ms", "releasePoll": "50ms", "unseenGrace": "300ms"},
    "http": {"port": 0},
}
PATIENT = {"wait": "25s"}
"""The gate's section where a start that is refused once would fail the test."""
_QUESTION = {"minInterval": "50ms", "settle": "50ms", "idleInterval": "200ms", "timeout": "1s"}
TIMES = KubeletTimes(retry_first=0.1, retry=0.3, finished=0.1)


def _soon(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections of the settings with a test's times for what they do not name."""
    return {
        name: {**_SETTINGS[name], **of} if name in _SETTINGS else of
        for name, of in sections.items()
    }


class NodeClock(SystemClock):
    """The machine's clocks, of which a test may set the one that tells the time of day."""

    def __init__(self) -> None:
        self.is_off = 0.0

    def wall(self) -> float:
        return super().wall() + self.is_off


class WatchfulRuntime(Runtime):
    """A runtime that notes each start on a node that somebody has open: it must never happen."""

    def __init__(self, node: SimulatedNode, cdi: Path) -> None:
        super().__init__(node, cdi=cdi)
        self.node = node
        self.trespasses: list[str] = []

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        taken = [path for path in self.paths(grant) if self.node.tree.in_use(path)]
        if taken:
            self.trespasses.append(f"{pod.spec.name} started on {taken}, which somebody has open")
        await super().start(pod, container, grant)


class Stage(simulated.stage.Stage):
    """A node with chips, a kubelet, and a daemon that a test may end and start again.

    `own_process`: the daemon is a process of its own, so that it can be killed.
    """

    runtime: WatchfulRuntime
    vendors: Iterable[Vendor] = VENDORS
    """The adapters of a daemon in this process."""

    def __init__(
        self,
        folder: Path,
        runtime: WatchfulRuntime,
        *,
        settings: Mapping[str, Any],
        times: KubeletTimes,
        environment: Mapping[str, str],
        own_process: bool,
        dra: DraManager | None = None,
        python: str = sys.executable,
    ) -> None:
        super().__init__(
            folder,
            runtime.node,
            runtime,
            settings=settings,
            times=times,
            environment=environment,
            dra=dra,
            python=python,
        )
        self.clock = NodeClock()
        self._own_process = own_process
        # What the loader or Python reads as a program starts needs a start.
        read = any(name.startswith(("LD_", "PYTHON")) for name in environment)
        self._forks = python == sys.executable and not read
        self._task: asyncio.Task[LoadedSettings | None] | None = None

    @property
    def checkpoint(self) -> Path:
        return self.kubelet.folder / "kubelet_internal_checkpoint"

    @property
    def specs(self) -> Path:
        """The folder of CDI specs."""
        return self.folder / "cdi"

    def start(self) -> float:
        """Start the daemon."""
        if self._own_process:
            return super().start()
        self._task = asyncio.create_task(self.run_daemon())
        return time.perf_counter()

    def launch(self, log: BinaryIO, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        """Run `holdfast`, forked from a process that has imported it where that is the same."""
        if not self._forks:
            return super().launch(log, *arguments)
        return daemons().daemon(*arguments, environment=self._environment, log=log)

    async def run_daemon(self) -> LoadedSettings | None:
        """Run a daemon in this task, until it ends by itself or raises why it cannot start."""
        settings = convert(self.settings)
        found = LoadedSettings(settings=settings)
        return await run(found, lambda _label: found, clock=self.clock, vendors=self.vendors)

    def set_clock(self, seconds: float) -> None:
        """Set the time of day off by so much, for the daemon and for the files that kubelet writes.

        A daemon in a process of its own does not notice.
        """
        assert not self._own_process
        self.clock.is_off = self.kubelet.devices.clock_is_off = seconds

    async def stop(self) -> None:
        """End the daemon as a node does."""
        await super().stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def configure(self, **changes: Any) -> None:
        """Write *changes* to the daemon's file: sections of its settings, each as a whole."""
        super().configure(**_soon(changes))

    async def reload(self, **changes: Any) -> None:
        """Have the daemon take up *changes* of its settings, which all are live."""
        self.configure(**changes)

        async def taken_up() -> bool:
            answer = await self.asked("reload")
            assert not answer["problem"]
            assert "restart" not in answer["changed"]
            return not answer["changed"]

        await self.until(taken_up, "the file to be taken up")
        assert "ListAndWatch stream closed" not in self.log

    async def kill_and_start(self, resource: str = TPU) -> None:
        """End the daemon as a crash does, and return when kubelet has the next one's devices."""
        self.kill()
        await self.start_and_register(resource)

    async def start_and_register(self, resource: str = TPU) -> None:
        """Start the daemon, and return when kubelet has heard its devices."""
        await super().start_and_register(resource)

    async def reboot(
        self, *, groups: dict[int, int] | None = None, keeps_specs: bool = False
    ) -> None:
        """Reboot the node, and return when the plugin is back and every pod was admitted anew.

        `keeps_specs`: the CDI specs are on a disk, and not in memory as they should be.
        """
        await self.kubelet.close()
        await self.stop()
        self.node.reboot(groups=groups)
        if not keeps_specs:
            for file in self.specs.iterdir():
                file.unlink()
        self.another_kubelet()
        await self.kubelet.start()
        await self.start_and_register()
        await self.kubelet.readmit()

    async def restart_kubelet(self, *, api_server: bool = True) -> None:
        """Restart kubelet, and return when it has heard our devices again."""
        await self.kubelet.stop()
        self.another_kubelet()
        self.kubelet.sources_ready = api_server
        before = self.heard()
        await self.kubelet.start()
        await self.until(lambda: self.heard() > before, "the daemon to register again")

    def another_kubelet(self) -> None:
        """Let kubelet be another process than before, as /proc shows it."""
        stat = self.node.root.proc / str(os.getpid()) / "stat"
        head, _, tail = stat.read_text().rpartition(")")
        fields = tail.split()
        fields[19] = str(int(fields[19]) + 1)
        stat.unlink()
        stat.write_text(f"{head}) {' '.join(fields)}\n")

    async def allocate(self, *ids: str) -> api.ContainerAllocateResponse:
        """Call Allocate as kubelet does, which has no pod for these chips yet."""
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        answer = await self.kubelet.devices.plugin(TPU).Allocate(request)
        (only,) = answer.container_responses
        return only

    async def refusal(self, *ids: str) -> str:
        """Return why Allocate refuses *ids*."""
        try:
            await self.allocate(*ids)
        except AioRpcError as error:
            return error.details() or ""
        raise AssertionError(f"{ids} were allocated")

    async def pre_start(self, *ids: str, resource: str = TPU) -> str:
        """Call PreStartContainer; return the refusal, or nothing."""
        request = api.PreStartContainerRequest(devices_ids=ids)
        try:
            await self.kubelet.devices.plugin(resource).PreStartContainer(request)
        except AioRpcError as error:
            return error.details() or "refused"
        return ""

    async def submit(self, spec: PodSpec) -> Pod:
        """Let kubelet admit a pod, which it must not refuse."""
        pod = await self.kubelet.submit(spec)
        assert pod.phase is not Phase.FAILED, pod.message
        return pod

    async def running(self, pod: Pod) -> Pod:
        """Return when the pod's program runs."""
        await self.until(
            lambda: pod.phase is not Phase.PENDING,
            lambda: f"{pod.spec.name} to run; it waits since {pod.waiting!r}",
        )
        return pod

    async def run(self, spec: PodSpec) -> Pod:
        """Submit a pod, and return when its program runs."""
        return await self.running(await self.submit(spec))

    async def waiting(self, pod: Pod, *texts: str | Pod) -> str:
        """Return what the pod is told, once it is told all of *texts*.

        Of another pod that is its name, or its uid where its name is not known yet.
        """

        def is_told(what: str | Pod) -> bool:
            if isinstance(what, str):
                return what in pod.waiting
            spec = what.spec
            return f"{spec.namespace}/{spec.name}" in pod.waiting or what.uid in pod.waiting

        await self.until(
            lambda: all(map(is_told, texts)),
            lambda: f"{pod.spec.name} to be told {texts}; it is told {pod.waiting!r}",
        )
        assert pod.phase is Phase.PENDING
        return pod.waiting

    async def end(self, pod: Pod, *, grace: float = 0.0) -> None:
        """Delete a pod, and return when kubelet has done so."""
        self.kubelet.delete(pod, grace=grace)
        await self.until(lambda: pod.stopped, f"{pod.spec.name} to be stopped")

    async def until_named(self, pod: Pod) -> None:
        """Return when the daemon knows the pod's name, which only List tells."""

        async def named() -> bool:
            rows = await self.asked("locks") or ()
            wanted = f"{pod.spec.namespace}/{pod.spec.name}"
            return any(row.get("podName") == wanted for row in rows)

        await self.until(named, f"{pod.spec.name} to be known by name")

    async def waits_again(self, pod: Pod, *, starts: int) -> str:
        """Return what the pod is told when a container of it cannot start once more.

        Where a look had no time yet, kubelet asks again.
        """

        def told() -> bool:
            looked = "the look at them goes on" not in pod.waiting
            return bool(pod.waiting) and looked and pod.starts == starts

        await self.until(told, f"{pod.spec.name} to wait after {starts} starts")
        return pod.waiting

    def orphans(self, pod: Pod) -> tuple[int, ...]:
        """Return the live processes in a pod's cgroup."""
        return self.node.members(pod.uid)

    async def orphan(self, pod: Pod) -> int:
        """Return the one process that a pod left behind, once all else of it has ended."""
        await self.until(lambda: pod.stopped, f"{pod.spec.name} to be over")
        await self.until(lambda: len(self.orphans(pod)) == 1, "one process to be left")
        return self.orphans(pod)[0]

    async def left_behind(self, name: str = "old", **work: Any) -> tuple[Pod, int]:
        """Return a pod that is over, and the one process that it left on its device."""
        old = await self.run(pod(name, runs_for=0.0, orphan=1, **work))
        return old, await self.orphan(old)

    async def waits_for_orphan(self) -> tuple[Pod, int]:
        """Return a pod that waits, and the process of a former pod, known by name, that it waits for."""
        old = await self.run(pod("old", orphan=1))
        await self.until_named(old)
        await self.end(old)
        left = await self.orphan(old)
        following = await self.submit(pod("next"))
        await self.waiting(following, f"pid {left}")
        return following, left

    async def given_twice(self) -> tuple[Pod, Pod]:
        """Return two pods to which kubelet gave its one device, and counts both."""
        one = await self.submit(pod("one", pull=1.0))
        entries = list(self.kubelet.devices.entries)
        # Kubelet forgets for a moment what it has just given away, and gives it once more.
        self.kubelet.devices.entries.clear()
        two = await self.submit(pod("two"))
        self.kubelet.devices.entries.extend(entries)
        self.kubelet.devices.write()
        return one, two

    async def refused_for_another_resource(self) -> Pod:
        """Return a pod that kubelet refused once it had a chip: of another resource it has none."""
        self.kubelet.devices.endpoints["example.com/nic"] = Endpoint(stub=None)
        containers = (Container(limits={TPU: 1, "example.com/nic": 1}),)
        refused = await self.kubelet.submit(PodSpec(name="refused", containers=containers))
        assert refused.phase is Phase.FAILED
        return refused

    @contextlib.contextmanager
    def held_open(self, path: str) -> Iterator[None]:
        """Let this process, which is of no pod, have a device node open."""
        held = os.open(self.node.node(path), os.O_RDWR | os.O_NOCTTY)
        try:
            yield
        finally:
            os.close(held)

    def ids(self, pod: Pod, resource: str = TPU) -> set[str]:
        """Return the devices that kubelet has for a pod in its checkpoint."""
        entries = self.kubelet.devices.entries
        return {
            id_
            for entry in entries
            if (entry.pod, entry.resource) == (pod.uid, resource)
            for id_ in entry.ids
        }

    def heard(self, resource: str = TPU) -> int:
        """Return how many messages kubelet has had."""
        return super().heard(resource)

    def healthy(self, resource: str = TPU) -> set[str]:
        """Return what kubelet would grant."""
        return super().healthy(resource)

    def ever_unhealthy(self) -> set[str]:
        """Return the chips that kubelet was ever told to be Unhealthy."""
        return {
            id_
            for message in self.kubelet.messages.get(TPU, ())
            for id_, health in message.items()
            if health != "Healthy"
        }

    async def all_releasing(self) -> bool:
        """Tell whether every lock is RELEASING, and there is one."""
        return set((await self.locks()).values()) == {"releasing"}

    async def owners(self) -> dict[str, str | None]:
        """Return the pod of each locked device by its id."""
        rows = await self.asked("locks") or ()
        return {
            row["device"].rpartition("/")[2]: row["pod"] for row in rows if row["state"] == "held"
        }

    def answers(self, pod: Pod) -> list[api.ContainerAllocateResponse]:
        """Return what Allocate answered for each container of a pod."""
        return [
            api.ContainerAllocateResponse.FromString(each.answer)
            for each in self.kubelet.devices.entries
            if each.pod == pod.uid
        ]

    async def queued(self) -> int:
        """Return for how many devices some Allocation waits."""
        return sum(row["state"] == "queued" for row in await self.asked("locks") or ())

    async def ever(self, state: str) -> list[dict[str, Any]]:
        """Return the moves to *state* in the history of all devices."""
        moves = await self.asked("history", limit=1000)
        return [move for move in moves if move["to"] == state]

    async def problem(self, check: str) -> str:
        """Return what `status` has to say about one of its checks."""
        return (await self._check(check))[0]

    async def _check(self, name: str) -> tuple[str, bool]:
        """Return what `status` has to say about a check, and whether that passes."""
        status = await self.asked("status")
        found = {each["name"]: each for each in status["checks"]}.get(name)
        return ("", True) if found is None else (str(found["reason"]), bool(found["passes"]))

    async def until_problem(self, check: str, text: str) -> None:
        """Return when `status` names *text* for one of its checks; empty: when that passes."""
        said = ""

        async def so() -> bool:
            nonlocal said
            said, passes = await self._check(check)
            return text in said if text else passes

        await self.until(so, lambda: f"{check} to say {text!r}; it says {said!r}")

    async def for_some_beats(self, beats: int = 8) -> None:
        """Return when the daemon has had time to do what it must not do."""
        for _ in range(beats):
            await self.asked("status")
            await asyncio.sleep(0.1)

    def told_healthy(self, resource: str = TPU) -> list[set[str]]:
        """Return what was Healthy in each message that kubelet had."""
        return [
            {id_ for id_, health in message.items() if health == "Healthy"}
            for message in self.kubelet.messages.get(resource, ())
        ]

    async def former_plugins_pod(self, *ids: str) -> Pod:
        """Run a pod that another plugin gave VFIO groups to, with their numbers for ids."""
        spec = pod("from-before", chips=len(ids))
        made = Pod(spec=spec, phase=Phase.RUNNING)
        answer = api.ContainerAllocateResponse()
        for id_ in ids:
            path = f"/dev/vfio/{id_}"
            answer.devices.add(host_path=path, container_path=path, permissions="rw")
        self.kubelet.pods[made.uid] = made
        self.kubelet.devices.note(made.uid, TPU, ids, answer=answer.SerializeToString())
        self.kubelet.devices.write()
        await self.runtime.start(made, spec.containers[0], answer)
        return made

    async def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of `holdfast`'s by itself, as people do."""
        return await holdfast(*words, state=self.state)

    async def questions(self, count: int = 3) -> None:
        """Return when kubelet was asked *count* times more which pods it counts."""
        target = self.kubelet.pod_resources.lists + count
        await self.until(
            lambda: self.kubelet.pod_resources.lists >= target, "kubelet to be asked anew"
        )

    async def until_locks(self, wanted: dict[str, str]) -> None:
        """Return when exactly these devices are locked, in these states."""
        seen: dict[str, str] = {}

        async def so() -> bool:
            seen.clear()
            seen.update(await self.locks())
            return seen == wanted

        await self.until(so, lambda: f"locks to be {wanted}; they are {seen}")

    async def until_free(self) -> None:
        """Return when nothing is locked."""
        await self.until_locks({})

    def _check_daemon(self) -> None:
        super()._check_daemon()
        if self._task is not None and self._task.done():
            self._task.result()
            raise AssertionError("the daemon ended by itself")


@contextlib.asynccontextmanager
async def stage(
    folder: Path,
    *,
    chips: int = 4,
    start: bool = True,
    own_process: bool = False,
    environment: dict[str, str] | None = None,
    times: KubeletTimes = TIMES,
    question: dict[str, str] | None = None,
    vendors: Iterable[Vendor] = VENDORS,
    **changes: Any,
) -> AsyncIterator[Stage]:
    """Yield a node whose daemon has registered; *changes* are sections of its settings.

    The times that a section does not name are those of _SETTINGS.

    At the end no program may have started on a device that somebody else had open.
    """
    node = SimulatedNode(folder / "node", chips=chips)
    (folder / "cdi").mkdir()
    settings = {
        **_soon({section: changes.get(section, {}) for section in _SETTINGS} | changes),
        "cdi": {"specDir": str(folder / "cdi")},
        "labels": {"folder": str(folder / "features.d"), **changes.get("labels", {})},
        "kubelet": {"poll": "100ms", "question": {**_QUESTION, **(question or {})}},
    }
    runtime = WatchfulRuntime(node, folder / "cdi")
    made = Stage(
        folder,
        runtime,
        settings=settings,
        times=times,
        environment=environment or {},
        own_process=own_process,
    )
    made.vendors = vendors
    async with simulated.stage.running(made):
        if start:
            made.start()
            await made.until(lambda: len(made.healthy()) == chips, "every chip to be healthy")
        yield made
        assert runtime.trespasses == []
        assert runtime.failures == []


def pod(
    name: str,
    *,
    chips: int = 1,
    uid: str | None = None,
    init: tuple[Container, ...] = (),
    restart: str = "Never",
    pull: float = 0.0,
    **work: Any,
) -> PodSpec:
    """Return a pod with one container that asks for *chips*; *work* is what it does."""
    made = PodSpec(
        name=name,
        containers=(asks(TPU, chips, **work),),
        init_containers=init,
        restart=restart,
        pull=pull,
    )
    return made if uid is None else replace(made, uid=uid)


def asks(
    resource: str, count: int, *, name: str = "main", restartable: bool = False, **work: Any
) -> Container:
    """Return a container that asks for *count* of *resource*; *work* is what it does."""
    return Container(
        name=name, limits={resource: count}, workload=Workload(**work), restartable=restartable
    )


def end(*pids: int) -> None:
    """End processes that a test owns, at once."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
