"""When an Allocation is over."""

import pytest
from msgspec.structs import replace

from fakes.books import BOOT, HALF, NOW, WHOLE, X, Y, entry, seen, silicon
from holdfast.model.book import Allocation, Phase
from holdfast.model.kubelet import KubeletView
from holdfast.model.pending import AllocationFacts, over

_ALLOCATED = Allocation(
    id=1,
    resource=WHOLE,
    devices=silicon(d0="a", d1="b"),
    created_at=NOW,
    boot=BOOT,
    checkpoint_at=NOW - 5,
)
_OWN = entry(X, "d0", "d1")


def _facts(
    view: KubeletView,
    *,
    phase: Phase = Phase.PENDING,
    pod: str | None = None,
    again: bool = False,
    cgroup: bool = False,
    let_go: bool = False,
    started: bool = False,
    age: float = 0.0,
) -> AllocationFacts:
    return AllocationFacts(
        allocation=replace(_ALLOCATED, phase=phase, pod=X if pod else None),
        view=view,
        allocated_again=again,
        cgroup=cgroup,
        let_go=let_go,
        started=started,
        now=NOW + age,
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
        (_facts(seen(), age=60), "no entry of kubelet's names it 60 s after"),
        (_facts(seen(), age=600, phase=Phase.ACTIVE), "no entry of kubelet's names it"),
        (_facts(seen(entry(X, "d0", "d1", resource=HALF)), age=60), "no entry of kubelet's"),
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
        "started by an unknown caller whom kubelet never named",
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
        KubeletView(),
        KubeletView(written_at=NOW, problem="garbage"),
        seen(written_at=NOW - 5),
        seen(written_at=NOW - 500),
    ],
    ids=["never read", "unreadable", "as it was at the Allocate", "older"],
)
def test_a_kubelet_that_is_down_or_has_not_written_since_ends_nothing(
    view: KubeletView, phase: Phase, pod: str | None
) -> None:
    assert over(_facts(view, phase=phase, pod=pod, again=True, started=True, age=10_000)) is None
