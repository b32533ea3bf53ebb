"""A node of real processes in real cgroups: the daemon, a pod that ends, one that waits for its device, and others."""

import asyncio
import contextlib
import os
import signal
import stat
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

import simulated.stage
from fakes.stage import TIMES, TPU, Stage, WatchfulRuntime, pod
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from hostile.attack import LATER_RELEASE, LATER_START, Attack, Place, Result
from hostile.programs import Programs
from ports import free_port
from simulated.node import SimulatedNode
from simulated.pods import Container, Phase, Pod, PodSpec
from simulated.runtime import Runtime

_KUBEPODS = "kubepods.slice"
_CHIP = "/dev/accel0"
"""The device of the pod that ends, which the next one shall get."""
_ZERO = "/dev/zero"
"""The one character device of every machine that lets its memory be mapped."""
_SETTLES = 30.0
"""How long after an attack its device may stay held, in seconds."""
_BEGINS = 60.0
"""How long an attack may take to be set, in seconds."""
_LOOK = 0.02
_RECLAIM = {
    "letGoGrace": "500ms",
    "orphanGrace": "500ms",
    "termGrace": "1s",
    "killGrace": "2s",
    "retry": {"first": "1s", "last": "2s"},
    "poll": "1s",
    "releasePoll": "200ms",
    "unseenGrace": "500ms",
}


class Limits(Struct, frozen=True, kw_only=True):
    """How long others may wait, in seconds, for a start and for a release."""

    start: float
    release: float


ANY = Limits(start=60.0, release=60.0)
"""Those of the run without an attack, which tells what the others are to be."""


def limits(quiet: Result) -> Limits:
    """Return the limits on a machine on which others waited as *quiet* tells, without an attack."""
    return Limits(start=quiet.start + LATER_START, release=quiet.release + LATER_RELEASE)


def _is_marked(evidence: str, untold: str) -> bool:
    return "unverified" in evidence and untold in evidence


class CgroupNode(SimulatedNode):
    """Chips behind terminals in a folder; processes and cgroups are the kernel's own."""

    def __init__(
        self, folder: Path, cgroup: Path, share: Path, *, chips: int, mappable: bool
    ) -> None:
        """Build it below *folder*; *cgroup* is the top of a cgroup tree of version 2.

        *share* is the group of version 1 in which each pod has its share of the processors, if there
        is one. *mappable*: the first chip is a device that can be mapped, as terminals cannot.
        """
        super().__init__(folder, chips=0)
        self.root = replace(self.root, cgroup=cgroup, proc=Path("/proc"))
        self.share = share
        self.pods = cgroup / _KUBEPODS
        self.pods.mkdir(exist_ok=True)
        controllers = self.pods / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            (self.pods / "cgroup.subtree_control").write_text("+cpu")
        for number in range(chips):
            self.tree.accel(f"0000:00:{5 + number:02x}.0", number)
        self.mappable: Path | None = None
        if mappable:
            self.mappable = self.node(_CHIP)
            self.mappable.unlink()
            # Not by its own name, which no device that a pod is given has.
            rdev = Path(_ZERO).stat().st_rdev
            os.mknod(self.mappable, 0o666 | stat.S_IFCHR, rdev)
            (folder / "sys/class/accel/accel0/dev").write_text(
                f"{os.major(rdev)}:{os.minor(rdev)}\n"
            )

    def add_pod(self, uid: str) -> None:
        """Make the pod's cgroup, if it is not there."""
        self._pod(uid).mkdir(exist_ok=True)

    def enter(self, uid: str, container: str, pid: int) -> None:
        """Put a process into the container's cgroup."""
        with contextlib.suppress(ProcessLookupError):
            if self.share.exists():
                own = self.share / uid
                own.mkdir(exist_ok=True)
                (own / "cgroup.procs").write_text(str(pid))
            (self.container(uid, container) / "cgroup.procs").write_text(str(pid))

    def container(self, uid: str, container: str) -> Path:
        """Return the folder of a container's cgroup, made if it was not there."""
        folder = self._pod(uid) / f"cri-containerd-{container.encode().hex():0>64}.scope"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def lives(self, uid: str) -> bool:
        """Tell whether the kernel counts any process in the pod's cgroup."""
        try:
            return "populated 1" in (self._pod(uid) / "cgroup.events").read_text()
        except OSError:
            return False

    def remove_pod(self, uid: str) -> None:
        """Remove the pod's cgroup, unless somebody is in it again."""
        remove(self._pod(uid))

    def end(self, uid: str) -> None:
        """End everything in the pod's cgroup."""
        kill(self._pod(uid))

    def _pod(self, uid: str) -> Path:
        return self.pods / f"kubepods-pod{uid.replace('-', '_')}.slice"

    def _remove_dead(self) -> None:
        """The kernel does it."""

    def _kill(self) -> None:
        """The kernel does it."""


