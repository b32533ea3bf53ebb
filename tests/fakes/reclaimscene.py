"""A real Reclaimer over real processes; a test may change anything between two of its looks."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.books import BOOT, KUBELET, WHOLE, X, allocated, entry, name, silicon
from fakes.reclaimer import reclaimer
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.proc.pidfd import Pidfds
from holdfast.host.proc.procfs import Procfs
from holdfast.ledger.ledger import Ledger, open_ledger
from holdfast.model.book.book import DeviceLock, LockState, PodRecord
from holdfast.model.book.draft import Draft
from holdfast.model.book.pods import PodSighting
from holdfast.model.book.queue import settle
from holdfast.model.ids import PciAddress, PodUid, ProcessId
from holdfast.model.kubelet import KubeletView
from holdfast.model.reclaim.ending import Member
from holdfast.model.use.free import KernelFacts, ReleaseFacts
from holdfast.reclaim.pods import MayEnd, Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import ReclaimSettings
from simulated.node import adopter
from simulated.proctree import ProcTree

Hook = Callable[[], None]
_ECHOES = shutil.which("cat") or "/bin/cat"
_UNDER = 'exec 3<&0; "$0" <&3 & echo $!; exec >&-; wait'
"""Start a program, tell its pid, and stay its parent."""


def judging(judge: MayEnd) -> Callable[[], Awaitable[MayEnd]]:
    """Return a question to which *judge* is the answer each time."""

    async def asked() -> MayEnd:
        return judge

    return asked


def _nothing() -> None:
    """Do nothing."""


class _Clock:
    """The machine's clocks, which a test sets forward: both by `pass_by`, the wall by `set_wall`."""

    def __init__(self) -> None:
        self._passed = 0.0
        self.set_by = 0.0

    def pass_by(self, seconds: float) -> None:
        self._passed += seconds

    def set_wall(self, seconds: float) -> None:
        self.set_by += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._passed

    def uptime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self._passed

    def wall(self) -> float:
        return time.time() + self._passed + self.set_by

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Kernel(Cgroups):
    """Plain folders for cgroups; a write to cgroup.kill ends who is listed, as the kernel does."""

    before_kill: Hook = staticmethod(_nothing)
    before_freeze: Hook = staticmethod(_nothing)
    before_list: Hook = staticmethod(_nothing)

    def __init__(self, tree: ProcTree) -> None:
        super().__init__(tree.root)
        self.killed: list[str] = []
        self.froze: list[bool] = []

    def pod(self, uid: PodUid, *, seconds: float = 0.5) -> PodSighting | None:
        self.before_list()
        return super().pod(uid, seconds=seconds)

    def kill(self, path: str, inode: int) -> None:
        self.before_kill()
        super().kill(path, inode)
        self.killed.append(path)
        for pid in self._list(self._folder(path))[0]:
            _end(pid)

    def freeze(self, path: str, inode: int, *, frozen: bool) -> None:
        if frozen:
            self.before_freeze()
        super().freeze(path, inode, frozen=frozen)
        (self._folder(path) / "cgroup.events").write_text(f"populated 1\nfrozen {frozen:d}\n")
        self.froze.append(frozen)


class _Pods(Pods):
    """Calls `looked` with the number of the look after each look at a pod's processes."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.looks = 0
        self.looked: Callable[[int], None] = lambda _number: None

    async def members(self, pod: PodUid) -> tuple[Member, ...]:
        found = await super().members(pod)
        self.looks += 1
        self.looked(self.looks)
        return found


class _Reader:
    """Kubelet's checkpoint as a test writes them; `asked` is called when a question is asked."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self.view: Watched[KubeletView] = Watched(KubeletView())
        self.counted: tuple[PodUid, ...] = ()
        self.kubelet: ProcessId | None = KUBELET
        self.answers = True
        self.asked: Hook = _nothing
        self.write()

    def write(self) -> KubeletView:
        """Publish what kubelet would write now."""
        now = self._clock.uptime()
        self.view.set(
            KubeletView(
                entries=tuple(entry(pod, "d0") for pod in self.counted),
                readable=True,
                problem="",
                read_at=now,
                kubelet=self.kubelet,
                questions=self.view.value.questions + 1,
                asked_at=now,
                sent_at=now,
                answered=True,
            )
        )
        return self.view.value

    def count_again(self) -> None:
        """Do as kubelet does when the manifest of pod X is put back."""
        self.counted = (X,)
        self.write()

    def ask(self, reason: str) -> None:
        self.asked()

    async def refresh(self) -> KubeletView:
        return self.view.value

    async def answered_after(self, moment: float, timeout: float) -> KubeletView | None:
        self.asked()
        view = self.write()
        return view if self.answers else None


