"""What the daemon finds out of claims by itself: from kubelet's record and the API server."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

from holdfast.allocation.allocator import GrantBuilder
from holdfast.discovery.source import Sources
from holdfast.dra.records import EVERY, ClaimRecords, ClaimSight
from holdfast.dra.specs import ClaimSpecs
from holdfast.errors import ApiServerError, ObjectGoneError
from holdfast.ledger.ledger import Ledger
from holdfast.model.devices import Device, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice, plain
from holdfast.model.dra.claims import AllocatedClaim
from holdfast.model.ids import PodUid
from holdfast.runtime.watched import Watched
from kills.claims import DRIVER, NODE, Claim
from kills.edges import InlineLane, MemoryCgroups
from kills.kubelet import Kubelet, Reader


class Server:
    """The API server, which takes its time to answer."""

    def __init__(self, kubelet: Kubelet, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._kubelet = kubelet
        self._meanwhile = meanwhile

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        await self._meanwhile()
        if not self._kubelet.api:
            raise ApiServerError("cannot ask the API server: nobody answers")
        found = self._kubelet.claims.on_server(name)
        if found is None:
            raise ObjectGoneError(f"there is no claim {namespace}/{name}")
        return found.read()


class ClaimSide(ClaimSight):
    """Takes claims over and ends those that are lost, at the times at which the daemon does."""

    def __init__(
        self,
        kubelet: Kubelet,
        *,
        ledger: Ledger,
        inventory: Inventory,
        claimed: Collection[Device],
        specs: ClaimSpecs,
        lane: InlineLane,
        meanwhile: Callable[[], Awaitable[None]],
        reader: Reader,
    ) -> None:
        """Find *claimed*, the devices that come by claims; *reader* knows which kubelet runs."""
        self._claims = kubelet.claims
        self._claimed = claimed
        self._ledger = ledger
        self._clock = kubelet.kernel.clock
        self._seen = -1
        self._due = self._clock.monotonic() + EVERY
        self._cgroups = MemoryCgroups(kubelet.kernel, lane)
        self.records = ClaimRecords(
            driver=DRIVER,
            pool=NODE,
            file=self._claims.record.path,
            claims=Server(kubelet, meanwhile),
            ledger=ledger,
            inventory=Watched(inventory),
            sight=self,
            specs=specs,
            granting=GrantBuilder(Sources(), None),
            lane=lane,
            written=Watched(0),
            kubelet=lambda: reader.view.value.kubelet,
            clock=self._clock,
        )

    async def turn(self) -> None:
        """Do what is due."""
        if self._claims.record.version != self._seen:
            self._seen = self._claims.record.version
            await self.records.catch_up()
        if self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + EVERY
            await self.records.compare()

    def wrong(self) -> Iterator[str]:
        """Yield what the ledger lacks of the claims whose pods have devices."""
        book = self._ledger.book.value
        for each in self._claims.granted():
            uid = each.ref.uid
            record = book.claims.get(uid)
            if record is not None and record.over_at is not None:
                if self._is_somewhere(each):  # and kubelet has not unprepared it
                    yield f"claim {each} is over for the ledger, and its pods have it"
                continue
            if not self._claims.record.keeps(uid):
                continue
            locks = [lock for lock in book.locks.values() if lock.claim == uid and lock.started]
            for name in sorted(set(each.devices) - {lock.device for lock in locks}):
                yield f"claim {each} has {name.id}, and the ledger does not know it"
            known = frozenset[PodUid]() if record is None else record.pods
            for pod in sorted(self._claims.record.users(uid) - known):
                yield f"claim {each} is used by pod {pod[:8]}, and the ledger does not know it"

    def kept_for_nobody(self) -> Iterator[str]:
        """Yield each claim that is over, and that the ledger was to find out about by now."""
        known = {each.ref.uid for each in self._claims.all}
        for record in self._ledger.book.value.claims.values():
            seen = any(self._cgroups.pod(pod) is not None for pod in record.pods)
            if record.over_at is None and record.ref.uid not in known and not seen:
                yield f"claim {record.ref.name} is over, and the ledger keeps it"

    def _is_somewhere(self, claim: Claim) -> bool:
        """Tell whether kubelet, the API server or a cgroup shows that *claim* is not over."""
        return (
            self._claims.record.find(claim.ref.uid) is not None
            or self._claims.on_server(claim.ref.name) is claim
            or any(self._cgroups.pod(pod.uid) is not None for pod in claim.pods if not pod.over)
        )

    def known(self) -> Mapping[str, AdvertisedDevice]:
        """Return what the scheduler knows of."""
        return {told.name: told for told in map(plain, self._claimed)}

    async def with_cgroup(self, pods: Collection[PodUid]) -> Mapping[PodUid, bool]:
        """Return those of *pods* that have one, with whether it has processes."""
        found = {each: self._cgroups.pod(each) for each in pods}
        return {pod: each.populated is not False for pod, each in found.items() if each}
