"""Which pods kubelet counts: follows its checkpoint, and asks for its own list of pods."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import structlog
from msgspec.structs import replace

from holdfast.errors import HoldfastError, KubeletError
from holdfast.host.files.wholefile import FileId
from holdfast.host.proc.pidfd import peer_of
from holdfast.host.proc.procfs import Procfs
from holdfast.kubelet.checkpoint import CheckpointState, Contents, FileLook, Promises, read
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.podresources import PodResources, Traffic
from holdfast.model.book.book import Book
from holdfast.model.ids import PodUid, ProcessId, ResourceName
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.model.node.readiness import ReadinessCheck
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Nudges, Watched, pause
from holdfast.settings.sections import QuestionSettings

log = structlog.get_logger(__name__)


class KubeletReader(Protocol):
    """What kubelet has written down, as far as others need to know it."""

    view: Watched[KubeletView]
    """The published view."""

    def ask(self, reason: str) -> None:
        """Ask kubelet soon which pods it counts; *reason* is for the log."""

    async def refresh(self) -> KubeletView:
        """Read the checkpoint now, and return the view with it; raise LaneStuckError."""

    async def answered_after(self, moment: float, timeout: float) -> KubeletView | None:  # noqa: ASYNC109
        """Ask, and return the view of a question that began after *moment*; None: no answer.

        *moment* is in seconds since the machine booted; the answer has *timeout* seconds to come.
        """


class DeviceLists(Protocol):
    """The lists of devices that kubelet is sent, and writes its checkpoint at each of."""

    @property
    def silent(self) -> bool:
        """Whether no pod has our devices by the device plugin, and none is offered.

        Then kubelet's checkpoint need be neither there nor written to name none.
        """

    async def ready(self) -> None:
        """Return once there is a list to send, or none is to come; else nothing is written."""

    def resend(self) -> None:
        """Send every list once more."""


CALM = 0.05
"""Seconds; see `ViewReader`."""
_LAST_DELAY = 30.0
"""The longest wait in seconds before a question that failed is asked again."""


@dataclass(kw_only=True, eq=False)
class ViewReader(KubeletReader):
    """Publishes `view`, and completes the questions that `ask` requests.

    A question is: List, by which kubelet drops the pods that are over; send the unchanged devices
    once more, by which kubelet writes its checkpoint; read it. It counts only when the same
    kubelet answered from beginning to end.

    It asks `pods`, and never while `traffic` has an Allocate in flight. While `book` has locks, the
    slow questions are worth asking. The checkpoint is read, with `promises`, and kubelet's socket
    dialled, on `lane`. No Allocate may be under way for `calm` seconds before List, nor kubelet
    write for as long afterwards.
    """

    view: Watched[KubeletView]
    folder: FolderWatch
    pods: PodResources
    traffic: Traffic
    procfs: Procfs
    lists: DeviceLists
    book: Watched[Book]
    promises: Promises
    lane: Lane
    clock: Clock
    settings: Watched[QuestionSettings]
    calm: float = CALM

    def __post_init__(self) -> None:
        self._wanted: Watched[tuple[str, ...]] = Watched(())
        self._read: FileId | None = None
        self._missing = False
        self._asking = False
        self._problem = Problem(log, "cannot ask kubelet for its pods")
        self._resent_at = float("-inf")
        self._written_by_others = Nudges()

    @property
    def missing(self) -> bool:
        """Tell whether no checkpoint is there, as on a node that never ran a pod with a device.

        One that has come since the last look is there: to read it may take long.
        """
        return self._missing and self.folder.state.value.checkpoint is None

    def ask(self, reason: str) -> None:
        """Ask soon; *reason* is for the log. Requests made before the question begins are one."""
        self._wanted.set(tuple(dict.fromkeys((*self._wanted.value, reason))))

    async def refresh(self) -> KubeletView:
        """Do as `KubeletReader` says, unless the checkpoint is the one already read."""
        known = self._read
        look = await self.lane.run(lambda: self._look(known))
        if look is not None:
            self._took_note(look)
        return self.view.value

    async def answered_after(self, moment: float, timeout: float) -> KubeletView | None:  # noqa: ASYNC109
        """Do as `KubeletReader` says."""
        if self.view.value.asked_at <= moment:
            self.ask("an answer is waited for")
        try:
            async with asyncio.timeout(timeout):
                return await self.view.until(lambda view: view.readable and view.asked_at > moment)
        except TimeoutError:
            return None

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether kubelet's checkpoint can be read.

        A node that never ran a pod with a device has none, which is no reason to be unready.
        """
        view = self.view.value
        passes = view.readable or self.missing
        yield ReadinessCheck(name="kubelet checkpoint", passes=passes, reason=view.problem)

    async def run(self) -> None:
        """Follow the checkpoint and ask questions until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_file(), name="checkpoint")
            group.create_task(self._ask_when_settled(), name="questions after a write")
            group.create_task(self._ask_when_idle(), name="questions at leisure")
            group.create_task(self._answer_wishes(), name="questions")

    async def _follow_file(self) -> None:
        async for _state in self.folder.state.follow():
            delays = backoff(self.settings.value.min_interval, _LAST_DELAY)
            while not await self._has_looked():
                await self.clock.sleep(next(delays))

    async def _has_looked(self) -> bool:
        try:
            await self.refresh()
        except HoldfastError as error:
            self._note_problem(str(error))
            self._read = None  # so that the next look says again what is wrong with the same file
            return False
        return True

    async def _ask_when_settled(self) -> None:
        seen = 0
        while True:
            writes = await self._written_by_others.until(seen.__ne__)
            await pause(self.clock, self.settings, lambda settings: settings.settle)
            seen = writes
            self.ask("kubelet wrote its checkpoint")

    async def _ask_when_idle(self) -> None:
        while True:
            questions = self.view.value.questions
            await pause(self.clock, self.settings, lambda settings: settings.idle_interval)
            if self.book.value.locks and self.view.value.questions == questions:
                self.ask("locks are held")

    async def _answer_wishes(self) -> None:
        delays = backoff(self.settings.value.min_interval, _LAST_DELAY)
        while True:
            await self._wanted.until(bool)
            await self.lists.ready()
            reasons = self._wanted.value
            began = self.clock.monotonic()
            try:
                await self._question()
            except HoldfastError as error:
                self._problem.set(str(error), asked_because=reasons)
                self._note_problem(str(error))
                self.ask("the last question was not answered")
                retry = next(delays)
            else:
                self._problem.set("")
                log.debug("kubelet listed its pods", asked_because=reasons)
                delays = backoff(self.settings.value.min_interval, _LAST_DELAY)
                retry = 0.0
            finally:
                self._asking = False
            await self.clock.sleep(retry)
            await pause(self.clock, self.settings, lambda now: now.min_interval, since=began)

    async def _question(self) -> None:
        kubelet = await self.lane.run(self._peer)
        async with self.pods.connected() as list_pods:
            await self.traffic.quiet(self.clock, seconds=self.calm)
            # Nothing is awaited from here to List: an Allocate that came in between would be in
            # flight, and kubelet may forget its answer (kubernetes#137534).
            self._wanted.set(())
            self._asking = True
            known = _owners(self.view.value.entries)
            began = self.clock.uptime()
            pods = await list_pods()
        sent_at, silent = self.clock.uptime(), self.lists.silent
        if not silent:
            before = await self._file()
            self._resent_at, sent_at = self.clock.monotonic(), self.clock.uptime()
            self.lists.resend()
            await self._written_since(before)
        # One call, and no wait before it is published: a look that somebody else takes meanwhile
        # would be newer, and a view that goes back in time lacks the pods that came since.
        look, answered_by = await self.lane.run(lambda: (self._read_now(), self._peer()))
        if answered_by != kubelet:
            raise KubeletError("cannot ask kubelet for its pods: it was replaced meanwhile")
        if not self._is_answer(look) or silent is not self.lists.silent:
            self._took_note(look)
            raise KubeletError(look.problem)
        was = self.view.value
        came = _owners(look.contents.entries) - known
        self._read = look.file
        self.view.set(
            KubeletView(
                entries=look.contents.entries,
                readable=True,
                problem="",
                file=look.id,
                read_at=look.read_at,
                kubelet=kubelet,
                questions=was.questions + 1,
                asked_at=began,
                sent_at=sent_at,
                answered=True,
                # One that came while we asked may have the devices of one that List still named.
                pods=() if came else pods,
                registered=look.contents.registered,
            )
        )
        if came:
            self._written_by_others.nudge()

    def _is_answer(self, look: FileLook[Contents]) -> bool:
        missing = look.state is CheckpointState.MISSING and self.lists.silent
        return look.state is CheckpointState.READ or missing

    def _peer(self) -> ProcessId | None:
        return peer_of(self.folder.kubelet_socket, self.procfs)

    def _look(self, known: FileId | None) -> FileLook[Contents] | None:
        """Return what the checkpoint says; None when it is still the one called *known*."""
        if known is not None and FileId.of(self.folder.checkpoint) == known:
            return None
        return self._read_now()

    def _read_now(self) -> FileLook[Contents]:
        # Taken before: what is read is at least as new as that.
        moment = self.clock.uptime()
        return replace(read(self.folder.checkpoint, self.promises), read_at=moment)

    async def _file(self) -> FileId | None:
        return await self.lane.run(lambda: FileId.of(self.folder.checkpoint))

    async def _written_since(self, before: FileId | None) -> None:
        """Return when kubelet has written its checkpoint, and writes no more for the moment.

        Each resource's message makes it write once, and a write that was under way already may
        be the first that we see.
        """
        began = changed = self.clock.monotonic()
        seen = before
        while True:
            changes = Changes([self.folder.state, self.settings])
            end = began + self.settings.value.timeout
            file, now = await self._file(), self.clock.monotonic()
            if file != seen:
                seen, changed = file, now
            written = file is not None and file != before
            due = min(end, changed + self.calm) if written else end
            if now >= due:
                break
            await changes.wait(due - now)
        if not written:
            raise KubeletError(
                "cannot learn from kubelet which pods it counts: it has not written "
                f"{self.folder.checkpoint} within {self.settings.value.timeout:g} s after our "
                "devices were sent; is a stream open for each resource?"
            )

    def _took_note(self, look: FileLook[Contents]) -> None:
        """Publish what a look at the file showed, whoever made kubelet write it."""
        was = self.view.value
        self._read, self._missing = look.file, look.state is CheckpointState.MISSING
        seen = replace(was, file=look.id, read_at=look.read_at)
        if not self._is_answer(look):
            if was.unreadable and (was.problem, was.file) == (look.problem, look.id):
                return  # that it was tried again is no news to judge starts and locks by
            # What it said last is kept for those who must not act on less; `readable` says so.
            self.view.set(replace(seen, readable=False, answered=False, problem=look.problem))
            return
        same = set(look.contents.entries) == set(was.entries)
        self.view.set(
            replace(
                seen,
                entries=was.entries if same else look.contents.entries,
                readable=True,
                problem=was.problem if was.readable else "",
                answered=was.answered and same,
                registered=look.contents.registered,
            )
        )
        ours_and_late = same and (
            self.clock.monotonic() - self._resent_at
            < self.settings.value.timeout + self.settings.value.settle
        )
        if not self._asking and not ours_and_late:
            self._written_by_others.nudge()

    def _note_problem(self, problem: str) -> None:
        self.view.set(replace(self.view.value, problem=problem))


def _owners(entries: tuple[CheckpointEntry, ...]) -> set[tuple[PodUid, ResourceName]]:
    return {(entry.pod, entry.resource) for entry in entries}
