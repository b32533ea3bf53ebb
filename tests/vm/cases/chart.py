"""The daemon in the pod that the chart makes: what it may do there, and what it says when it may not."""

import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from vm.cases.daemon import CHIPS
from vm.catalogue import case
from vm.guest.capabilities import CAPABILITIES
from vm.guest.holding import ALL, IDLE, IN_KVM, LEAK, Holding
from vm.guest.node import GuestNode
from vm.guest.stage import PodOnStage
from vm.guest.waits import SLOW, wait_until
from vm.modes import (
    CHART,
    MANIFEST,
    NO_CGROUPS,
    NO_KILL,
    NO_PTRACE,
    NO_SEARCH,
    OWN_PIDS,
    TERMINATE,
)

_SHARED = ("pid", "user", "time")
_OWN = ("mnt", "cgroup", "net", "ipc", "uts")
_USER = 1000


@case(daemon=CHART + MANIFEST, deadline=120, always=True)
def case_chart_runs_as_the_manifest_says(node: GuestNode) -> str:
    stage = node.stage
    pid, (container,) = stage.chart.pid, stage.chart.made["pod"]["containers"]
    security = container["securityContext"]
    given = security["capabilities"]["add"]
    mask = sum(1 << CAPABILITIES.index(name) for name in given)
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    sets = {name: int(status[name], 16) for name in ("CapBnd", "CapPrm", "CapEff")}
    assert sets == dict.fromkeys(sets, mask), (sets, mask)
    assert (int(status["CapInh"], 16), int(status["CapAmb"], 16)) == (0, 0)
    assert (status["Uid"].split()[0], status["NoNewPrivs"]) == ("0", "1")
    spaces = {name: Path(f"/proc/{pid}/ns/{name}").readlink() for name in (*_SHARED, *_OWN)}
    ours = {name: Path(f"/proc/self/ns/{name}").readlink() for name in spaces}
    assert [name for name in spaces if spaces[name] == ours[name]] == list(_SHARED)
    mounted = _mounted(pid)
    for mount in container["volumeMounts"]:
        place = mount["mountPath"].replace("/var/run/", "/run/")
        assert mounted[place] == mount.get("readOnly", False), (place, mounted[place])
    assert mounted["/"] is security["readOnlyRootFilesystem"] is True
    assert mounted["/sys"]
    assert mounted["/sys/fs/cgroup"]
    probes = {each: stage.probe(each) for each in ("startupProbe", "livenessProbe")}
    assert {status for status, _ in probes.values()} == {200}, probes
    # An emulated machine may not read all processes in time: its looks then come ever more rarely.
    wait_until(
        lambda: stage.chart.fetch("/readyz")[0] == 200, limit=2 * SLOW, what="/readyz to be ready"
    )
    assert stage.probe("readinessProbe")[0] == 200
    pod = node.run_pod("plain")
    (chip,) = pod.functions
    (passed,) = [
        row["evidence"]
        for row in stage.history(chip.address)
        if row["pod"] == pod.uid and "gate passed" in row["evidence"]
    ]
    # Not by opening it: the container's device cgroup forbids that.
    assert passed == "gate passed: no process has it open; it is not enabled"
    pod.await_seen()
    freed = stage.freed_after(chip.address, pod.exit())
    return (
        f"{', '.join(given)}; own {', '.join(_OWN)} namespaces; read-only root; ready; {passed}; "
        f"last exit to FREE: {freed}"
    )


def _mounted(pid: int) -> dict[str, bool]:
    """Return where something is mounted for *pid*, and whether it is read-only."""
    found = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        fields = line.split()
        found[fields[4]] = "ro" in fields[5].split(",")
    return found


@case(daemon=CHART + NO_PTRACE, deadline=120, always=True)
def case_chart_without_sys_ptrace_frees_nothing_unseen(node: GuestNode) -> str:
    return _blind(node, check="sys-ptrace", privilege="SYS_PTRACE")


@case(daemon=CHART + NO_SEARCH, deadline=120)
def case_chart_without_dac_read_search_frees_nothing_unseen(node: GuestNode) -> str:
    return _blind(node, check="dac-read-search", privilege="DAC_READ_SEARCH")


@case(daemon=CHART + OWN_PIDS, deadline=120)
def case_chart_without_host_pid_frees_nothing_unseen(node: GuestNode) -> str:
    return _blind(node, check="pid-namespace", privilege="hostPID")


