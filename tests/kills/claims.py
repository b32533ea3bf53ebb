"""The claims of a story: what the scheduler allocates, and what kubelet has prepared of it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.model.dra.claims import AllocatedClaim, ClaimResult
from holdfast.model.dra.resourceslice import label
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceName
from holdfast.model.kubelet import RecordedDevice
from kills.kernel import Kernel
from kills.pods import Pod
from kills.record import Record

DRIVER, NODE = "holdfast.dev", "node"


@dataclass(eq=False, slots=True, kw_only=True)
class Claim:
    """What was allocated at once. It is over when the last of its pods is."""

    ref: ClaimRef
    devices: tuple[DeviceName, ...]
    pods: list[Pod] = field(default_factory=list)
    allocated: bool = True
    """Whether the scheduler gives its devices to nobody else."""
    asked: bool = False
    """Whether kubelet has ever asked for it to be prepared."""
    granted: bool = False
    """Whether its pods may use its devices: it was prepared, and not unprepared since."""
    lost: bool = False
    """Whether the API server does not have it, though its pods are there."""

    @property
    def over(self) -> bool:
        return all(each.over for each in self.pods)

    def read(self) -> AllocatedClaim:
        """Return what the API server has of it."""
        return AllocatedClaim(
            ref=self.ref,
            results=tuple(
                ClaimResult(request="chips", driver=DRIVER, pool=NODE, device=label(each))
                for each in self.devices
            ),
            reserved_for={each.uid: f"pod-{each.uid[:8]}" for each in self.pods if not each.over},
        )

    def __str__(self) -> str:
        return self.ref.name


class Door(Protocol):
    """What kubelet calls; False: an error, or nobody is there."""

    async def prepare(self, claim: Claim) -> bool:
        """Answer NodePrepareResources."""
        ...

    async def unprepare(self, claim: Claim) -> bool:
        """Answer NodeUnprepareResources."""
        ...


class Claims:
    """The scheduler, which goes by the API server alone, and what kubelet does with claims."""

    def __init__(self, kernel: Kernel, devices: frozenset[DeviceName], record: Path) -> None:
        self._kernel = kernel
        self._devices = devices
        self.record = Record(record)
        self._numbers = itertools.count(1)
        self._prepared: set[Claim] = set()
        """What kubelet knows to be prepared; in memory only."""
        self.all: list[Claim] = []

    def free(self) -> list[DeviceName]:
        """Return what the scheduler takes for free: a pod deleted by force has nothing for it."""
        taken = {name for each in self.all if each.allocated for name in each.devices}
        return sorted(self._devices - taken)

    def for_a_pod(self) -> list[Claim]:
        """Return one claim or two for a new pod, which may share one with a pod that is there."""
        rng, others, free = self._kernel.rng, self.shareable(), self.free()
        if others and rng.random() < 0.3:
            return [rng.choice(others)]
        rng.shuffle(free)
        sizes = rng.choice(((1,), (1,), (2,), (1, 1)))
        chosen = [[free.pop() for _ in range(min(size, len(free)))] for size in sizes]
        return [self._allocate(devices) for devices in chosen if devices]

    def shareable(self) -> list[Claim]:
        """Return the claims that one more pod can use."""
        return [each for each in self.all if each.allocated and not each.over]

    def users(self) -> list[Pod]:
        """Return the pods of one claim that have its devices, none where there is no such claim."""
        granted = [each for each in self.granted() if each.allocated]
        chosen = self._kernel.rng.choice(granted).pods if granted else []
        return [each for each in chosen if each.listed and not each.over]

    def deleted_by_force(self, pod: Pod) -> None:
        """Let the scheduler have what *pod* shares with no other pod that it knows of."""
        for each in self._of(pod):
            if not any(other.wanted or other.listed for other in each.pods):
                each.allocated = False

    def restart(self) -> None:
        """Do as a kubelet that starts: every new sandbox has its claims prepared once more."""
        self._prepared.clear()
        self.record.start()

    def on_server(self, name: str) -> Claim | None:
        """Return what the API server has: a claim goes with the last pod that it knows of."""
        known = (each for each in self.shareable() if not each.lost)
        return next((each for each in known if each.ref.name == name), None)

    def server_is_restored(self) -> None:
        """Let the API server have the state of a backup, which lacks a claim that is in use."""
        used = self.granted()
        if used:
            claim = self._kernel.rng.choice(used)
            self._kernel.say(f"the API server is restored without claim {claim}")
            claim.lost = True

    def granted(self) -> list[Claim]:
        """Return the claims whose pods have devices."""
        return [each for each in self.all if each.granted and not each.over]

    async def prepare(self, pod: Pod, door: Door) -> bool:
        """Prepare the claims of *pod*, before it has a sandbox."""
        for each in self._of(pod):
            self.record.use(each.ref, pod.uid)
            if each in self._prepared:
                continue
            each.asked = True
            if not await door.prepare(each):
                return False
            self._prepared.add(each)
            devices = tuple(RecordedDevice(NODE, label(name)) for name in each.devices)
            self.record.answered(each.ref.uid, DRIVER, devices)
            self._kernel.say(f"claim {each} is prepared for {pod}")
            each.granted = True
            self._kernel.complain(self._wrong_with(each))
        return True

    async def unprepare(self, door: Door) -> None:
        """Unprepare what is over, again and again until it is answered without an error.

        Of what its record does not have, kubelet knows nothing.
        """
        for each in list(self.all):
            if not each.over:
                for pod in each.pods:
                    if pod.over:
                        self.record.leave(each.ref.uid, pod.uid)
                continue
            self._prepared.discard(each)
            if self.record.has(each.ref.uid):
                if not await door.unprepare(each):
                    continue
                self.record.drop(each.ref.uid)
                self._kernel.say(f"claim {each} is unprepared")
            elif each.asked:
                self._kernel.say(f"claim {each} is over, and kubelet knows nothing of it")
            self.all.remove(each)

    async def unprepare_one_in_use(self, door: Door, lives: Callable[[Pod], bool]) -> None:
        """Unprepare by mistake what pods still use.

        From now on their runtime is their only witness. A pod that its runtime has lost, and
        kubelet by this, is nobody's as far as can be known.
        """
        used = [
            each
            for each in self.shareable()
            if each.asked
            and self.record.has(each.ref.uid)
            and all(pod.over or lives(pod) for pod in each.pods)
        ]
        if not used:
            return
        claim = self._kernel.rng.choice(used)
        self._kernel.say(f"kubelet unprepares claim {claim}, which is in use")
        for each in claim.pods:
            each.forgotten = True
        claim.granted = False
        if await door.unprepare(claim):
            self._prepared.discard(claim)
            self.record.drop(claim.ref.uid)

    def _allocate(self, devices: Sequence[DeviceName]) -> Claim:
        number = next(self._numbers)
        uid = ClaimUid(f"claim-{number}")
        claim = Claim(ref=ClaimRef("team", uid, f"chips-{number}"), devices=tuple(devices))
        self.all.append(claim)
        return claim

    def _of(self, pod: Pod) -> list[Claim]:
        return [each for each in self.all if pod in each.pods]

    def _wrong_with(self, claim: Claim) -> Iterator[str]:
        """Yield who else has a device of *claim*, which was just prepared.

        What cannot be seen cannot be waited for, and a pod whose sandbox is made anew has its own.
        """
        for other in self.all:
            if other.granted and other is not claim and not other.over:
                for name in set(claim.devices) & set(other.devices):
                    yield f"claim {claim} is prepared on {name.id}, which claim {other} has"
        users = tuple(f"{each.cgroup}/" for each in claim.pods)
        for name in claim.devices if not self._kernel.blind else ():
            for each in self._kernel.holders(name):
                if not f"{each.cgroup}/".startswith(users):
                    yield f"claim {claim} is prepared on {name.id}, which pid {each.id} has open"
