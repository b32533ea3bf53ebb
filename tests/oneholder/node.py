"""A node whose one chip comes by claims, in virtual time: the daemon's real door of claims over its
real ledger and CDI folder, the simulated kubelet's DRA manager, and a scheduler.

The daemon may be killed at any statement of its ledger and around any write of a CDI spec, and its
ledger may be lost with it."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.claimrecord import claim_object
from holdfast.errors import ObjectGoneError
from holdfast.model.book.book import LockState
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    PodUid,
)
from oneholder.daemon import PlayedDaemon
from oneholder.kubelet import PlayedKubelet
from oneholder.pods import DRIVER, LABEL, NODE, POOL, PlayedPod
from oneholder.virtualtime import VirtualClock, VirtualLoop


class Broken(Exception):  # noqa: N818 - a promise, not an error of the program
    """A promise did not hold."""


class ClaimNode:
    """The node; the plays are made of its methods."""

    def __init__(
        self,
        loop: VirtualLoop,
        root: Path,
        *,
        loses_ledger: bool = False,
        looks: float = 60.0,
        reads: float = 0.0,
        pulls: float = 0.0,
    ) -> None:
        """Make it below *root*; *loses_ledger*: a daemon that is killed leaves none.

        *looks*, *reads* and *pulls* are those of an Order.
        """
        self.loop = loop
        self._loses_ledger = loses_ledger
        self.looks = looks
        self.reads = reads
        self.pulls = pulls
        self.forced = 0
        self.clock = VirtualClock(loop)
        self.root = root
        self.specs = root / "cdi"
        self.pods: list[PlayedPod] = []
        self.allocated = ""
        """The claim that the scheduler has given the chip to."""
        self.crash_in: int | None = None
        """After how many more points of its work the daemon is killed; None: it is not."""
        self.points = 0
        self.broken: list[str] = []
        self.preparing: Counter[str] = Counter()
        """For how many pods kubelet waits for each claim's Prepare."""
        self.after_deallocation: Callable[[], None] = lambda: None
        self._copies = 0
        self._tasks: set[asyncio.Task[None]] = set()
        for name in ("cdi", "kubelet"):
            (root / name).mkdir()
        node = root / NODE.removeprefix("/")
        node.parent.mkdir(parents=True)
        node.symlink_to("/dev/null")
        self.daemon = PlayedDaemon(self, self._folder())
        self.kubelet = PlayedKubelet(self, number=1)

    # The daemon.

    async def start(self) -> None:
        await self.daemon.start()
        self.kubelet.begin()

    def crash(self) -> None:
        """Kill the daemon now; it is started again 2 s later."""
        if not self.daemon.dying:
            self._dies()

    def point(self) -> None:
        """Pass one point of the daemon's work, at which it may be killed."""
        self.points += 1
        if self.crash_in is None or self.daemon.dying:
            return
        if self.crash_in == 0:
            self.crash_in = None
            self._dies()
        else:
            self.crash_in -= 1

    def _dies(self) -> None:
        folder = self._folder()
        if not self._loses_ledger:
            ignored = shutil.ignore_patterns("*-shm", "reserve")
            shutil.copytree(self.daemon.folder, folder, ignore=ignored, dirs_exist_ok=True)
        self.daemon.dying = True
        self._spawn(self._begin_again(self.daemon, folder))

    async def _begin_again(self, dead: "PlayedDaemon", folder: Path) -> None:
        await dead.end()
        await asyncio.sleep(2.0)
        self.daemon = PlayedDaemon(self, folder)
        await self.daemon.start()

    def _folder(self) -> Path:
        self._copies += 1
        folder = self.root / f"ledger-{self._copies}"
        folder.mkdir()
        return folder

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def restart_kubelet(self) -> None:
        self._spawn(self.kubelet.restart())

    async def close(self) -> None:
        await self.kubelet.end()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.daemon.dying = True
        await self.daemon.end()

    # The API server and the scheduler.

    def submit(self, pod: PlayedPod) -> None:
        self.pods.append(pod)
        self._schedule()

    def delete(self, pod: PlayedPod) -> None:
        """Delete *pod*; its object goes when kubelet says that it is over."""
        pod.deleting = True
        pod.asked.set()
        if not self.is_scheduled(pod):
            self.gone(pod)

    def force_delete(self, pod: PlayedPod) -> None:
        """Remove the object of *pod* at once; its process lives as long as it did."""
        pod.deleting = True
        pod.asked.set()
        self.gone(pod)

    def gone(self, pod: PlayedPod) -> None:
        """Remove the object of *pod*, and with the last one of a claim the claim's allocation."""
        if not pod.in_api:
            return
        pod.in_api = False
        if self.allocated and not self.reserved_for(self.allocated):
            self.allocated = ""
            self.after_deallocation()
        self._schedule()

    def reserved_for(self, claim: str) -> list[PlayedPod]:
        return [pod for pod in self.pods if pod.claim == claim and pod.in_api]

    def is_scheduled(self, pod: PlayedPod) -> bool:
        return pod.in_api and pod.claim == self.allocated

    def _schedule(self) -> None:
        """Give the chip to the claim of the pod that came first, if no other claim has it."""
        waiting = [pod for pod in self.pods if pod.in_api and not pod.deleting]
        if not self.allocated and waiting:
            self.allocated = waiting[0].claim
        for pod in waiting:
            if pod.claim == self.allocated:
                self.kubelet.admit(pod)

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Answer the daemon as the API server does."""
        pods = self.reserved_for(name)
        if not pods and name != self.allocated and all(pod.claim != name for pod in self.pods):
            raise ObjectGoneError(f"there is no claim {namespace}/{name}")
        result = ClaimResult(request="chip", driver=DRIVER, pool=POOL, device=LABEL)
        return AllocatedClaim(
            ref=ClaimRef(namespace, ClaimUid(f"uid-of-{name}"), name),
            results=(result,) if name == self.allocated else None,
            reserved_for={PodUid(pod.uid): pod.name for pod in pods if self.is_scheduled(pod)},
        )

    async def claim_object(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Answer kubelet as the API server does."""
        return claim_object(await self.claim(namespace, name))

    # What is promised.

    def starts(self, pod: PlayedPod, names: Sequence[str]) -> None:
        """Check what is promised of a container that starts now with CDI devices of *names*."""
        for other in self.pods:
            if other.claim != pod.claim and (other.holds or other.running):
                self._fail(f"{pod.name} starts on the chip that {other.name} has")
        if missing := set(names) - self._defined():
            self._fail(f"{pod.name} starts, and its CDI devices are not there: {sorted(missing)}")
        if not names:
            self._fail(f"{pod.name} starts without a CDI device")

    def prepared(self, claim: str) -> None:
        """Check what is promised of a Prepare that succeeds now."""
        for other in self.pods:
            if other.claim != claim and (other.given or other.holds):
                how = "has it open" if other.holds else "may start"
                self._fail(f"the chip is granted to {claim}, and {other.name} {how}")

    def unprepared(self, claim: str, asked_for: Collection[str]) -> None:
        """Check what is promised of an Unprepare that succeeds now."""
        for pod in self.pods:
            if pod.claim != claim or not pod.prepared:
                continue
            if pod.uid in asked_for:
                pod.prepared = False
        if self.preparing[claim]:  # kubelet asks for the pod that joined, and will hear of it
            return
        for uid in self.kubelet.recorded(claim) - set(asked_for):
            if self.kubelet.joined_at[uid] < self.loop.now - 2 * self.reads:  # it can be known
                self._fail(f"{claim} is unprepared, although {uid} joined it")

    def check(self, *, calm: bool) -> None:
        """Check what holds at any time; with *calm*, what holds once the daemon is up to date."""
        for pod in self.pods:
            if pod.prepared and not any(f"claim/{pod.claim}" in it for it in self._defined_for()):
                self._fail(f"{pod.name} is prepared, and its CDI spec is not on disk")
            if not (calm and pod.prepared and pod.running):
                continue
            locks = self.daemon.locks
            uid = ClaimUid(f"uid-of-{pod.claim}")
            if [(lock.claim, lock.state) for lock in locks] != [(uid, LockState.HELD)]:
                self._fail(f"{pod.name} runs on the chip, and the ledger says {locks}")

    def _defined(self) -> set[str]:
        found: set[str] = set()
        for file in self.specs.glob("*.json"):
            spec = json.loads(file.read_text())
            found |= {f"{spec['kind']}={each['name']}" for each in spec["devices"]}
        return found

    def _defined_for(self) -> Iterable[str]:
        names = (name.partition("=")[2] for name in self._defined())
        return [f"claim/{name.removeprefix('uid-of-').partition('-')[0]}" for name in names]

    def _fail(self, text: str) -> None:
        self.broken.append(text)
        raise Broken(text)

    async def until(self, reached: Callable[[], bool], what: str) -> None:
        """Let time pass until *reached*; fail where that takes half an hour."""
        for _ in range(360):
            if reached():
                return
            await asyncio.sleep(5.0)
            self.check(calm=False)
        self._fail(f"{what} is waited for without end: {self.daemon.locks}")