@case(daemon=CHART + NO_KILL, deadline=120)
def case_chart_without_kill_names_whom_it_may_not_end(node: GuestNode) -> str:
    stage = node.stage
    pod, orphan = _orphan_of_another_user(node, counted=True)
    device = pod.functions[0].address
    orphan.await_end()
    assert stage.said("signal refused", pid=orphan.pid, signal="SIGTERM")
    assert stage.said("pod cgroup killed", pod=pod.uid)
    assert not stage.said("signal sent")
    lost = _told(node, check="kill", privilege="KILL")
    stage.await_state(device, "free")
    return f"told: {lost}; SIGTERM to uid {_USER} refused, ended by its pod's cgroup"


@case(daemon=CHART + NO_CGROUPS, deadline=120)
def case_chart_without_the_cgroup_tree_ends_nobody(node: GuestNode) -> str:
    pod, orphan = _orphan_of_another_user(node)
    following = node.submit("next", chips=CHIPS)
    refused = following.await_refusal(f"pid {orphan.pid}")
    lost = _told(node, check="cgroup-tree", privilege="volumes.cgroup")
    _nobody_is_ended(node, [orphan])
    orphan.release()
    following.await_running()
    return f"told: {lost}; {_short(refused)}; it started when {pod.functions[0].address} was let go"


@case(daemon=CHART + TERMINATE, deadline=90, always=True)
def case_chart_cannot_tell_that_kvm_keeps_a_group_and_the_kernel_does(node: GuestNode) -> str:
    subprocess.run(["modprobe", "kvm-amd"], check=True)
    chip = node.chips[1]
    machine = node.hold(IN_KVM, chip)
    following = node.run_pod("next", IDLE, chips=CHIPS)
    (passed,) = [
        row["evidence"]
        for row in node.stage.history(chip.address)
        if row["pod"] == following.uid and "gate passed" in row["evidence"]
    ]
    assert machine.alive
    assert node.open(chip) == "EBUSY"
    machine.release()
    assert node.open(chip) == "ok"
    return f"{passed}; opening it is EBUSY all the same until the machine is gone"


def _blind(node: GuestNode, *, check: str, privilege: str) -> str:
    """See that a holder who cannot be seen keeps the gate shut, and is neither ended nor accused."""
    stage = node.stage
    pod, orphan = _orphan_of_another_user(node)
    (chip,) = pod.functions
    other = next(each for each in node.chips if each != chip)
    tool = node.hold(ALL, other, uid=_USER)
    node.hold(IDLE, uid=_USER)  # who holds nothing, which cannot be seen
    following = node.submit("next", chips=CHIPS)
    refused = following.await_refusal("waiting for")
    lost = _told(node, check=check, privilege=privilege)
    _nobody_is_ended(node, [orphan, tool])
    assert stage.state(other.address) != "foreign"
    assert not following.running
    orphan.release()
    following.await_refusal(other.address)
    tool.release()
    following.await_running()
    (passed,) = {
        row["evidence"]
        for row in stage.history(other.address)
        if row["pod"] == following.uid and "gate passed" in row["evidence"]
    }
    assert "unverified" in passed, passed
    return f"told: {lost}; next pod: {_short(refused)}; nobody signalled; then {passed}"


def _orphan_of_another_user(
    node: GuestNode, *, counted: bool = False
) -> tuple[PodOnStage, Holding]:
    """Return a pod that is over, and what it left on its device under another uid."""
    pod = node.run_pod("former", IDLE)
    (chip,) = pod.functions
    orphan = node.leave_behind(LEAK, chip, cgroup=pod.cgroup.container("other"), uid=_USER)
    if counted:
        pod.await_counted()
    pod.exit()
    pod.await_over()
    return pod, orphan


def _told(node: GuestNode, *, check: str, privilege: str) -> str:
    """Return what /readyz says is lost; the doctor must name the same."""
    stage = node.stage
    wait_until(
        lambda: any(privilege in line for line in _failed(stage.chart.fetch("/readyz")[1])),
        what=f"/readyz to name {privilege} ({stage.chart.fetch('/readyz')[1]})",
    )
    status, text = stage.chart.fetch("/readyz")
    assert status == 503, text
    findings = stage.chart.doctor()
    (finding,) = [each for each in findings if each["check"] == check]
    assert (finding["level"], privilege in finding["reason"]) == ("FAIL", True), finding
    return next(line for line in _failed(text) if privilege in line)


def _failed(text: str) -> Iterable[str]:
    return [line for line in text.splitlines() if line.startswith("FAILED")]


def _nobody_is_ended(node: GuestNode, holders: list[Holding]) -> None:
    time.sleep(6)  # the proof is that nothing happens, long after every grace
    assert all(holder.alive for holder in holders)
    assert not node.stage.said("signal sent")
    assert not node.stage.said("pod cgroup killed")


def _short(refused: str) -> str:
    return refused.partition(": ")[2] or refused
