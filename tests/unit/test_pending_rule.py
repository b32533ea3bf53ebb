"""When an Allocation is over."""

import pytest
from msgspec.structs import replace

from fakes.books import (
    BEFORE,
    BOOT,
    HALF,
    NOW,
    UPTIME,
    WHOLE,
    X,
    Y,
    entry,
    seen,
    silicon,
    unreadable,
)
from holdfast.model.book.book import Allocation, Phase
from holdfast.model.book.pods import AllocationFacts, is_newer, over
from holdfast.model.ids import NO_CHECKPOINT, BootId
from holdfast.model.kubelet import KubeletView

_ALLOCATED = Allocation(
    id=1,
    resource=WHOLE,
    devices=silicon(d0="a", d1="b"),
    created_at=NOW,
    boot=BOOT,
    checkpoint=BEFORE,
    answered_at=UPTIME,
)
_OWN = entry(X, "d0", "d1")


def _facts(
    view: KubeletView,
    *,
    phase: Phase = Phase.PENDING,
    pod: str | None = None,
    again: bool = False,
    cgroup: bool = False,
    gone: bool = False,
    let_go: bool = False,
    started: bool = False,
    rebooted: bool = False,
    asked: float | None = 0.0,
    age: float = 0.0,
) -> AllocationFacts:
    return AllocationFacts(
        allocation=replace(_ALLOCATED, phase=phase, pod=X if pod else None),
        view=view,
        newer=is_newer(view, _ALLOCATED, BOOT),
        allocated_again=again,
        cgroup=cgroup,
        cgroup_gone=gone,
        let_go=let_go,
        started=started,
        rebooted=rebooted,
        asked_after_start=asked,
        age=age,
        timeout=60.0,
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (_facts(seen(_OWN)), None),
        (_facts(seen(_OWN), age=600), None),
        (_facts(seen(_OWN), age=600, pod="x"), None),
        (_facts(seen(_OWN), age=600, pod="x", cgroup=True), None),
        (_facts(seen(), age=59), None),
        (_facts(seen(), age=60), "no entry in kubelet's checkpoint names it 60 s after"),
        (_facts(seen(), age=6000, phase=Phase.ACTIVE), None),
        (_facts(seen(), age=6000, phase=Phase.ACTIVE, asked=599.0), None),
        (_facts(seen(), age=6000, phase=Phase.ACTIVE, asked=None), None),
        (_facts(seen(), age=6000, phase=Phase.ACTIVE, asked=600.0), "600 s after its start"),
        (_facts(seen(_OWN), age=6000, phase=Phase.ACTIVE, asked=6000.0), None),
        (_facts(seen(), age=6000, phase=Phase.ACTIVE, rebooted=True), "after a reboot"),
        (_facts(seen(_OWN), age=6000, phase=Phase.ACTIVE, rebooted=True), None),
        (_facts(seen(entry(Y, "d0")), phase=Phase.ACTIVE, again=True), "again, to pod pod-y"),
        (_facts(seen(entry(X, "d0", "d1", resource=HALF)), age=60), "no entry in kubelet's"),
        (_facts(seen(entry(Y, "d0")), age=1), None),
        (_facts(seen(entry(Y, "d0")), age=1, again=True), "allocated again, to pod pod-y"),
        (_facts(seen(), age=1, again=True), None),
        (_facts(seen(_OWN), age=1, again=True), None),
        (_facts(seen(_OWN, entry(Y, "d0")), age=600, again=True), None),
        (_facts(seen(), pod="x"), "no longer counts pod pod-x, which never started"),
        (_facts(seen(), pod="x", cgroup=True), None),
        (_facts(seen(), pod="x", cgroup=True, age=600), None),
        (_facts(seen(), pod="x", cgroup=True, let_go=True), "pod-x, which never started"),
        (_facts(seen(_OWN), pod="x", cgroup=True, let_go=True), None),
        (_facts(seen(), pod="x", cgroup=True, started=True), "no longer counts pod pod-x"),
        (_facts(seen(_OWN), pod="x", cgroup=True, started=True), None),
        (_facts(seen(), pod="x", phase=Phase.ACTIVE), "no longer counts pod pod-x"),
        (_facts(seen(), pod="x", phase=Phase.ACTIVE, cgroup=True), "no longer counts pod pod-x"),
        (_facts(seen(_OWN), pod="x", phase=Phase.ACTIVE), None),
        (_facts(seen(entry(X, "d9")), pod="x", phase=Phase.ACTIVE), None),
    ],
    ids=[
        "just allocated",
        "an image is pulled for ten minutes, its pod not yet known to us",
        "an image is pulled for ten minutes",
        "an image is pulled for ten minutes, the sandbox stands",
        "kubelet may still be writing",
        "kubelet refused the pod after our Allocate",
        "started by an unknown caller whom kubelet never named: it may be starting still",
        "the same, a second before no start can take so long",
        "the same, and what kubelet wrote answers no question",
        "the same, and kubelet was asked when no start can take so long",
        "started long ago, and kubelet names it",
        "started by an unknown caller before the machine rebooted",
        "started before the machine rebooted, and kubelet names it",
        "started by an unknown caller, and allocated again to another pod",
        "an entry of another resource does not name it",
        "another pod has one of the devices, nobody allocated it again",
        "another pod has one of the devices, by a younger Allocate",
        "allocated again, and kubelet has not written for whom",
        "allocated again for another container of the same pod",
        "kubelet granted twice",
        "its pod is over before it started",
        "its pod is being ended, its sandbox stands",
        "its sandbox stands long",
        "kubelet itself gave it up, its sandbox stands",
        "kubelet gave it up once and counts it again",
        "another container of its pod had started on the same hardware",
        "the same while kubelet counts it",
        "its pod is over",
        "its pod is over, a process is left",
        "its pod runs",
        "its pod is counted with other devices",
    ],
)
def test_an_allocation_is_over_only_by_kubelets_own_books(
    facts: AllocationFacts, reason: str | None
) -> None:
    said = over(facts)
    assert (said is None) if reason is None else (said is not None and reason in said)