@dataclass
class Living:
    """A process that answers as long as no signal has ended it."""

    pid: int
    process: subprocess.Popen[bytes]

    @property
    def lives(self) -> bool:
        """Whether it answers: the kernel lets none go on that has a deadly signal pending."""
        to, back = self.process.stdin, self.process.stdout
        assert to is not None
        assert back is not None
        try:
            to.write(b"?\n")
            to.flush()
        except BrokenPipeError:
            return False
        return back.readline() == b"?\n"

    def end(self) -> None:
        """End it, and what it was started by."""
        _end(self.pid)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


@dataclass
class ReclaimScene:
    """Pod X is over by all evidence and has device d0; a test says in what the evidence errs."""

    folder: Path
    tree: ProcTree
    kernel: _Kernel
    clock: _Clock
    reader: _Reader
    pods: _Pods
    lane: Lane
    patience: Watched[float]
    """How long a call on the lane of the pods is waited for, in seconds."""
    pidfds: Pidfds
    ledger: Ledger
    settings: ReclaimSettings = field(default_factory=ReclaimSettings)
    own_pid: int = field(default_factory=os.getpid)
    gaps: tuple[str, ...] = ()
    unread: frozenset[int] = frozenset()
    """The processes that the gaps are about."""
    started: list[Living] = field(default_factory=list)
    _reclaimer: Reclaimer | None = None

    def folder_of(self, pod: PodUid = X) -> Path:
        return self.tree.root.cgroup / f"kubepods/pod{pod}"

    def make_pod(self, pod: PodUid = X, *, files: tuple[str, ...] = ("cgroup.kill",)) -> int:
        """Make the pod's cgroup with one container; return its inode."""
        container = self.folder_of(pod) / "main"
        container.mkdir(parents=True)
        (container / "cgroup.procs").write_text("")
        (self.folder_of(pod) / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        for file in files:
            (self.folder_of(pod) / file).write_text("")
        return self.folder_of(pod).stat().st_ino

    def start(
        self, command: str = "python", *, pod: PodUid | None = X, deaf: bool = False
    ) -> Living:
        """Start a real orphan called *command* in *pod*'s cgroup; *deaf*: it ignores SIGTERM."""
        deafen = "trap '' TERM; " if deaf else ""
        made = self._shell("/bin/sh", f'exec 3<&0; {{ {deafen}exec "$0" <&3; }} & echo $!', command)
        made.process.wait()  # only then is it an orphan
        self.show(made.pid, pod)
        return made

    def start_under(self, parent: str) -> Living:
        """Start a process in pod X whose parent, outside of it, is called *parent*."""
        made = self._shell(str(self._program(parent, "/bin/sh")), _UNDER, "python")
        self.show(made.process.pid, None)
        self.show(made.pid, X)
        return made

    def start_family(self, parent: str) -> Living:
        """Start an orphan in pod X called *parent*, and return a child of it in the pod."""
        above = str(self._program(parent, "/bin/sh"))
        made = self._shell("/bin/sh", 'exec 3<&0; "$1" -c "$2" "$0" <&3 &', "python", above, _UNDER)
        made.process.wait()
        elder = int(Path(f"/proc/{made.pid}/stat").read_text().rpartition(")")[2].split()[1])
        self.show(elder, X)
        self.show(made.pid, X)
        return made

    def live_apart(self, pid: int) -> None:
        """Let a process that is shown be in a mount namespace of its own, as containers are."""
        namespaces = self.tree.root.proc / str(pid) / "ns"
        namespaces.unlink()
        namespaces.mkdir()
        (namespaces / "mnt").symlink_to("mnt:[4026539999]")

    def _shell(self, shell: str, script: str, command: str, *more: str) -> Living:
        process = subprocess.Popen(
            [shell, "-c", script, str(self._program(command, _ECHOES)), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        made = Living(pid=int(process.stdout.readline()), process=process)
        self.started.append(made)
        assert made.lives
        return made

    def show(self, pid: int, pod: PodUid | None) -> None:
        """Let a real process be seen, in *pod*'s cgroup."""
        home = self.tree.root.proc / str(pid)
        if not home.exists():
            self.tree.real(pid)
        if pod is not None:
            self.enter(pid, pod)

    def enter(self, pid: int, pod: PodUid = X) -> None:
        """Move a process into *pod*'s cgroup."""
        with (self.folder_of(pod) / "main/cgroup.procs").open("a") as procs:
            procs.write(f"{pid}\n")

    def leave(self, pid: int, pod: PodUid = X) -> None:
        """Move a process out of *pod*'s cgroup."""
        procs = self.folder_of(pod) / "main/cgroup.procs"
        kept = [line for line in procs.read_text().split() if line != str(pid)]
        procs.write_text("".join(f"{line}\n" for line in kept))

    def replace_cgroup(self) -> None:
        """Let pod X's cgroup be a later one of the same name, with the same processes in it."""
        folder = self.folder_of(X)
        former = folder.with_name(f"former-{time.monotonic_ns()}")
        folder.rename(former)  # kept, so that its inode is not given away again
        shutil.copytree(former, folder)

    @property
    def lock(self) -> DeviceLock:
        return self.ledger.book.value.locks[name("d0")]

    def record(self) -> PodRecord:
        return self.ledger.book.value.pods[X]

    async def note(self, **changes: Any) -> None:
        """Change what the ledger has of pod X."""
        await self.change(lambda draft: draft.note_pod(replace(draft.book.pods[X], **changes)))

    async def change(self, decide: Callable[[Draft], object]) -> None:
        await self.ledger.apply(decide)
        await asyncio.sleep(0)

    async def beat(self) -> None:
        """Do what the watcher does for a lock whose device is not free."""
        kernel = KernelFacts(
            enabled=(PciAddress("0000:00:05.0"),),
            holders=(),
            gaps=self.gaps,
            unread=self.unread,
            of_unread=self.gaps if self.unread else (),
        )
        lock = self.ledger.book.value.locks.get(name("d0"))
        if lock is not None and lock.pod is not None:
            self.reclaimer._looked.clear()  # which holds no longer than beats are apart
            await self.reclaimer.step(
                lock, ReleaseFacts(kernel=kernel, unseen_grace=30.0), "it is held"
            )
            await asyncio.sleep(0)

    async def wait_long(self) -> None:
        """Let all graces pass, from the first look on to SIGKILL and beyond."""
        await self.beat()
        self.clock.pass_by(100.0)
        for _ in range(5):
            await self.beat()
            self.clock.pass_by(10.0)

    @property
    def reclaimer(self) -> Reclaimer:
        if self._reclaimer is None:
            self._reclaimer = reclaimer(
                ledger=self.ledger,
                reader=self.reader,
                pods=self.pods,
                clock=self.clock,
                settings=Watched(self.settings),
                own_pid=self.own_pid,
            )
        return self._reclaimer

    def _program(self, command: str, like: str) -> Path:
        """Return a program that the kernel calls *command*."""
        program = self.folder / "bin" / command
        program.parent.mkdir(exist_ok=True)
        if not program.exists():
            shutil.copy(like, program)
        return program


@contextlib.asynccontextmanager
async def reclaim_scene(
    folder: Path, *, files: tuple[str, ...] = ("cgroup.kill",)
) -> AsyncIterator[ReclaimScene]:
    """Yield the scene: pod X, its cgroup with *files*, its device's lock RELEASING."""
    tree, clock = ProcTree(folder), _Clock()
    (tree.root.cgroup / "cgroup.controllers").write_text("")
    kernel, procfs = _Kernel(tree), Procfs(tree.root)
    tree.process(adopter(), comm="systemd", ppid=0, started=0)
    patience = Watched(20.0)
    lane, writes = Lane("pods", deadline=patience), Lane("ledger", deadline=20.0)
    pidfds = Pidfds(procfs)
    (folder / "state").mkdir()
    ledger = await open_ledger(folder / "state", writes, clock=clock, boot=BOOT, locks=())
    pods = _Pods(
        cgroups=kernel,
        runtimes=RuntimeFiles(tree.root),
        procfs=procfs,
        pidfds=pidfds,
        lane=lane,
        ledger=ledger,
    )
    made = ReclaimScene(
        folder=folder,
        tree=tree,
        kernel=kernel,
        clock=clock,
        reader=_Reader(clock),
        pods=pods,
        lane=lane,
        patience=patience,
        pidfds=pidfds,
        ledger=ledger,
    )
    try:
        await _end_pod(made, made.make_pod(files=files))
        yield made
    finally:
        for each in made.started:
            each.end()
        pidfds.close()
        await ledger.close()
        lane.close()
        writes.close()


async def _end_pod(made: ReclaimScene, inode: int) -> None:
    def decide(draft: Draft) -> None:
        allocation = allocated(silicon(d0="a"), resource=WHOLE, pod=X, active=True)(draft)
        settle(draft)
        draft.note_pod(
            PodRecord(
                uid=X,
                boot=BOOT,
                cgroup=f"/kubepods/pod{X}",
                inode=inode,
                counted_by=KUBELET,
                let_go_at=draft.uptime,
                counted_boot=BOOT,
            )
        )
        draft.end(next(iter(draft.book.allocations.values())), "its pod is over")
        assert allocation is not None

    made.clock.pass_by(60.0)  # what is started from here on is older than the pod's end
    await made.change(decide)
    made.clock.pass_by(-60.0)
    assert made.lock.state is LockState.RELEASING


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