def kill(cgroup: Path) -> None:
    """End everything in a cgroup and below, frozen or not, if it is there."""
    with contextlib.suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1")
    for folder, _, _ in os.walk(cgroup):
        with contextlib.suppress(OSError):
            (Path(folder) / "cgroup.freeze").write_text("0")
        # The kernel's own does not reach a process whose first thread has exited.
        with contextlib.suppress(OSError):
            for pid in (Path(folder) / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


def remove(cgroup: Path) -> None:
    """Remove a cgroup and those below it, as far as nothing is in them."""
    for _, folders, _, at in os.fwalk(cgroup, topdown=False):  # no path leads to what is deepest
        for each in folders:
            with contextlib.suppress(OSError):
                os.rmdir(each, dir_fd=at)
    with contextlib.suppress(OSError):
        cgroup.rmdir()


class Witness(WatchfulRuntime):
    """A runtime that asks the kernel, at each start, what else has the device."""

    node: CgroupNode

    def __init__(self, node: CgroupNode, cdi: Path) -> None:
        super().__init__(node, cdi)
        self.attacker_holds = False
        """Whether the attacker lives and said that it has the mappable device."""
        self._former: defaultdict[str, set[str]] = defaultdict(set)
        self.asked: dict[str, float] = {}
        """When each pod's container was to be started: then all questions to plugins are answered."""

    async def start(
        self, pod: Pod, container: Container, grant: api.ContainerAllocateResponse
    ) -> None:
        self.asked[pod.uid] = time.monotonic()
        for path in self.paths(grant):
            if found := self.in_use(path, by_others_than=pod.uid):
                self.trespasses.append(f"{path}: {found}")
            self._former[path].add(pod.uid)
        await Runtime.start(self, pod, container, grant)

    def owners(self, path: str) -> set[str]:
        """Return the pods that were started on the device at *path*."""
        return self._former[path]

    def in_use(self, path: str, *, by_others_than: str = "") -> str:
        """Return what the kernel says of the device at *path*; empty: nobody has it."""
        found = []
        if any(self.node.lives(uid) for uid in self._former[path] - {by_others_than}):
            found.append("populated 1")
        if self.node.mappable == self.node.node(path):
            found += ["in use"] if self.attacker_holds else []
        elif self.node.tree.in_use(path):
            found.append("open")
        return ", ".join(found)


class Scene:
    """One attack beside one daemon."""

    def __init__(self, stage: Stage, node: CgroupNode, witness: Witness, attack: Attack) -> None:
        self.stage = stage
        self.node = node
        self.witness = witness
        self.attack = attack
        self.result = Result(attack=attack)

    async def run(self, programs: Programs, limits: Limits, port: int) -> None:
        """Let the pod end beside its attack, the next one wait for its device, and others go on."""
        first, kept, other = await self._pods()
        attacker = await self._stranger() if self.attack.place is Place.STRANGER else first
        if not await self._begin(programs, attacker, port):
            return
        self._end_first(first)
        await self.stage.until(lambda: self.attack.forced or first.stopped, "the pod to end")
        ended = time.monotonic()
        waits = await self.stage.kubelet.submit(pod("next"))
        asking = asyncio.create_task(self._ask())
        next_ran = asyncio.create_task(self._ran(waits, ended))
        await self._others(other, limits)
        self.result.kernel = self.witness.in_use(_CHIP, by_others_than=waits.uid) or "free"
        if waits.phase is Phase.RUNNING:
            self.result.kernel = "free, given to the next pod"
        self.result.unverified = await self._unverified(waits)
        asking.cancel()
        self.result.daemon = self._said(waits, await self._cancelled(next_ran))
        await self._stop(attacker, first)
        await self._settles(waits)
        if kept.phase is not Phase.RUNNING:
            self.result.held_up.append("another pod's process was ended")
        status = Path(f"/proc/{self.stage.process.pid}/status").read_text()
        peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
        if peak is None:
            raise AssertionError(f"the daemon ended by itself:\n{self.stage.log[-3000:]}")
        self.result.memory = int(peak.split()[1]) / 1024
        self.result.handed_out = "; ".join(self.witness.trespasses)
        if self.result.handed_out:
            self.result.kernel = self.result.handed_out
        if self.result.unverified:
            self.result.handed_out = ""

    async def _unverified(self, waits: Pod) -> str:
        """Return why the start of *waits* is marked, if it is for what its attack cannot hide."""
        moves = await self.stage.asked("history", limit=200) if self.attack.untold else None
        marks = [each["evidence"] for each in moves or () if each["pod"] == waits.uid]
        return next((each for each in marks if _is_marked(each, self.attack.untold)), "")

    async def _pods(self) -> tuple[Pod, Pod, Pod]:
        """Run a pod on every chip; return the one that ends, one that stays, one that others follow."""
        made = [
            await self.stage.run(pod(f"pod{number}", ignores_term=self.attack.forced))
            for number in range(self.attack.chips)
        ]
        owner = next(iter(self.witness.owners(_CHIP)))
        made.sort(key=lambda each: each.uid != owner)
        return made[0], made[1], made[2]

    async def _stranger(self) -> Pod:
        spec = PodSpec(name="stranger", containers=(Container(),))
        return await self.stage.run(spec)

    async def _begin(self, programs: Programs, attacker: Pod, port: int) -> bool:
        """Start the attack in its cgroup; tell whether it could be done here."""
        if not self.attack.run:
            return True
        nodes = [str(self.node.node(f"/dev/accel{each}")) for each in range(self.attack.nodes)]
        words = [each.format(port=port) for each in self.attack.run]
        cgroup = self.node.container(attacker.uid, "main")
        process = await asyncio.create_subprocess_exec(
            *programs.command(words),
            *nodes,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={
                **os.environ,
                "HOSTILE_CGROUP": str(cgroup),
                "HOSTILE_PROGRAMS": str(programs.folder),
                "HOSTILE_TOP": str(self.node.root.cgroup),
            },
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.node.enter(attacker.uid, "main", process.pid)
        process.stdin.write(b"!")
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _BEGINS)
        except TimeoutError:
            line = f"skip: it did not begin within {_BEGINS:g} s".encode()
        told = line.decode().strip()
        if told not in {"holds", "set"}:
            self.result.skipped = told.removeprefix("skip: ") or "it ended without a word"
        self.witness.attacker_holds = told == "holds"
        return not self.result.skipped

    def _end_first(self, first: Pod) -> None:
        grace = 3600.0 if self.attack.forced else 0.0
        self.stage.kubelet.delete(first, grace=grace, force=self.attack.forced)

    async def _ask(self) -> None:
        while self.attack.asks:
            await self.stage.asked("holders")
            await asyncio.sleep(1.0)

    @staticmethod
    async def _ran(waits: Pod, since: float) -> float:
        """Return how long after *since* the next pod ran."""
        while waits.phase is Phase.PENDING:
            await asyncio.sleep(_LOOK)
        return time.monotonic() - since

    @staticmethod
    async def _cancelled(task: asyncio.Task[float]) -> float | None:
        if task.done():
            return task.result()
        task.cancel()
        return None

    def _said(self, waits: Pod, after: float | None) -> str:
        if waits.phase is Phase.FAILED:
            return f"withheld: {waits.message[:120]}"
        if after is not None:
            return f"next pod ran after {after:.1f} s"
        told = waits.waiting.rpartition(" desc = ")[2].partition(": ")[2]
        return f"next pod waits: {told or waits.waiting}"[:180]

    async def _others(self, other: Pod, limits: Limits) -> None:
        """Start and end pods on another chip, one after another, while the attack goes on."""
        end = time.monotonic() + self.attack.seconds
        number = 0
        while await self._released(other, limits, end) and time.monotonic() < end:
            number += 1
            started = await self._started(f"other{number}", limits, end)
            if started is None:
                return
            other = started

    async def _released(self, other: Pod, limits: Limits, end: float) -> bool:
        """End a pod, and note how long its device stays locked; tell whether it became free."""
        ids = self.stage.ids(other, TPU)
        self.stage.kubelet.delete(other, grace=0.0)
        began = time.monotonic()
        await self.stage.until(lambda: other.stopped, "another pod to end")
        free = False
        while not free and time.monotonic() < max(began + limits.release + 1.0, end):
            locks = await self.stage.asked("locks")
            free = locks is not None and not any(
                row["device"].rpartition("/")[2] in ids for row in locks
            )
            await asyncio.sleep(_LOOK)
        took = time.monotonic() - began
        self.result.release = max(self.result.release, took)
        if took > limits.release:
            more = "" if free else " and more"
            self.result.held_up.append(f"another pod's release took {took:.1f} s{more}")
        return free

    async def _started(self, name: str, limits: Limits, end: float) -> Pod | None:
        """Start a pod, and note how long that waits; return it if it runs.

        Not how long its program then takes to come up, which has to share the processors with the
        attack.
        """
        began = time.monotonic()
        until = max(began + limits.start + 1.0, end)
        made = await self.stage.kubelet.submit(pod(name))
        while made.phase is not Phase.RUNNING and time.monotonic() < until:
            await asyncio.sleep(_LOOK)
            if made.phase is Phase.FAILED:
                made = await self.stage.kubelet.submit(pod(name))
        took = self.witness.asked.get(made.uid, time.monotonic()) - began
        self.result.start = max(self.result.start, took)
        if took > limits.start:
            more = "" if made.phase is Phase.RUNNING else " and more"
            self.result.held_up.append(f"another pod's start took {took:.1f} s{more}")
        return made if made.phase is Phase.RUNNING else None

    async def _stop(self, attacker: Pod, first: Pod) -> None:
        """End the attack, all of it."""
        elsewhere = self.node.root.cgroup / "hostile-elsewhere"
        for _ in range(500):
            self.node.end(attacker.uid)
            self.node.end(first.uid)
            kill(elsewhere)
            if not (self.node.lives(attacker.uid) or self.node.lives(first.uid)):
                break
            await asyncio.sleep(_LOOK)
        else:
            self.result.held_up.append("the attack could not be ended")
        self.witness.attacker_holds = False
        for _ in range(50):
            if not elsewhere.exists():
                break
            remove(elsewhere)
            await asyncio.sleep(_LOOK)

    async def _settles(self, waits: Pod) -> None:
        """See that the next pod runs once the attack is over."""
        if not self.attack.run:
            return
        began = time.monotonic()
        while waits.phase is not Phase.RUNNING and time.monotonic() < began + _SETTLES:
            await asyncio.sleep(_LOOK)
            if waits.phase is Phase.FAILED:
                await asyncio.sleep(0.5)
                waits = await self.stage.kubelet.submit(pod("next"))
        if waits.phase is not Phase.RUNNING:
            self.result.held_up.append(f"the device stayed held for {_SETTLES:g} s after")
            self.result.daemon = self._said(waits, None)


async def staged(
    attack: Attack, folder: Path, tree: tuple[Path, Path], programs: Programs, limits: Limits
) -> Result:
    """Return what comes of *attack*; nothing of it is left."""
    cgroup, share = tree
    node = CgroupNode(folder / "node", cgroup, share, chips=attack.chips, mappable=attack.mappable)
    (folder / "cdi").mkdir()
    witness = Witness(node, folder / "cdi")
    port = free_port()
    stage = Stage(
        folder,
        witness,
        settings={
            "discovery": {"rescan": "60s", "heldCheck": "1s"},
            "gate": {"wait": "1s", "poll": "250ms"},
            "reclaim": {"mode": attack.mode, **_RECLAIM},
            "http": {"port": port, "address": "127.0.0.1"},
            "cdi": {"specDir": str(folder / "cdi")},
            "labels": {"folder": str(folder / "features.d")},
            "kubelet": {
                "poll": "100ms",
                "question": {
                    "minInterval": "200ms",
                    "settle": "100ms",
                    "idleInterval": "1s",
                    "timeout": "5s",
                },
            },
        },
        times=TIMES,
        environment={},
        own_process=True,
        python=programs.daemon_starter,
    )
    scene = Scene(stage, node, witness, attack)
    try:
        async with _cleaned(node, stage), simulated.stage.running(stage):
            stage.start()
            await stage.until(
                lambda: len(stage.healthy()) == attack.chips, "every chip to be healthy"
            )
            assert "hostPID" not in stage.log, "the daemon was not shown the host's own namespaces"
            await scene.run(programs, limits, port)
    except (AssertionError, TimeoutError, OSError) as error:
        reason = (str(error) or repr(error)).partition("\n")[0]
        scene.result.held_up.append(f"the scene failed: {reason[:200]}")
    return scene.result


@contextlib.asynccontextmanager
async def _cleaned(node: CgroupNode, stage: Stage) -> AsyncIterator[None]:
    """Leave no process and no cgroup of a pod behind, whatever happens."""
    try:
        yield
    finally:
        if stage._process is not None:
            stage._process.send_signal(signal.SIGKILL)
            stage._process.wait()
        for _ in range(500):
            kill(node.pods)
            remove(node.pods)
            if not node.pods.exists():
                break
            await asyncio.sleep(_LOOK)
