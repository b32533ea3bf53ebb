"""The claims of a story: what the scheduler allocates, and what kubelet has prepared of it."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fakes.claimrecord import claim_object
from holdfast._pb.dra.v1 import api_pb2
from holdfast.model.dra.claims import AllocatedClaim, ClaimResult
from holdfast.model.dra.resourceslice import label
from holdfast.model.ids import ClaimRef, ClaimUid, DeviceName, PodUid
from kills.kernel import Kernel
from kills.pods import Pod
from simulated.dramanager import DraError, DraManager
from simulated.draplugins import NearPlugin
from simulated.drastate import ClaimCache, ClaimInfo
from simulated.pods import Pod as SimulatedPod
from simulated.pods import PodSpec

DRIVER, NODE = "holdfast.dev", "node"
_NAMESPACE = "team"


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


class Record(ClaimCache):
    """Kubelet's record of claims, which may be lost or damaged until kubelet writes it again."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.version = 0
        """Grows with everything that happens to the file."""
        self._intact = True
        self.write()

    def find(self, claim: ClaimUid) -> ClaimInfo | None:
        return next((each for each in self.claims.values() if each.uid == claim), None)

    def keeps(self, claim: ClaimUid) -> bool:
        """Tell whether the file can be read and says that *claim* is prepared."""
        found = self.find(claim)
        return self._intact and found is not None and any(found.drivers.values())

    def users(self, claim: ClaimUid) -> frozenset[PodUid]:
        """Return the pods that use *claim*."""
        found = self.find(claim)
        return frozenset() if found is None else frozenset(map(PodUid, found.pods))

    def start(self) -> None:
        """Do as a kubelet that starts: what it cannot read is moved away for it, and is lost."""
        if not self._intact:
            self.claims.clear()
        for each in self.claims.values():
            each.prepared = False
        self.write()

    def suffer(self, *, lost: bool) -> None:
        """Let the file be lost, or damaged, until kubelet writes it again."""
        self._intact = False
        self.version += 1
        if lost:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_text("{")

    def write(self) -> None:
        super().write()
        self._intact = True
        self.version += 1


class Claims:
    """The scheduler, which goes by the API server alone, and kubelet's own manager of claims."""

    def __init__(
        self, kernel: Kernel, devices: frozenset[DeviceName], record: Path, door: Door
    ) -> None:
        self._kernel = kernel
        self._devices = devices
        self._door = door
        self._numbers = itertools.count(1)
        self.all: list[Claim] = []
        self._manager = DraManager(record.parent, objects=self._object, clock=kernel.clock)
        self._manager.cache = self.record = Record(record)
        self._manager.plugins.plugins[DRIVER] = [NearPlugin(DRIVER, self)]

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

    async def prepare(self, pod: Pod) -> bool:
        """Prepare the claims of *pod*, before it has a sandbox."""
        names = [each.ref.name for each in self._of(pod)]
        spec = PodSpec(
            name=f"pod-{pod.uid[:8]}",
            uid=pod.uid,
            namespace=_NAMESPACE,
            containers=(),
            claims={each: each for each in names},
        )
        try:
            await self._manager.prepare(SimulatedPod(spec=spec))
        except DraError:
            return False
        return True

    async def unprepare(self) -> None:
        """Unprepare what is over, again and again until it is answered without an error.

        Of what its record does not have, kubelet knows nothing.
        """
        active = {
            pod.uid
            for each in self.all
            for pod in each.pods
            if not pod.over or self._has_an_unknown_user(each)
        }
        await self._manager.unprepare_inactive(active)
        for each in [each for each in self.all if each.over]:
            if self.record.find(each.ref.uid) is None:
                if each.asked:
                    self._kernel.say(f"kubelet has done with claim {each}")
                self.all.remove(each)

    async def NodePrepareResources(self, request: Any) -> Any:  # noqa: N802 - as gRPC names it
        answer = api_pb2.NodePrepareResourcesResponse()
        for each in request.claims:
            claim = self._called(each.name)
            claim.asked = True
            if not await self._door.prepare(claim):
                answer.claims[each.uid].error = "not yet"
                continue
            for name in claim.devices:
                answer.claims[each.uid].devices.add(pool_name=NODE, device_name=label(name))
            self._kernel.say(f"claim {claim} is prepared")
            claim.granted = True
            self._kernel.complain(self._wrong_with(claim))
        return answer

    async def NodeUnprepareResources(self, request: Any) -> Any:  # noqa: N802 - as gRPC names it
        answer = api_pb2.NodeUnprepareResourcesResponse()
        for each in request.claims:
            done = await self._door.unprepare(self._called(each.name))
            answer.claims[each.uid].error = "" if done else "not yet"
        return answer

    async def _object(self, _namespace: str, name: str) -> Mapping[str, Any]:
        return claim_object(self._called(name).read())

    def _called(self, name: str) -> Claim:
        return next(each for each in self.all if each.ref.name == name)

    def _has_an_unknown_user(self, claim: Claim) -> bool:
        """Tell whether a pod is there of which kubelet's record does not say that it uses *claim*."""
        known = self.record.users(claim.ref.uid)
        return any(not pod.over and pod.uid not in known for pod in claim.pods)

    async def unprepare_one_in_use(self, lives: Callable[[Pod], bool]) -> None:
        """Unprepare by mistake what pods still use.

        From now on their runtime is their only witness. A pod that its runtime has lost, and
        kubelet by this, is nobody's as far as can be known.
        """
        used = [
            each
            for each in self.shareable()
            if each.asked
            and self.record.find(each.ref.uid) is not None
            and all(pod.over or lives(pod) for pod in each.pods)
        ]
        if not used:
            return
        claim = self._kernel.rng.choice(used)
        self._kernel.say(f"kubelet unprepares claim {claim}, which is in use")
        for each in claim.pods:
            each.forgotten = True
        claim.granted = False
        if await self._door.unprepare(claim):
            del self.record.claims[_NAMESPACE, claim.ref.name]
            self.record.write()

    def _allocate(self, devices: Sequence[DeviceName]) -> Claim:
        number = next(self._numbers)
        uid = ClaimUid(f"claim-{number}")
        claim = Claim(ref=ClaimRef(_NAMESPACE, uid, f"chips-{number}"), devices=tuple(devices))
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
