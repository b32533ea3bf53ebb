"""The real daemon in the guest, with the simulated kubelet: what the daemon cases play on."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from grpc.aio import AioRpcError

from forked import Template
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast.control import ask
from holdfast.errors import HoldfastError
from holdfast.ledger.readonly import read_only
from holdfast.ledger.rows import read_book
from holdfast.model.ids import PodUid
from holdfast.names import PLUGINS
from simulated.dramanager import DraManager
from simulated.kubelet import Kubelet
from simulated.pods import Container, Phase, Pod, PodSpec
from simulated.podworker import KubeletTimes
from vm import topology
from vm.guest import pods
from vm.guest.cluster import Cluster
from vm.guest.gvisor import Contained, Program, Sandbox
from vm.guest.holding import ALL, Holding
from vm.guest.pci import Function
from vm.guest.reboot import another_boot_id
from vm.guest.runtime import GuestRuntime
from vm.guest.waits import LOOK, SLOW, wait_until
from vm.guest.ways import AsChart, Daemon, Plain
from vm.modes import CHART, DRIVER, NODE, TPU, mode_of

T = TypeVar("T")

_PLUGINS = Path("/var/lib/kubelet/device-plugins")
_POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
STATE = Path("/var/lib/holdfast")
_RUN = Path("/run/holdfast")
_SPECS = Path("/var/run/cdi")
_ROOT = Path("/var/lib/kubelet")
# Only a failure meets these, also on a machine with much else to do.
_START = 600.0
_SLOW = SLOW


@dataclass(frozen=True, slots=True)
class PodOnStage:
    """A pod that was submitted, and what became of it."""

    pod: Pod
    stage: "Stage"

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def waiting(self) -> str:
        """Why it does not start yet, as its user reads it."""
        return self.pod.waiting

    @property
    def running(self) -> bool:
        return (self.uid, "main") in self.stage.runtime.running

    @property
    def main(self) -> Holding:
        """Its program, which is a process of the node."""
        return self.program("main")

    @property
    def contained(self) -> Contained:
        """Its program, which runs in its sandbox."""
        running = self.stage.runtime.running[self.uid, "main"]
        assert isinstance(running, Contained)
        return running

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox that it has now, or had last."""
        return self.stage.runtime.sandboxes[self.uid]

    @property
    def functions(self) -> tuple[Function, ...]:
        """What its main container's program was granted."""
        return self.granted("main")

    def granted(self, container: str) -> tuple[Function, ...]:
        """Return what a container's program was granted."""
        return self.stage.runtime.granted[self.uid, container]

    def program(self, container: str) -> Holding:
        """Return a container's program, the last one that was started."""
        running = self.stage.runtime.running[self.uid, container]
        assert isinstance(running, Holding)
        return running

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its devices, by kubelet's checkpoint."""
        entries = list(self.stage.kubelet.devices.entries)
        return tuple(id_ for entry in entries if entry.pod == self.uid for id_ in entry.ids)

    @property
    def cgroup(self) -> pods.Pod:
        return self.stage.runtime.cgroup(self.uid)

    def await_running(self) -> None:
        """Wait until its program has what it was granted."""
        if self.pod.phase is Phase.FAILED:
            raise AssertionError(f"{self.pod.spec.name} was refused: {self.pod.message}")
        wait_until(
            lambda: self.running, limit=_SLOW, what=f"{self.pod.spec.name} to start ({self.pod})"
        )
        assert not self.stage.runtime.failures, self.stage.runtime.failures

    def is_named_in(self, told: str) -> bool:
        """Tell whether a text names the pod: by its uid only where its name is not known."""
        return (f"/{self.pod.spec.name}" in told) is not (self.uid in told)

    def await_refusal(self, words: str) -> str:
        """Wait until its user is told *words*, and return what holdfast said."""
        wait_until(
            lambda: words in self.waiting,
            limit=_SLOW,
            what=f"{self.pod.spec.name} to be told {words!r} ({self.pod})",
        )
        assert not self.running
        return self.waiting.rpartition(" desc = ")[2]

    def await_counted(self) -> None:
        """Wait until the daemon has heard from kubelet that it counts the pod.

        Nothing that a pod left behind is ever ended if kubelet forgot it before that.
        """

        def counted() -> bool:
            record = read_only(STATE, read_book).pods.get(PodUid(self.uid))
            return record is not None and record.counted_by is not None

        wait_until(counted, limit=_SLOW, what=f"{self.pod.spec.name} to be seen counted")

    def await_seen(self) -> None:
        """Wait until the daemon has seen the pod's cgroup; else it waits reclaim.unseenGrace for it."""

        def seen() -> bool:
            record = read_only(STATE, read_book).pods.get(PodUid(self.uid))
            return record is not None and record.cgroup is not None

        wait_until(seen, limit=_SLOW, what=f"the cgroup of {self.pod.spec.name} to be seen")

    def exit(self) -> float:
        """Let its program end; return the wall time at which it was let."""
        return self.main.release()

    def await_starts(self, count: int) -> None:
        """Wait until containers of it were started *count* times, each time for good."""
        wait_until(
            lambda: self.pod.starts >= count,
            limit=_SLOW,
            what=f"{self.pod.spec.name} to have started {count} times ({self.pod})",
        )
        assert not self.stage.runtime.failures, self.stage.runtime.failures

    def await_wait_after(self, starts: int, words: str) -> str:
        """Wait until a container may not start after so many starts; return what is told."""
        wait_until(
            lambda: words in self.waiting,
            limit=_SLOW,
            what=f"{self.pod.spec.name} to be told {words!r} ({self.pod})",
        )
        assert self.pod.starts == starts
        return self.waiting.rpartition(" desc = ")[2]

    def await_over(self) -> None:
        """Wait until kubelet has seen its end."""
        wait_until(lambda: self.pod.stopped, limit=_SLOW, what=f"{self.pod.spec.name} to be over")


