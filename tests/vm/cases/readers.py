"""What holdfast's readers make of the real kernel: discovery, the scan for holders, uevents."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fakes.tpus import plain_tpus
from holdfast.discovery.scanner import take_inventory
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.pci.sysfs import Snapshot
from holdfast.host.pci.udev import Uevents
from holdfast.host.pci.vfio import exclusive_open
from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.model.devices import Device, DeviceNode, FaultKind, Inventory
from holdfast.model.ids import DeviceId, DeviceName, PodUid, ResourceName
from holdfast.model.tpu.generations import TPU_RESOURCE
from holdfast.model.use.holders import DeviceAccess, Scan, ScanTarget
from holdfast.model.vfio import PoolSpec
from holdfast.vendors.vfio.adapter import Pools
from vm.catalogue import case
from vm.guest.capabilities import give_up
from vm.guest.holding import (
    ALL,
    FORKED,
    IN_FLIGHT,
    LEAK,
    MAPPED,
    NODE_ONLY,
    ZOMBIE_LEADER,
)
from vm.guest.node import GuestNode
from vm.guest.pci import Function
from vm.guest.waits import wait_until
from vm.topology import EDU
from waiting import until

ROOT = HostRoot.under()
POOL = ResourceName("example.com/pool")


def case_discovery_finds_the_chips(node: GuestNode) -> str:
    found = _inventory().of(TPU_RESOURCE)
    chips = {device.name.id: device for device in found}
    seen = [chips[DeviceId(chip.address)] for chip in node.chips]
    assert all(device.healthy and device.model == "v5e" for device in seen), seen
    rdevs = [device.nodes[0].rdev for device in seen]
    assert rdevs == [chip.node.stat().st_rdev for chip in node.chips]
    twin = chips[DeviceId("0000:00:0a")]
    assert [fault.kind for fault in twin.faults][:1] == [FaultKind.NO_DRIVER]
    return f"4 healthy v5e in order {[d.name.id for d in seen]}; unbound 7x chip: {twin.faults[0].text}"


def case_discovery_pairs_the_functions_of_a_chip(node: GuestNode) -> str:
    for function in node.twin:
        node.give(function)
    with node.split() as halves:
        for function in halves:
            function.bind()
        inventory = _inventory()
        one = _device(inventory, "0000:00:0a")
        two = _device(inventory, halves[0].address[:-2])
        assert (len(one.nodes), len(one.functions), one.faults) == (1, 2, ())
        assert (len(two.nodes), len(two.functions), two.faults) == (2, 2, ())
    return f"{one.name.id}: 2 functions, 1 group; {two.name.id}: 2 functions, 2 groups; one device each"


def case_discovery_takes_a_group_with_a_bridge(node: GuestNode) -> str:
    function = node.give(node.bridged)
    device = _device(_inventory((EDU,)), function.address)
    assert device.healthy, device.faults
    assert device.functions == (function.address,)
    return f"{device.name} in group {function.group} with a bridge: healthy, functions {device.functions}"


def case_discovery_refuses_a_group_that_is_not_viable(node: GuestNode) -> str:
    ours, sibling = node.mixed
    node.give(ours)
    assert _pool_device(ours).healthy
    node.give(sibling, "uio_pci_generic")
    spoilt = _pool_device(ours)
    assert FaultKind.NOT_VIABLE in [fault.kind for fault in spoilt.faults]
    return f"{spoilt.name}: {spoilt.faults[0].text}"


@case(deadline=90, last=True)
def case_discovery_sees_a_removal_that_waits(node: GuestNode) -> str:
    chip = node.chips[2]
    holder = node.hold(ALL, chip)
    threading.Thread(target=chip.unbind, daemon=True).start()
    wait_until(lambda: chip.driver is None, what="the driver link to vanish")
    device = _device(_inventory(), chip.address)
    assert [fault.kind for fault in device.faults] == [FaultKind.PENDING_REMOVAL]
    holder.release()
    wait_until(lambda: not chip.node.exists(), what="the node to go")
    chip.bind()
    assert _device(_inventory(), chip.address).healthy
    return f"{device.faults[0].text}; bound again: healthy"


def case_uevents_tell_of_binding_and_unbinding(node: GuestNode) -> str:
    chip = node.chips[3]
    heard: list[str] = []

    async def follow() -> None:
        uevents = Uevents(lambda subsystem, action: heard.append(f"{action} {subsystem}"))
        try:
            await asyncio.to_thread(chip.unbind)
            await until(lambda: "unbind pci" in heard, what="unbind")
            await asyncio.to_thread(chip.bind)
            await until(lambda: {"add vfio", "bind pci"} <= set(heard), what="bind")
        finally:
            uevents.close()

    asyncio.run(follow())
    return ", ".join(heard)


def case_the_scan_names_every_holder_that_has_a_trace(node: GuestNode) -> str:
    chip = node.chips[0]
    names = {
        "group": NODE_ONLY,
        "all": ALL,
        "leak": LEAK,
        "mapped": MAPPED,
        "zombie": ZOMBIE_LEADER,
    }
    told = []
    for name, steps in names.items():
        holder = node.hold(steps, chip)
        if name == "zombie":
            holder.await_dead_leader()
        access = _access(_scan(chip), holder.pid)
        told.append(f"{name}: {'+'.join(sorted(each.name for each in access))}")
        holder.release()
    assert told == [
        "group: NODE",
        "all: DEVICE_FD+NODE",
        "leak: DEVICE_FD",
        "mapped: MAPPED",
        "zombie: DEVICE_FD+NODE",
    ]
    forked = node.hold(FORKED, chip)
    forked.release()
    assert forked.child is not None
    assert DeviceAccess.NODE in _access(_scan(chip), forked.child)
    return ", ".join(told) + ", forked: the child"


def case_a_mapping_under_a_dead_leader_is_found(node: GuestNode) -> str:
    holder = node.hold((*MAPPED, "leader-exit"), node.chips[1])
    holder.await_dead_leader()
    access = _access(_scan(node.chips[1]), holder.pid)
    assert access == {DeviceAccess.MAPPED}
    return "a thread's mapping is found although the leader's maps file is empty"


def case_the_scan_knows_the_pod_of_a_holder(node: GuestNode) -> str:
    told = []
    for driver in ("cgroupfs", "systemd"):
        pod = node.pod(driver=driver, qos="burstable")
        holder = node.hold(ALL, node.chips[0], cgroup=pod.container())
        (found,) = _scan(node.chips[0]).holders[_name(node.chips[0])]
        seen = Cgroups(ROOT).pod(PodUid(pod.uid))
        assert found.pod == pod.uid
        assert seen is not None
        assert (seen.inode, seen.processes) == (pod.path.stat().st_ino, (holder.pid,))
        holder.release()
        told.append(f"{driver}: {seen.cgroup.rpartition('/')[2]}")
    return ", ".join(told)


def case_killing_a_pods_cgroup_through_holdfast(node: GuestNode) -> str:
    chip, pod = node.chips[0], node.pod()
    node.hold(FORKED, chip, cgroup=pod.container()).release()
    cgroups = Cgroups(ROOT)
    found = cgroups.pod(PodUid(pod.uid))
    assert found is not None
    assert chip.enable == 1
    cgroups.kill(found.cgroup, found.inode)
    wait_until(lambda: not pod.populated and chip.enable == 0, what="the pod's end")
    return f"{found.cgroup}: {len(found.processes)} orphan killed, enable=0"


def case_the_exclusive_open_tells_what_the_scan_cannot(node: GuestNode) -> str:
    chip = node.chips[1]
    nodes = [DeviceNode(path=str(chip.node), rdev=chip.node.stat().st_rdev)]
    free = exclusive_open(ROOT, nodes)
    holder = node.hold(IN_FLIGHT, chip)
    scan, busy = _scan(chip), exclusive_open(ROOT, nodes)
    assert not scan.holders
    assert not scan.unattributed
    holder.release()
    wait_until(lambda: chip.enable == 0)
    assert (free.name, busy.name) == ("SUCCEEDED", "BUSY")
    return f"free: {free.name}; fd in flight: no holder found, {busy.name}"


def case_a_scan_without_capabilities_says_that_it_is_blind(node: GuestNode) -> str:
    chip = node.chips[2]
    node.hold(LEAK, chip, uid=1000)
    told = []
    with ThreadPoolExecutor() as threads:
        # One thread may serve both, and gets nothing back: the second lacks what the first does.
        for lacking in (("SYS_PTRACE",), ("DAC_READ_SEARCH", "DAC_OVERRIDE", "SYS_PTRACE")):
            scan = threads.submit(_scan_without, lacking, chip).result()
            assert not [*scan.holders, *scan.unattributed]
            assert scan.gaps, f"without {lacking} the scan calls itself complete"
            told.append(f"without {lacking[0]}: {scan.gaps[0]}")
    assert not _scan(chip).gaps
    return "; ".join(told)


def _scan_without(capabilities: Sequence[str], function: Function) -> Scan:
    """Scan in this thread, which has none of *capabilities* any more."""
    give_up(*capabilities)
    return _scan(function)


def _inventory(pool: Sequence[str] = ()) -> Inventory:
    pools = [PoolSpec(resource=POOL, devices=tuple(pool))] if pool else []
    return take_inventory(Snapshot(ROOT), [plain_tpus(), Pools(pools)])


def _device(inventory: Inventory, identity: str) -> Device:
    (device,) = [each for each in inventory.devices if each.name.id == identity]
    return device


def _pool_device(function: Function) -> Device:
    pool = PoolSpec(resource=POOL, addresses=(function.address,))
    sources = [plain_tpus(), Pools([pool])]
    inventory = take_inventory(Snapshot(ROOT), sources)
    return _device(inventory, function.address)


def _name(function: Function) -> DeviceName:
    return DeviceName(TPU_RESOURCE, DeviceId(function.address))


def _scan(function: Function) -> Scan:
    """Return a scan that had time for each process, as not all have on a busy host."""
    target = ScanTarget(
        device=_name(function),
        rdevs=frozenset({function.node.stat().st_rdev}),
        addresses=frozenset(),
    )
    scans, done = HolderScan(ROOT), list[Scan]()

    def had_time() -> bool:
        done.append(scans.scan([target], maps=True))
        return not any("no time was left" in gap for gap in done[-1].gaps)

    wait_until(had_time, what="a scan with time for each process")
    return done[-1]


def _access(scan: Scan, pid: int) -> set[DeviceAccess]:
    holders = [*scan.unattributed, *(h for found in scan.holders.values() for h in found)]
    return {each for holder in holders if holder.process.pid == pid for each in holder.access}
