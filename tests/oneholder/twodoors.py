"""The promise by both doors: pods of the device plugin and claims, in every order, with crashes.

The world is that of `oneholder`, and claims besides: allocated by a scheduler that hands a
device on before its former pod is over, prepared again after a restart of kubelet, unprepared
before they were ever prepared, and shared by pods.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from msgspec.structs import replace

from fakes.doors import why_claim_waits
from holdfast.errors import ClaimRefusedError, LedgerError
from holdfast.model.book.book import Book, DeviceLock, LockState, Phase
from holdfast.model.book.claims import REMEMBERED, Wish, end_claim, enlist, part, share
from holdfast.model.dra.claims import ClaimResult
from holdfast.model.dra.handover import ResultDevices, placed
from holdfast.model.dra.passage import enter, of_its_own
from holdfast.model.gate.gate import Obstacle, in_the_way
from holdfast.model.ids import (
    ClaimRef,
    ClaimUid,
    DeviceId,
    DeviceName,
    HardwareKey,
    PodUid,
    ProcessId,
    ResourceName,
)
from holdfast.model.use.free import FormerPod, KernelFacts, judge_kernel
from oneholder.world import (
    CRASH,
    MOSTLY,
    REPLICA,
    REPLICAS,
    WISHES,
    Container,
    Disk,
    Killed,
    OneHolder,
    Pod,
    devices_of,
    excludes,
)

_SHARE = ClaimResult(request="r", driver="holdfast.dev", pool="node", device="card")


@dataclass
class _ClaimPod(Pod):
    claim: "_Claim | None" = None

    @property
    def live(self) -> bool:
        return self.alive or (self.claim is not None and self in self.claim.users)


@dataclass
class _Claim:
    ref: ClaimRef
    wishes: list[tuple[ResourceName, frozenset[DeviceId]]]
    users: list[_ClaimPod] = field(default_factory=list)
    """The pods that it is reserved for, since it was last unprepared."""
    left: list[_ClaimPod] = field(default_factory=list)
    """Those that it was reserved for since then, and which left it to others."""
    former: list[_ClaimPod] = field(default_factory=list)

    @property
    def pods(self) -> list[_ClaimPod]:
        return self.users + self.left + self.former

    @property
    def keys(self) -> frozenset[HardwareKey]:
        return frozenset().union(*(_keys_of(*each) for each in self.wishes))

    def wish(self) -> Wish:
        devices: dict[ResourceName, dict[DeviceId, frozenset[HardwareKey]]] = {}
        for resource, ids in self.wishes:
            devices.setdefault(resource, {}).update(devices_of(resource, ids))
        return Wish(
            ref=self.ref,
            pods={each.uid: f"name of {each.uid}" for each in self.users},
            devices=devices,
        )


class TwoDoors(OneHolder):
    prepared: ClassVar[int] = 0
    """How often a claim was, in all worlds that were tried."""

    def __init__(self) -> None:
        self.claims: list[_Claim] = []
        self.claim_pods = 0
        super().__init__()

    def _everybody(self) -> list[Pod]:
        return [*self.pods, *(pod for claim in self.claims for pod in claim.pods)]

    def _former(self, lock: DeviceLock) -> FormerPod | None:
        if lock.claim is None:
            return super()._former(lock)
        pod = next(each for each in self._everybody() if each.uid == lock.pod)
        return FormerPod(
            counted=False,
            populated=pod.alive,
            processes=(1,) if pod.alive else None,
            cgroup_seen=True,
        )

    def _everybody_who_waits_can_start_in_the_end(self) -> None:
        for claim in self.claims:
            if claim.users:
                self._unprepare(claim, None)
            for pod in claim.pods:
                self._all_exit(pod)
        self._calm()
        for _ in self._claimants():  # the pods of a claim are gone through one by one
            self.the_watcher_beats(None)
        super()._everybody_who_waits_can_start_in_the_end()
        left = [each for each in self.book.locks.values() if each.claim is not None]
        assert not left, "a claim that is over keeps a device for ever"

    def _new_pod(self, claim: _Claim) -> _ClaimPod:
        self.claim_pods += 1
        pod = _ClaimPod(uid=PodUid(f"claimant-{self.claim_pods}"), counted=False, claim=claim)
        pod.containers = [Container(resource, ids) for resource, ids in claim.wishes]
        claim.users.append(pod)
        return pod

    @rule(wishes=WISHES, shared=st.booleans())
    def a_claim_is_allocated(
        self, wishes: list[tuple[ResourceName, tuple[str, ...]]], shared: bool
    ) -> None:
        """The scheduler knows nothing of what pods that were force-deleted still have."""
        self._allocate(wishes, shared=shared)

    @rule(wishes=WISHES, shared=st.booleans(), data=st.data())
    def a_claim_is_allocated_and_prepared(
        self, wishes: list[tuple[ResourceName, tuple[str, ...]]], shared: bool, data: st.DataObject
    ) -> None:
        """The scheduler gives nothing away that another claim has, as far as it knows."""
        taken = frozenset[HardwareKey]().union(*(each.keys for each in self.claims if each.users))
        free = [each for each in wishes if taken.isdisjoint(_keys_of(*each))]
        if not free:
            return
        claim = self._allocate(free, shared=shared)
        for _ in range(data.draw(st.integers(0, 2))):
            self.the_watcher_beats(None)
        self._prepare(claim, None, None)
        for pod in claim.users:
            for each in pod.containers:
                each.opened = pod.alive and data.draw(st.booleans())

    def _allocate(
        self, wishes: list[tuple[ResourceName, tuple[str, ...]]], *, shared: bool
    ) -> _Claim:
        claim = self._allocated(
            [(resource, frozenset(map(DeviceId, ids))) for resource, ids in wishes]
        )
        for _ in range(2 if shared else 1):
            self._new_pod(claim)
        return claim

    def _allocated(self, wishes: list[tuple[ResourceName, frozenset[DeviceId]]]) -> _Claim:
        number = len(self.claims)
        ref = ClaimRef("default", ClaimUid(f"claim-{number}"), f"name-{number}")
        self.claims.append(_Claim(ref=ref, wishes=wishes))
        return self.claims[-1]

    @rule(wishes=WISHES, data=st.data())
    @precondition(lambda self: any(map(self._was_never_prepared, self.claims)))
    def a_claim_that_waits_is_allocated_other_devices(
        self, wishes: list[tuple[ResourceName, tuple[str, ...]]], data: st.DataObject
    ) -> None:
        """Its pods were force-deleted, and another one joins before kubelet is done with them."""
        claim = data.draw(st.sampled_from(list(filter(self._was_never_prepared, self.claims))))
        claim.wishes = [(resource, frozenset(map(DeviceId, ids))) for resource, ids in wishes]
        claim.left += claim.users
        claim.users = []
        self._new_pod(claim)

    def _was_never_prepared(self, claim: _Claim) -> bool:
        waits = self.book.holdings.of_claim(claim.ref.uid)
        return bool(waits and claim.users) and all(each.phase is Phase.PENDING for each in waits)

    @rule(data=st.data(), crash=CRASH, then=CRASH)
    @precondition(lambda self: any(claim.users for claim in self.claims))
    def a_claim_is_prepared(self, data: st.DataObject, crash: int | None, then: int | None) -> None:
        """For the first time; or again, as kubelet has forgotten that it was."""
        claim = data.draw(st.sampled_from([each for each in self.claims if each.users]))
        if data.draw(st.booleans()):
            self.the_watcher_beats(None)
        self._prepare(claim, crash, then)

    def _place(self, claim: _Claim) -> bool:
        """Let the replicas that *claim* is given now be what it asks for; False: none are left.

        The scheduler gives it shares of a card. Which replicas these are is decided by Prepare.
        """
        asked = [len(ids) for resource, ids in claim.wishes if resource == REPLICA]
        known = self.book.holdings.of_claim(claim.ref.uid)
        if not asked or known or any(pod.alive for pod in claim.users):
            return True
        given = [
            ResultDevices(result=replace(_SHARE, share_id=str(number)), devices=REPLICAS)
            for number in range(sum(asked))
        ]
        found = placed(given, self.book, claim.ref.uid)
        if isinstance(found, Obstacle):
            return False
        ids = frozenset(device.name.id for each in found for device in each.devices)
        others = [each for each in claim.wishes if each[0] != REPLICA]
        claim.wishes = [*others, (REPLICA, ids)]
        for pod in claim.users:
            pod.containers = [Container(*each) for each in claim.wishes]
        return True

    def _prepare(self, claim: _Claim, crash: int | None, then: int | None) -> None:
        if not self._place(claim):
            return
        wish = claim.wish()
        try:
            if self._commit(partial(enlist, wish=wish), crash) is not None:
                return
            if why_claim_waits(self.book, claim.ref.uid, wish.keys) is not None:
                return
            if not self._is_free_for(claim):
                return
            reason = self._commit(partial(enter, wish=wish, evidence="prepared"), then)
        except (Killed, LedgerError):
            return  # kubelet hears an error, and asks again
        except ClaimRefusedError:
            # Its Unprepare was committed, and kubelet has not heard the answer.
            assert self.book.claims[claim.ref.uid].over_at is not None
            return
        if reason is None:
            TwoDoors.prepared += 1
            self._nobody_else_has(claim.keys, claim.users + claim.left)
            for pod in claim.users:
                pod.alive = True
                for container in pod.containers:
                    container.passed = container.known = True

    def _is_free_for(self, claim: _Claim) -> bool:
        sharing = frozenset(each.uid for each in claim.users if len(claim.users) > 1)
        verdicts = {
            DeviceName(resource, id_): of_its_own(
                judge_kernel(KernelFacts(holders=self._holders(keys))), sharing
            )
            for resource, ids in claim.wishes
            for id_, keys in devices_of(resource, ids).items()
        }
        return not in_the_way(verdicts)

    @rule(data=st.data())
    @precondition(lambda self: any(each.alive for each in self._claimants()))
    def a_process_of_a_claim_opens_or_closes(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from([each for each in self._claimants() if each.alive]))
        for each in pod.containers:
            if each.passed:
                each.opened = data.draw(st.booleans())

    def _claimants(self) -> list[_ClaimPod]:
        return [pod for claim in self.claims for pod in claim.pods]

    @rule(data=st.data(), crash=CRASH, lingers=st.booleans())
    @precondition(lambda self: any(claim.users for claim in self.claims))
    def a_claim_is_unprepared(self, data: st.DataObject, crash: int | None, lingers: bool) -> None:
        """Prepared or not; what is left of its pods may go on for a while."""
        claim = data.draw(st.sampled_from([each for each in self.claims if each.users]))
        self._unprepare(claim, crash)
        if not lingers:
            for pod in claim.former:
                self._all_exit(pod)
        if data.draw(MOSTLY):
            self.the_watcher_beats(None)

    @rule(data=st.data(), same=st.booleans())
    @precondition(lambda self: any(each.alive for each in self._users()))
    def a_claim_is_followed_at_once_by_the_next(self, data: st.DataObject, same: bool) -> None:
        """The next has the same devices, or is the same claim for another pod."""
        first = data.draw(st.sampled_from([each for each in self._users() if each.alive]))
        claim = first.claim
        assert claim is not None
        self._unprepare(claim, None)
        for pod in [] if claim.users else claim.former:
            if data.draw(st.booleans()):
                self._all_exit(pod)
        for _ in range(data.draw(st.integers(0, 3))):
            self.the_watcher_beats(None)
        following = claim if same else self._allocated(claim.wishes)
        self._new_pod(following)
        self._prepare(following, None, None)

    def _unprepare(self, claim: _Claim, crash: int | None) -> None:
        end = partial(end_claim, claim=claim.ref.uid, evidence="over", kubelet=ProcessId(7, 7))
        try:
            self._commit(end, crash)
        except (Killed, LedgerError):
            return  # kubelet asks again, for as long as it gets no answer
        claim.former += claim.users + claim.left
        claim.users, claim.left = [], []

    @rule(data=st.data())
    @precondition(lambda self: any(each.former and not each.users for each in self.claims))
    def a_call_that_kubelet_gave_up_on_comes_late(self, data: st.DataObject) -> None:
        over = [each for each in self.claims if each.former and not each.users]
        claim = data.draw(st.sampled_from(over))
        record = self.book.claims.get(claim.ref.uid)
        if (
            record is None
            or self.hanging is not None  # what a disk took too late would come first
            or self.now - (record.over_at or self.now) >= REMEMBERED
            or record.boot != (f"boot-{self.boots}")
        ):
            return
        late = Wish(
            ref=claim.ref,
            pods={each.uid: "" for each in claim.former if each.uid in record.pods},
            devices=claim.wish().devices,
        )
        before = self.book
        with pytest.raises(LedgerError if self.disk is Disk.HANGS else ClaimRefusedError):
            self._commit(partial(enlist, wish=late), None)
        assert self.book == before

    @rule(data=st.data())
    @precondition(lambda self: any(not claim.users for claim in self.claims))
    def another_pod_uses_a_claim_that_is_over(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from([each for each in self.claims if not each.users]))
        self._new_pod(claim)

    @rule(data=st.data())
    @precondition(lambda self: any(each.alive for each in self._users()))
    def another_pod_joins_a_claim_without_a_call(self, data: st.DataObject) -> None:
        """Kubelet has the claim prepared already, so it does not ask."""
        first = data.draw(st.sampled_from([each for each in self._users() if each.alive]))
        claim = first.claim
        assert claim is not None
        record = self.book.claims[claim.ref.uid]
        if record.over_at is not None:
            return  # its Unprepare was committed, and kubelet has not heard it
        pod = self._new_pod(claim)
        pod.alive = True
        for container in pod.containers:
            container.passed = container.known = True
        self._catch_up()

    @rule(data=st.data(), exits=st.booleans())
    @precondition(lambda self: any(len(claim.users) > 1 for claim in self.claims))
    def a_pod_leaves_a_claim_that_others_use(self, data: st.DataObject, exits: bool) -> None:
        """Kubelet makes no call for it either, and what is left of the pod may go on."""
        claim = data.draw(st.sampled_from([each for each in self.claims if len(each.users) > 1]))
        pod = data.draw(st.sampled_from(claim.users))
        claim.users.remove(pod)
        claim.left.append(pod)
        uid, users = claim.ref.uid, [each.uid for each in claim.users]
        self._commit_or_log(partial(share, claim=uid, pods=users, left=[pod.uid]), None)
        if exits or not pod.alive:
            self._all_exit(pod)
            self._commit_or_log(partial(part, claim=uid, pods=[pod.uid]), None)

    def _catch_up(self) -> None:
        for claim in self.claims:
            users = [each.uid for each in claim.users]
            self._commit_or_log(partial(share, claim=claim.ref.uid, pods=users), None)

    def _users(self) -> list[_ClaimPod]:
        return [pod for claim in self.claims for pod in claim.users]

    @rule(data=st.data())
    @precondition(lambda self: any(each.alive for each in self._claimants()))
    def the_last_process_of_a_claimant_exits(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from([each for each in self._claimants() if each.alive]))
        if pod.claim is not None and pod in pod.claim.users:
            for each in pod.containers:  # its containers are restarted: it keeps what it has
                each.opened = False
        else:
            self._all_exit(pod)

    @invariant()
    def what_two_live_pods_may_touch_is_never_the_same(self) -> None:
        """But for pods that share a claim."""
        live = [pod for pod in self._everybody() if pod.live and pod.passed]
        for n, one in enumerate(live):
            for other in live[n + 1 :]:
                claim = getattr(one, "claim", None)
                if claim is None or claim is not getattr(other, "claim", None):
                    assert not excludes(one.passed, other.passed), f"{one.uid} and {other.uid}"

    @invariant()
    def what_a_live_pod_may_touch_is_locked_for_nobody_else(self) -> None:
        for pod in self.pods:
            if pod.live:
                for lock in self.book.locks_on(pod.sure):
                    assert lock.pod in {pod.uid, None}
                    assert lock.claim is None
        for claimant in self._claimants():
            assert claimant.claim is not None
            if claimant.live:
                for lock in self.book.locks_on(claimant.sure):
                    assert lock.claim == claimant.claim.ref.uid

    @invariant()
    def a_claim_that_is_over_has_nothing_that_is_held(self) -> None:
        for uid, record in self.book.claims.items():
            has = bool(self.book.holdings.of_claim(uid))
            held = any(
                lock.claim == uid and lock.state is LockState.HELD
                for lock in self.book.locks.values()
            )
            assert has is (record.over_at is None)
            assert not held or has

    @invariant()
    def whoever_has_a_claim_is_known(self) -> None:
        assert_claims_are_known(self.book)


def _keys_of(resource: ResourceName, ids: Iterable[str]) -> frozenset[HardwareKey]:
    return frozenset().union(*devices_of(resource, frozenset(map(DeviceId, ids))).values())


def assert_claims_are_known(book: Book) -> None:
    named = {each.claim for each in book.allocations.values()}
    named |= {each.claim for each in book.locks.values()}
    assert named - {None} <= book.claims.keys()
