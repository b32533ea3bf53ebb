"""Claims on the kernel: a claim is prepared once its group can be opened, and not before."""

from vm.catalogue import case
from vm.guest.cluster import label
from vm.guest.holding import IDLE, LEAK
from vm.guest.node import GuestNode
from vm.guest.waits import wait_until
from vm.modes import CLAIMS, CLAIMS_TERMINATE, NVME


@case(daemon=CLAIMS, deadline=120, chart=None)
def case_daemon_dra_claim_waits_for_what_the_former_pod_left(node: GuestNode) -> str:
    stage, chip = node.stage, node.chips[0]
    former = node.submit_claim("former", IDLE, chips=[chip])
    former.await_running()
    assert former.functions == (chip,)
    orphan = node.leave_behind(LEAK, chip, cgroup=former.cgroup.container("orphan"))
    stage.delete(former, force=True)
    following = node.submit_claim("next", chips=[chip])
    told = following.await_refusal(f"pid {orphan.pid}")
    assert former.is_named_in(told)
    assert node.open(chip) == "EBUSY"
    wait_until(
        lambda: "taints" in stage.cluster.advertised()[label(chip)], what="the chip to be tainted"
    )
    orphan.release()
    following.await_running()
    assert following.functions == (chip,)
    assert node.open(chip) == "EBUSY"
    return f"told: {told}; prepared when the group was free"


@case(daemon=CLAIMS_TERMINATE, deadline=120, chart=None)
def case_daemon_dra_leftover_of_a_claim_is_ended_and_the_next_is_prepared(node: GuestNode) -> str:
    stage, chip = node.stage, node.chips[0]
    former = node.submit_claim("former", IDLE, chips=[chip])
    former.await_running()
    orphan = node.leave_behind(LEAK, chip, cgroup=former.cgroup.container("orphan"))
    former.await_counted()
    stage.delete(former, force=True)
    following = node.submit_claim("next", chips=[chip])
    following.await_running()
    assert not orphan.alive
    assert stage.said("signal sent")
    return (
        f"pid {orphan.pid} of the former claim's pod was ended; the next claim has {chip.address}"
    )


@case(daemon=CLAIMS, deadline=120, chart=None)
def case_daemon_dra_both_doors_on_one_node(node: GuestNode) -> str:
    stage, chip = node.stage, node.chips[1]
    function = node.give(node.pluggable)
    stage.await_health(function.address, "Healthy", NVME)
    by_plugin = node.run_pod("by-plugin", resource=NVME)
    by_claim = node.submit_claim("by-claim", chips=[chip])
    by_claim.await_running()
    assert by_plugin.functions == (function,)
    assert by_claim.functions == (chip,)
    assert {node.open(each) for each in (function, chip)} == {"EBUSY"}
    assert stage.state(function.address) == stage.state(chip.address) == "held"
    advertised = stage.cluster.advertised()
    assert set(map(label, node.chips)) <= advertised.keys()
    assert not any(function.address.replace(":", "-") in name for name in advertised)
    return f"{function.address} by the device plugin, {chip.address} by a claim"


@case(daemon=CLAIMS, deadline=120, chart=None)
def case_daemon_dra_reboot_prepares_the_claim_again(node: GuestNode) -> str:
    chip = node.chips[0]
    pod = node.submit_claim("rebooted", chips=[chip])
    pod.await_running()
    before = chip.group
    node.reboot(*node.chips[:2])  # those of the other cases with a reboot: they move back then
    pod.await_running()
    assert pod.functions == (chip,)
    assert chip.group != before
    assert node.open(chip) == "EBUSY"
    return f"{chip.address} was group {before} and is {chip.group}; its claim was prepared again"