@dataclass(slots=True)
class Stage:
    """Kubelet, runtime and daemon. Kubelet lives as long as the guest, on a loop of its own."""

    template: Template
    """What daemons are forked from."""
    runtime: GuestRuntime = field(default_factory=lambda: GuestRuntime(_SPECS))
    chart: AsChart = field(default_factory=lambda: AsChart(_RUN))
    """The daemon's own pod, where it runs as the chart does."""
    mode: str = ""
    _daemon: Daemon | None = None
    _kubelet: Kubelet | None = None
    _cluster: Cluster | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _said: int = 0

    # --- the daemon ---------------------------------------------------------------------------

    def play(self, mode: str) -> None:
        """Have the daemon run in *mode*; the one that runs stays if it is in it."""
        self._said = self._log.stat().st_size if self._log.exists() else 0
        if self.mode == mode and (not mode or self.alive):
            return
        self.stop_daemon()
        self.mode = mode
        if mode:
            self.start_daemon()

    def start_daemon(self) -> float:
        """Start the daemon; return after how many seconds kubelet had all its lists."""
        before = self._lists()
        began = time.monotonic()
        with self._log.open("ab") as log:
            by_claims = mode_of(self.mode).by_claims
            environment = self.cluster.environment if by_claims else {}
            self._daemon = self.way.start(self.mode, environment, log)
        wait_until(
            lambda: (
                all(self._lists()[name] > before[name] for name in before)
                and self.answers
                and self.serves_claims is by_claims
            ),
            limit=_START,
            what="the daemon to register its resources and to list their devices",
        )
        return time.monotonic() - began

    @property
    def way(self) -> Plain | AsChart:
        """The way in which the daemon runs."""
        if self.mode.startswith(CHART):
            return self.chart
        return Plain(_RUN, STATE, self.template)

    @property
    def cluster(self) -> Cluster:
        """The API server, made when first asked for."""
        if self._cluster is None:
            self._cluster = Cluster(_RUN)
        return self._cluster

    @property
    def serves_claims(self) -> bool:
        """Whether kubelet has a driver that it can call for claims."""
        found = self.kubelet.dra.plugins.newest(DRIVER) if self.kubelet.dra is not None else None
        return found is not None and found.connected

    @contextlib.contextmanager
    def covered(self, file: str, other: Path) -> Iterator[None]:
        """Have the daemon find *other*, which lies in its state folder, in the place of *file*."""
        where = []
        if self.way is self.chart:
            where = ["nsenter", "--target", str(self.chart.pid), "--mount"]
        subprocess.run([*where, "mount", "--bind", str(other), file], check=True)
        try:
            yield
        finally:
            subprocess.run([*where, "umount", file], check=True)

    def probe(self, name: str) -> tuple[int, str]:
        """Return the status and the text of a probe that kubelet would make by the manifest."""
        return self.chart.probe(name)

    def _lists(self) -> dict[str, int]:
        """Return how many device lists kubelet has had of each resource."""
        names = mode_of(self.mode).resources
        return {name: len(self.kubelet.messages.get(name, ())) for name in names}

    def kill_daemon(self) -> None:
        """End the daemon as a crash does."""
        if self._daemon is not None:
            if self.alive and self.way is self.chart:
                self.chart.kill()  # whoever waits for it ends then
            else:
                self._daemon.kill()
            self._daemon.wait()

    def reboot(self, meanwhile: Callable[[], object]) -> Callable[[], None]:
        """Cut the power, do *meanwhile*, and bring kubelet, daemon and pods up again.

        Return what lets the kernel tell its true boot id again.
        """
        pods = list(self.kubelet.pods.values())
        self.call(self.kubelet.close())
        self.kill_daemon()
        wait_until(lambda: all(self.runtime.emptied(pod.uid) for pod in pods), what="all pods' end")
        self.runtime.running.clear()
        shutil.rmtree(_SPECS, ignore_errors=True)
        meanwhile()
        undo = another_boot_id(_RUN)
        self.call(self.kubelet.start())
        self.start_daemon()
        self.call(self.kubelet.readmit())
        return undo

    def stop_daemon(self) -> None:
        """End the daemon as a node does."""
        if self._daemon is not None and self.alive:
            self._daemon.terminate()
            try:
                assert self._daemon.wait(120) == 0, f"the daemon ended with {self._daemon.poll()}"
            except subprocess.TimeoutExpired:
                self.kill_daemon()
                raise

    @property
    def alive(self) -> bool:
        return self._daemon is not None and self._daemon.poll() is None

    @property
    def answers(self) -> bool:
        """Whether the daemon answers on its socket, by a loop that is not stuck."""
        with contextlib.suppress(OSError, HoldfastError):
            return bool(self.ask("status"))
        return False

    def ask(self, question: str, **details: object) -> Any:
        """Return the daemon's answer, as `holdfast QUESTION -o json` shows it."""
        return ask(STATE, question, patience=_SLOW, **details)

    @property
    def words(self) -> list[dict[str, Any]]:
        """What the daemon has logged since the case began."""
        with self._log.open("rb") as log:
            log.seek(self._said)
            lines = log.read().decode(errors="replace").splitlines()
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": line})
        return found

    @property
    def daemon_words(self) -> str:
        """The same for people, as much as is read."""
        if not self._log.exists():
            return ""
        lines = [json.dumps(word) for word in self.words]
        locks = ""
        with contextlib.suppress(OSError, HoldfastError):
            locks = json.dumps(self.ask("locks"))
        return "\n".join([*(line[:400] for line in lines[-25:]), locks])

    def said(self, event: str, **details: object) -> bool:
        """Tell whether the daemon has logged *event* with *details* since the case began."""
        return any(
            word.get("event") == event and details.items() <= word.items() for word in self.words
        )

    @property
    def _log(self) -> Path:
        _RUN.mkdir(exist_ok=True)
        return _RUN / "daemon.log"

    # --- what the daemon says of devices ------------------------------------------------------

    def state(self, device: str) -> str:
        """Return the state of a device's lock; "free" if it has none, "" if nobody says."""
        with contextlib.suppress(OSError, HoldfastError):
            rows = [row for row in self.ask("locks") if row["device"].endswith(f"/{device}")]
            states = [row["state"] for row in rows if row["state"] != "queued"]
            return states[0] if states else "free"
        return ""

    def await_state(self, device: str, *states: str) -> None:
        """Wait until the device's lock is in one of *states*."""
        wait_until(
            lambda: self.state(device) in states, limit=_SLOW, what=f"{device} to be {states}"
        )

    def device(self, device: str) -> dict[str, Any]:
        """Return what the daemon says of a device."""
        return next(row for row in self.ask("devices") if row["id"] == device)

    def holders(self, device: str) -> list[dict[str, Any]]:
        """Return the processes that the daemon sees on a device."""
        return [row for row in self.ask("holders") if row["device"].endswith(f"/{device}")]

    def await_holders(self, device: str, *pids: int) -> list[dict[str, Any]]:
        """Return `holders` once one of *pids* is among them: a look can have no time for it."""
        rows: list[dict[str, Any]] = []

        def seen() -> bool:
            rows[:] = self.holders(device)
            return any(row["pid"] in pids for row in rows)

        wait_until(seen, what=f"one of {pids} among the holders of {device}")
        return rows

    def history(self, device: str) -> list[dict[str, Any]]:
        """Return the device's moves, oldest first."""
        # Not asked for by id: a device that was unplugged has none any more.
        rows = self.ask("history", limit=200)
        return [row for row in rows if row["device"].endswith(f"/{device}")]

    def freed_after(self, device: str, since: float) -> str:
        """Wait until the device is FREE; return how many ms after wall time *since* it was."""
        frees: list[float] = []

        def freed() -> bool:
            # The next pod may have it already, so that only the history tells.
            frees[:] = [r["at"] for r in self.history(device) if r["to"] == "free"]
            return bool(frees) and frees[-1] > since

        wait_until(freed, limit=_SLOW, what=f"{device} to become FREE")
        return f"{(frees[-1] - since) * 1000:.0f} ms"

    def health(self, device: str, resource: str = TPU) -> str:
        """Return what kubelet was told of a device; "gone" if it is not listed."""
        endpoint = self.kubelet.devices.endpoints.get(resource)
        found = endpoint.devices.get(device) if endpoint is not None else None
        return found.health if found is not None else "gone"

    def await_health(self, device: str, health: str, resource: str = TPU) -> float:
        """Wait until kubelet is told *health*; return after how many seconds."""
        began = time.monotonic()
        wait_until(
            lambda: self.health(device, resource) == health,
            limit=_SLOW,
            what=f"{device} to be {health}",
        )
        return time.monotonic() - began

    # --- pods ---------------------------------------------------------------------------------

    @property
    def kubelet(self) -> Kubelet:
        """Kubelet, started when first asked for."""
        if self._kubelet is None:
            _POD_RESOURCES.parent.mkdir(parents=True, exist_ok=True)
            (_ROOT / PLUGINS).mkdir(exist_ok=True)
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
            self._kubelet = self.call(self._make_kubelet())
        return self._kubelet

    async def _make_kubelet(self) -> Kubelet:
        dra = DraManager.on_cluster(_ROOT, self.cluster.store, NODE)
        dra.watcher.look = LOOK
        kubelet = Kubelet(
            _PLUGINS,
            _POD_RESOURCES,
            self.runtime,
            times=KubeletTimes(retry_first=0.5, retry=0.5, sync=1.0, unprepare=1.0, finished=0.2),
            dra=dra,
        )
        await kubelet.start()
        return kubelet

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Have kubelet's loop do *work*."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SLOW)

    def submit(
        self,
        name: str,
        steps: Sequence[str] | Program = ALL,
        *,
        chips: int = 1,
        resource: str = TPU,
        restart: str = "Never",
        containers: Sequence[str] = ("main",),
    ) -> PodOnStage:
        """Submit a pod whose *containers* ask for *chips* each and do *steps* with them.

        If *steps* are a Program, it runs in a gVisor sandbox of its own.
        """
        self.runtime.steps[name] = steps
        wishes = tuple(Container(name=each, limits={resource: chips}) for each in containers)
        spec = PodSpec(name=name, containers=wishes, restart=restart)
        return PodOnStage(self.call(self.kubelet.submit(spec)), self)

    def submit_claim(
        self, name: str, steps: Sequence[str], *, chips: Sequence[Function]
    ) -> PodOnStage:
        """Submit a pod that has *chips* by a claim, whoever has them: so does the scheduler."""
        self.runtime.steps[name] = steps
        container = Container(name="main", claims=(("chips", ""),))
        spec = PodSpec(name=name, containers=(container,), claims={"chips": name})
        self.cluster.allocate(name, chips, pod=spec.uid)
        return PodOnStage(self.call(self.kubelet.submit(spec)), self)

    def allocate(self, resource: str, device: str) -> str:
        """Ask for a device as kubelet does, but not only if it is Healthy; return the refusal."""

        async def allocate() -> str:
            request = api.AllocateRequest()
            request.container_requests.add(devices_ids=[device])
            try:
                await self.kubelet.devices.plugin(resource).Allocate(request)
            except AioRpcError as error:
                return error.details() or ""
            return ""

        return self.call(allocate())

    def restart_kubelet(self) -> None:
        """Restart kubelet; return when it has had every list anew."""

        async def restart() -> dict[str, int]:
            await self.kubelet.stop()
            before = self._lists()  # what came just before it stopped is of the former streams
            await self.kubelet.start()
            return before

        before = self.call(restart())
        wait_until(
            lambda: all(self._lists()[name] > before[name] for name in before),
            limit=_SLOW,
            what="the daemon to register its resources with the new kubelet",
        )

    def delete(self, pod: PodOnStage, *, grace: float = 0.0, force: bool = False) -> None:
        """Have kubelet delete a pod; *force*: it forgets the pod at once."""

        async def delete() -> None:
            self.kubelet.delete(pod.pod, grace=grace, force=force)

        self.call(delete())

    def end(self, pod: PodOnStage) -> None:
        """Delete a pod, and end whatever is left of it."""
        self.delete(pod)
        wait_until(
            lambda: pod.pod.stopped and self.runtime.emptied(pod.uid),
            limit=_SLOW,
            what="the pod's end",
        )

    def settle(self) -> None:
        """Wait until nothing is left of the case's pods and every chip is offered."""
        self.runtime.failures.clear()
        if not self.mode:
            return
        try:
            wait_until(
                lambda: self.ask("locks") == [],
                limit=_SLOW,
                what="the daemon to have no lock any more",
            )
            offered = TPU in mode_of(self.mode).resources
            for address in topology.TPU_CHIPS if offered else ():
                self.await_health(address, "Healthy")
        except (AssertionError, OSError, HoldfastError):
            # The next case is to begin with a daemon that knows nothing of this one.
            self.kill_daemon()
            for file in STATE.glob("*.db*"):
                file.unlink()
            raise
