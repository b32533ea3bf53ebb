"""What the kernel does by itself: the facts that holdfast is built on, proved on real VFIO groups."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from holdfast.host.root import HostRoot
from holdfast.host.use.holders import HolderScan
from holdfast.model.ids import DeviceId, DeviceName
from holdfast.model.tpu.generations import TPU_RESOURCE
from holdfast.model.use.holders import ScanTarget
from vm.catalogue import case
from vm.guest.holding import (
    ALL,
    FORKED,
    IDLE,
    IN_FLIGHT,
    LEAK,
    MAPPED,
    NODE_ONLY,
    ZOMBIE_LEADER,
    fd_texts,
)
from vm.guest.node import GuestNode, vfio_fds
from vm.guest.pods import Pod
from vm.guest.waits import wait_until


def case_second_opener_gets_ebusy(node: GuestNode) -> str:
    chip = node.chips[0]
    before = chip.enable
    holder = node.hold(ALL, chip)
    second, enabled = node.open(chip), chip.enable
    holder.release()
    after = node.open(chip)
    assert (before, second, enabled, after) == (0, "EBUSY", 1, "ok")
    return f"second open: {second}, enable=1; after the first exits: {after}, enable={chip.enable}"


def case_group_fd_alone_is_busy_although_enable_is_0(node: GuestNode) -> str:
    chip = node.chips[0]
    holder = node.hold(NODE_ONLY, chip)
    assert node.open(chip) == "EBUSY"
    assert chip.enable == 0
    assert str(chip.node) in holder.fd_texts
    return f"second open: EBUSY, enable=0, fd {chip.node} in pid {holder.pid}"


def case_device_fd_alone_keeps_the_group_busy(node: GuestNode) -> str:
    chip = node.chips[1]
    holder = node.hold(LEAK, chip)
    fds = vfio_fds()
    assert node.open(chip) == "EBUSY"
    assert chip.enable == 1
    assert fds == [f"{holder.pid} anon_inode:[vfio-device]"]
    holder.kill()
    holder.await_end()
    wait_until(lambda: chip.enable == 0)
    return (
        "second open: EBUSY, enable=1, no fd of /dev/vfio/N anywhere, only anon_inode:[vfio-device]"
    )


def case_a_mapping_alone_keeps_the_group_busy(node: GuestNode) -> str:
    chip = node.chips[1]
    holder = node.hold(MAPPED, chip)
    assert node.open(chip) == "EBUSY"
    assert chip.enable == 1
    assert vfio_fds() == []
    maps = [
        line for line in Path(f"/proc/{holder.pid}/maps").read_text().splitlines() if "vfio" in line
    ]
    assert len(maps) == 1
    holder.do("unmap")
    wait_until(lambda: chip.enable == 0)
    assert node.open(chip) == "ok"
    return f"second open: EBUSY, enable=1, no fd at all, maps: {maps[0].split()[-1]}; unmapped: ok"


def case_an_fd_in_flight_has_no_holder_at_all(node: GuestNode) -> str:
    chip = node.chips[2]
    holder = node.hold(IN_FLIGHT, chip)
    assert node.open(chip) == "EBUSY"
    assert chip.enable == 1
    assert vfio_fds() == []
    assert "vfio" not in Path(f"/proc/{holder.pid}/maps").read_text()
    holder.release()
    wait_until(lambda: chip.enable == 0)
    return "second open: EBUSY, enable=1, no fd and no mapping in any process; sender exits: free"


def case_a_socket_tells_how_many_files_are_in_flight_on_it(node: GuestNode) -> str:
    holder = node.hold(IN_FLIGHT, node.chips[2])
    told = [file.read_text() for file in Path(f"/proc/{holder.pid}/fdinfo").iterdir()]
    counts = [
        int(count)
        for text in told
        for count in re.findall(r"^scm_fds:\s*(\d+)$", text, re.MULTILINE)
    ]
    assert sorted(counts) == [0, 1]
    return "fdinfo of the socket that nobody reads: scm_fds 1; of its other end: 0"


_RING = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
files = (ctypes.c_int * 1)(os.open(sys.argv[1], os.O_RDWR))
done = libc.syscall(427, ring, 2, files, 1)
os.close(files[0])
print(ring, done, ctypes.get_errno(), flush=True)
sys.stdin.read()
"""


