"""The daemon after a reboot that gave IOMMU groups other numbers, which the kernel really does."""

from vm.catalogue import case
from vm.guest.node import GuestNode
from vm.guest.stage import PodOnStage
from vm.modes import BY_NAME, OBSERVE


@case(daemon=OBSERVE, deadline=120)
def case_daemon_reboot_renumbers_groups_and_paths_lead_elsewhere(node: GuestNode) -> str:
    pods, told = _rebooted(node), ""
    for pod, former in pods:
        (chip,) = pod.functions  # from before: it does not start any more
        told = pod.await_refusal("delete the pod")
        assert f"promised /dev/vfio/{former}" in told
        assert f"is now /dev/vfio/{chip.group}" in told
        assert node.open(chip) == "ok"
        node.stage.end(pod)
    fresh = node.run_pod("fresh", chips=len(node.chips))
    assert set(fresh.functions) == set(node.chips)
    return f"told: {told.removeprefix('cannot start on ')}; a new pod starts"


@case(daemon=BY_NAME, deadline=120)
def case_daemon_reboot_renumbers_groups_and_names_lead_to_the_same_chip(node: GuestNode) -> str:
    pods, seen = _rebooted(node), []
    for pod, former in pods:
        (chip,) = pod.functions
        pod.await_running()
        assert pod.functions == (chip,)
        assert pod.pod.refusals == 0
        (holder,) = node.stage.await_holders(chip.address, pod.main.pid)
        assert (holder["pid"], holder["pod"]) == (pod.main.pid, pod.uid)
        assert node.open(chip) == "EBUSY"
        seen.append(f"{chip.address} was group {former} and is {chip.group}")
    return f"{', '.join(seen)}; both pods started on their own chips"


def _rebooted(node: GuestNode) -> list[tuple[PodOnStage, int]]:
    """Run two pods, reboot so that one's old group is the other's; return each with its old one."""
    pods = [node.run_pod(name) for name in ("one", "other")]
    pods.sort(key=lambda pod: pod.functions[0].address)
    chips = [pod.functions[0] for pod in pods]
    former = [chip.group for chip in chips]
    node.reboot(*chips)
    now = [chip.group for chip in chips]
    assert all(old != new for old, new in zip(former, now, strict=True)), (former, now)
    assert set(former) & set(now), "an old answer must lead to another pod's chip"
    return list(zip(pods, former, strict=True))