@pytest.mark.parametrize("pod", ["x", None])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    "view",
    [
        pytest.param(KubeletView(), id="never read"),
        pytest.param(seen(file=BEFORE), id="as it was at the Allocate"),
        pytest.param(seen(file=BEFORE, read_at=UPTIME + 5000), id="the same, much later"),
        pytest.param(seen(read_at=UPTIME - 1), id="another, from before"),
        pytest.param(seen(read_at=UPTIME), id="another, whose reading began no later"),
    ],
)
def test_a_kubelet_that_is_down_or_has_not_written_since_ends_nothing(
    view: KubeletView, phase: Phase, pod: str | None
) -> None:
    assert over(_facts(view, phase=phase, pod=pod, again=True, started=True, age=10_000)) is None


@pytest.mark.parametrize(
    ("allocation", "view", "newer"),
    [
        (_ALLOCATED, seen(), True),
        (_ALLOCATED, seen(file=BEFORE), False),
        (_ALLOCATED, seen(read_at=UPTIME), False),
        (replace(_ALLOCATED, boot=BootId("boot-0"), answered_at=UPTIME + 9e6), seen(), True),
        (replace(_ALLOCATED, boot=BootId("boot-0")), seen(file=BEFORE), False),
        (replace(_ALLOCATED, checkpoint=NO_CHECKPOINT), seen(), True),
        (replace(_ALLOCATED, checkpoint=NO_CHECKPOINT), seen(file=NO_CHECKPOINT), False),
    ],
    ids=[
        "another file, read later",
        "the same file, read later",
        "another file, read before",
        "read after a reboot, whenever the Allocate was in its own boot",
        "not written since, not even after a reboot",
        "there was none at the Allocate",
        "there is none still",
    ],
)
def test_newer_is_another_file_that_was_read_later(
    allocation: Allocation, view: KubeletView, newer: bool
) -> None:
    assert is_newer(view, allocation, BOOT) is newer


_BLIND = unreadable(seen(_OWN))
_ACTIVE = Phase.ACTIVE


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (_facts(_BLIND, age=6000), None),
        (_facts(_BLIND, age=6000, phase=_ACTIVE), None),
        (_facts(_BLIND, again=True), "its devices were allocated again (unverified: "),
        (_facts(_BLIND, again=True, phase=_ACTIVE), "its devices were allocated again"),
        (_facts(_BLIND, again=True, phase=_ACTIVE, pod="x", cgroup=True), "allocated again"),
        (_facts(_BLIND, age=6000, phase=_ACTIVE, pod="x"), None),
        (_facts(_BLIND, phase=_ACTIVE, pod="x", gone=True), "the cgroup of pod pod-x is gone"),
        (_facts(_BLIND, pod="x", gone=True), "the cgroup of pod pod-x is gone (unverified: "),
        (_facts(_BLIND, phase=_ACTIVE, pod="x", cgroup=True), None),
        (_facts(_BLIND, age=6000, pod="x", cgroup=True), None),
        (_facts(_BLIND, age=6000, pod="x", cgroup=True, started=True), None),
        (_facts(_BLIND, age=6000, pod="x", cgroup=True, let_go=True), None),
    ],
    ids=[
        "an unknown pod, nothing has changed",
        "an unknown pod that started",
        "its ids were allocated again",
        "the same of one that started",
        "the same of a known pod: what is left of it is waited for",
        "a known pod whose cgroup was never seen",
        "its cgroup is gone",
        "its cgroup is gone before it started",
        "it has a cgroup",
        "its sandbox is still to be made",
        "it has a cgroup, another container had started",
        "what kubelet said before is not asked",
    ],
)
def test_while_kubelets_books_cannot_be_read_the_cgroup_and_the_next_allocate_tell(
    facts: AllocationFacts, reason: str | None
) -> None:
    said = over(facts)
    assert (said is None) if reason is None else (said is not None and reason in said)


@pytest.mark.parametrize("pod", [None, "x"])
def test_books_that_were_not_looked_at_yet_end_nothing(pod: str | None) -> None:
    """The first moments of a daemon after a reboot: any checkpoint is newer than the Allocate."""
    facts = replace(_facts(KubeletView(), pod=pod, age=6000, rebooted=True, again=True), newer=True)
    assert over(facts) is None


def test_no_cgroup_ends_an_allocation_whose_pod_is_not_known() -> None:
    facts = _facts(unreadable(), phase=Phase.ACTIVE, gone=True)
    assert over(facts) is None
    assert over(replace(facts, cgroup=True, cgroup_gone=False)) is None