def case_an_io_uring_keeps_a_group_busy_and_has_no_number_of_it(node: GuestNode) -> str:
    chip = node.chips[1]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _RING, str(chip.node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        node.later(process.kill)
        assert process.stdout is not None
        ring, done, error = map(int, process.stdout.readline().split())
        assert (ring >= 0, done) == (True, 0), f"no ring: {os.strerror(error)}"
        assert (node.open(chip), chip.enable) == ("EBUSY", 0)
        assert vfio_fds() == []
        process.communicate()
    wait_until(lambda: node.open(chip) == "ok")
    return "no fd, enable=0, EBUSY until the ring is closed"


_ELSEWHERE = """
import ctypes, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for place, kind in enumerate(("driver", "driver", "plain")):
    path = f"/run/elsewhere-{place}"
    if kind == "driver":
        os.mknod(path, stat.S_IFCHR | 0o600, os.stat(sys.argv[1]).st_rdev)
    fd = os.open(path, os.O_RDWR | (os.O_CREAT if kind == "plain" else 0), 0o600)
    if kind == "plain":
        os.truncate(fd, 4096)
    shared = place == 1
    at = libc.mmap(None, 4096, 3, 1 if shared else 2, fd, 0)
    assert at not in (None, ctypes.c_void_p(-1).value), ctypes.get_errno()
    os.close(fd)
    os.unlink(path)
print(flush=True)
sys.stdin.read()
"""
_ACCEL = Path("/dev/fakeaccel")


def case_a_mapping_by_a_driver_differs_in_its_flags_from_a_plain_file(node: GuestNode) -> str:
    """The nodes were made outside /dev and are removed: nothing else tells what they were."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _ELSEWHERE, str(_ACCEL)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        node.later(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        text = Path(f"/proc/{process.pid}/smaps").read_text()
        flags = {
            int(place): set(shown.split()) & {"io", "pf", "mm"}
            for place, shown in re.findall(
                r"/run/elsewhere-(\d) \(deleted\)$.*?^VmFlags: (.*?)$",
                text,
                re.DOTALL | re.MULTILINE,
            )
        }
        assert flags[0], "mapped privately by the driver"
        assert flags[1], "mapped shared by the driver"
        assert flags[2] == set(), "a plain file"
        name = DeviceName(TPU_RESOURCE, DeviceId("fakeaccel"))
        rdevs = frozenset({_ACCEL.stat().st_rdev})
        target = ScanTarget(device=name, rdevs=rdevs, addresses=frozenset())
        gaps = HolderScan(HostRoot.under()).scan([target], maps=True).gaps
        own = [each for each in gaps if each.startswith(f"pid {process.pid} ")]
        assert len(own) == 2, gaps
        process.communicate()
    return f"VmFlags of a driver's mapping {sorted(flags[0])}, of a plain file's none; {own[0]}"


def case_a_child_inherits_the_fd(node: GuestNode) -> str:
    chip = node.chips[2]
    parent = node.hold(FORKED, chip)
    parent.release()
    assert parent.child is not None
    assert node.open(chip) == "EBUSY"
    assert str(chip.node) in fd_texts(parent.child)
    os.kill(parent.child, signal.SIGKILL)
    wait_until(lambda: node.open(chip) == "ok")
    return f"parent exited, child {parent.child} holds: EBUSY; child killed: ok"


def case_a_dead_thread_group_leader_hides_its_fds(node: GuestNode) -> str:
    chip = node.chips[3]
    holder = node.hold(ZOMBIE_LEADER, chip)
    holder.await_dead_leader()
    threads = [task for task in holder.tasks if task != holder.pid]
    assert holder.fd_texts == []
    assert node.open(chip) == "EBUSY"
    assert len(threads) == 1
    seen = fd_texts(holder.pid, task=threads[0])
    assert str(chip.node) in seen
    holder.release()
    assert node.open(chip) == "ok"
    return f"leader is Z with an empty fd folder, task/{threads[0]} still has {chip.node}: EBUSY"


def case_a_process_without_fd_can_open_again(node: GuestNode) -> str:
    chip = node.chips[0]
    idle = node.hold(IDLE)
    late = node.hold(IDLE, chip)
    assert idle.alive
    assert (node.open(chip), chip.enable, vfio_fds()) == ("ok", 0, [])
    for step in ALL:
        late.do(step)
    assert (node.open(chip), chip.enable) == ("EBUSY", 1)
    return "idle: ok, enable=0, no fd; then it opens by itself: EBUSY, enable=1"


def case_a_holder_of_another_uid_hides_without_capabilities(node: GuestNode) -> str:
    chip = node.chips[0]
    holder = node.hold(LEAK, chip, uid=1000)
    look = ["ls", "-l", f"/proc/{holder.pid}/fd"]
    plain = subprocess.run(look, check=True, capture_output=True, text=True)
    bound = [
        "setpriv",
        "--inh-caps=-all",
        "--bounding-set=-sys_ptrace,-dac_read_search,-dac_override",
    ]
    bare = subprocess.run([*bound, "--", *look], check=False, capture_output=True, text=True)
    assert "[vfio-device]" in plain.stdout
    assert bare.returncode != 0
    assert "ermission denied" in bare.stderr
    assert node.open(chip) == "EBUSY"
    return "root with all capabilities sees it; without SYS_PTRACE and DAC_*: Permission denied"


def case_two_functions_in_one_group_are_one_grant(node: GuestNode) -> str:
    first, second = (node.give(function) for function in node.twin)
    assert first.group == second.group
    assert first.group_members == [first.address, second.address]
    holder = node.hold(ALL, first, second)
    assert (first.enable, second.enable) == (1, 1)
    assert node.open(second) == "EBUSY"
    holder.release()
    half = node.hold(ALL, second)
    assert (first.enable, second.enable) == (0, 1)
    assert node.open(first) == "EBUSY"
    half.release()
    return f"group {first.group} = {' '.join(first.group_members)}: held by .1 alone, .0 is EBUSY"


def case_two_functions_of_a_chip_in_two_groups(node: GuestNode) -> str:
    with node.split() as (first, second):
        assert first.address[:-1] == second.address[:-1]
        assert first.group != second.group
        for function in (first, second):
            function.bind()
        half = node.hold(ALL, second)
        assert (node.open(first), node.open(second)) == ("ok", "EBUSY")
        half.release()
        whole = node.hold(ALL, first, second)
        assert (node.open(first), node.open(second)) == ("EBUSY", "EBUSY")
        assert (first.enable, second.enable) == (1, 1)
        whole.release()
        return (
            f"{first.address} is group {first.group}, {second.address} is group {second.group}: "
            "one can be busy without the other"
        )


def case_a_bridge_in_the_group_stays_enabled(node: GuestNode) -> str:
    function = node.give(node.bridged)
    bridges = [node.function(address) for address in function.group_members]
    bridges = [bridge for bridge in bridges if bridge.address != function.address]
    assert bridges
    idle = [bridge.enable for bridge in bridges]
    assert function.enable == 0
    assert min(idle) >= 1
    holder = node.hold(ALL, function)
    assert node.open(function) == "EBUSY"
    holder.release()
    assert [bridge.enable for bridge in bridges] == idle
    names = ", ".join(f"{bridge.address} ({bridge.driver})" for bridge in bridges)
    return f"group {function.group} contains bridge {names}: viable, idle enable {idle}, function 0"


def case_a_sibling_on_a_native_driver_spoils_the_group(node: GuestNode) -> str:
    ours, sibling = node.mixed
    node.give(ours)
    alone = node.attempt(ALL, ours)
    node.give(sibling, "uio_pci_generic")
    beside = node.attempt(ALL, ours)
    assert (alone, beside) == ("ok", "attach: EPERM")
    return f"sibling without driver: {alone}; on uio_pci_generic: {beside}"


def case_cgroup_kill_frees_what_the_pod_held(node: GuestNode) -> str:
    chip = node.chips[0]
    pod = node.pod()
    parent = node.hold(FORKED, chip, cgroup=pod.container())
    node.hold(IDLE, cgroup=pod.container("sidecar"))
    parent.release()
    assert len(pod.processes) == 2
    assert node.open(chip) == "EBUSY"
    began = time.monotonic()
    pod.kill()
    wait_until(lambda: not pod.populated)
    emptied = time.monotonic() - began
    wait_until(lambda: node.open(chip) == "ok")
    freed = time.monotonic() - began
    return f"orphan in the pod: EBUSY; populated 0 after {emptied * 1000:.0f} ms, free after {freed * 1000:.0f} ms"


def case_an_empty_cgroup_is_one_whose_processes_have_closed_their_devices(node: GuestNode) -> str:
    """A task leaves its cgroup after its files and mappings: what `populated 0` proves of a pod."""
    chip, rounds = node.chips[0], 0
    for steps in (ALL, LEAK, MAPPED, FORKED, ZOMBIE_LEADER) * 4:
        pod = node.pod(driver="cgroupfs")
        holder = node.hold(steps, chip, cgroup=pod.container())
        assert (pod.populated, chip.enable) == (True, 1), steps
        holder.kill()  # cgroup.kill alone does not reach threads whose leader has exited
        pod.kill()
        while pod.populated:
            pass
        assert chip.enable == 0, f"{steps}: it is enabled although its pod's cgroup is empty"
        rounds += 1
    return (
        f"{rounds} pods killed on Linux {os.uname().release}: enable=0 with populated 0, each time"
    )


def case_cgroup_kill_spares_a_process_whose_leader_has_exited(node: GuestNode) -> str:
    chip = node.chips[3]
    pod = node.pod()
    holder = node.hold(ZOMBIE_LEADER, chip, cgroup=pod.container())
    holder.await_dead_leader()
    pod.kill()
    holder.do("ignore-term")  # with a deadly signal pending it could not answer
    assert (pod.populated, chip.enable) == (True, 1)
    holder.kill()
    wait_until(lambda: not pod.populated)
    return f"on Linux {os.uname().release} it answers after cgroup.kill; SIGKILL to its pid ends it"


_CHAIN = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork():
    sys.stdin.read()
    os._exit(0)
with open(sys.argv[1], "w") as procs:
    procs.write("0")
print(flush=True)
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""
"""A process in a cgroup that goes on by forking; who reaps is outside."""


def case_a_frozen_cgroup_cannot_fork_and_ends_by_a_signal(node: GuestNode) -> str:
    pod = node.pod()
    procs = pod.container() / "cgroup.procs"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHAIN, str(procs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reaper:
        node.later(reaper.kill)
        assert reaper.stdout is not None
        reaper.stdout.readline()
        before = pod.processes
        wait_until(lambda: pod.processes != before, what="a fork")
        _freeze(pod, frozen=True)
        held = pod.processes  # one that has forked may still be there beside its child
        for _ in range(20):  # others fork meanwhile
            subprocess.run(["true"], check=True)
            assert set(pod.processes) <= set(held)
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not pod.populated, what="the end of what is frozen")
        reaper.communicate()
    _freeze(pod, frozen=False)
    return f"nobody but pid {held} at 20 looks, and they end by SIGKILL while they are frozen"


def _freeze(pod: Pod, *, frozen: bool) -> None:
    (pod.path / "cgroup.freeze").write_text(f"{frozen:d}")
    word = f"frozen {frozen:d}"
    wait_until(lambda: word in (pod.path / "cgroup.events").read_text(), what=word)


def case_pod_cgroups_have_the_forms_of_both_drivers(node: GuestNode) -> str:
    uid = "0a1b2c3d-0000-4000-8000-00000000000a"
    plain = node.pod(uid, qos="burstable")
    systemd = node.pod(uid, qos="burstable", driver="systemd")
    texts = []
    for pod in (plain, systemd):
        holder = node.hold(IDLE, cgroup=pod.container())
        texts.append(Path(f"/proc/{holder.pid}/cgroup").read_text().strip())
    assert f"/kubepods/burstable/pod{uid}/" in texts[0]
    assert f"-pod{uid.replace('-', '_')}.slice/cri-containerd-" in texts[1]
    return " and ".join(text[:-40] + "..." for text in texts)


def case_reset_methods_differ_by_hardware(node: GuestNode) -> str:
    chip, nvme = node.chips[0], node.give(node.pluggable)
    assert not (chip.folder / "reset").exists()
    methods = (nvme.folder / "reset_method").read_text().split()
    assert "flr" in methods
    (nvme.folder / "reset").write_text("1")
    assert (nvme.folder / "vendor").read_text().strip() == "0x1b36"
    return f"edu has no reset; nvme has {methods}, reset while idle went well"


def case_an_idle_device_is_unplugged_and_plugged(node: GuestNode) -> str:
    function = node.give(node.pluggable)
    path = function.node
    began = time.monotonic()
    node.unplug()
    wait_until(lambda: not function.present)
    gone = time.monotonic() - began
    assert not path.exists()
    return f"device_del: {function.address} and {path} gone after {gone:.1f} s; comes back after the case"


@case(deadline=90, last=True)
def case_unplugging_a_held_device_waits_for_its_holder(node: GuestNode) -> str:
    function = node.give(node.pluggable)
    holder = node.hold(ALL, function)
    node.unplug()
    wait_until(lambda: function.driver is None, what="the driver link to vanish")
    time.sleep(1)  # the proof is that nothing more happens
    assert function.present
    assert function.node.exists()
    assert node.open(function) == "EBUSY"
    holder.release()
    wait_until(lambda: not function.present)
    return "held: driver link gone, node and folder stay, EBUSY; holder exits: all gone"


@case(deadline=90, last=True)
def case_unbinding_a_held_device_blocks(node: GuestNode) -> str:
    chip = node.chips[3]
    holder = node.hold(ALL, chip)
    writer = threading.Thread(target=chip.unbind, daemon=True)
    writer.start()
    wait_until(lambda: chip.driver is None, what="the driver link to vanish")
    time.sleep(1)  # the proof is that nothing more happens
    assert writer.is_alive()
    assert chip.present
    assert chip.node.exists()
    assert node.open(chip) == "EBUSY"
    holder.release()
    writer.join(30)
    assert not writer.is_alive()
    return "held: the writer blocks, driver link gone, node and folder stay; holder exits: unbound"


def case_the_size_of_an_fd_folder_is_how_many_files_are_open(node: GuestNode) -> str:
    holder = node.hold(IDLE, node.chips[2])
    folder = Path(f"/proc/{holder.pid}/fd")
    listed, size = len(list(folder.iterdir())), folder.stat().st_size
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    assert size == (listed if release >= (6, 2) else 0)
    return f"Linux {os.uname().release}: size {size} of {listed} open files"
