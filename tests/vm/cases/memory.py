"""Memory limits as a real kernel sets and shows them: of a holder's pod, and above a namespace."""

import subprocess
import sys
from pathlib import Path

from holdfast.host.cgroup.memorylimit import MemoryReader
from holdfast.host.root import HostRoot
from holdfast.model.text import sized
from vm.catalogue import case
from vm.guest import pods
from vm.guest.holding import ALL
from vm.guest.node import GuestNode

_MIB = 1 << 20
_OWN_MOUNT = "umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec"
_OWN = """
from holdfast.host.cgroup.memorylimit import MemoryReader
from holdfast.host.root import HostRoot
own = MemoryReader(HostRoot.under()).own()
print(own.limit, own.tightest.path)
"""


def case_memory_of_a_holder_is_what_the_kernel_counts_and_limits(node: GuestNode) -> str:
    pod = _limited(node)
    holder = node.hold(ALL, node.chips[0], cgroup=pod.container())
    reader = MemoryReader(HostRoot.under())
    memory, memlock = reader.of_process(holder.pid), reader.memlock(holder.pid)
    assert memory.tightest is not None
    assert memory.tightest.path == f"/{pod.path.relative_to(pods.CGROUP)}"
    assert memory.limit == 96 * _MIB
    assert memory.usage is not None
    assert memory.headroom is not None
    # Not memory.current, which can have become less meanwhile.
    assert 0 < memory.usage <= int((pod.path / "memory.peak").read_text())
    assert 0 < memory.headroom < 96 * _MIB
    assert memlock is not None
    assert memlock.limit is None or memlock.limit > 0
    return f"limit {sized(96 * _MIB)} of its pod, uses {sized(memory.usage)}; {memlock}"


@case(deadline=120)
def case_memory_limit_above_a_private_namespace_shows_in_the_hosts_tree(node: GuestNode) -> str:
    pod = _limited(node)
    (pod.container() / "memory.max").write_text(str(128 * _MIB))
    host = _own_in(pod.container(), "exec")
    private = _own_in(pod.container(), _OWN_MOUNT)
    assert host == f"{96 * _MIB} /{pod.path.relative_to(pods.CGROUP)}"
    assert private == f"{128 * _MIB} /"
    return f"with the host's tree: {host}; with a mount of its own: {private}"


def _limited(node: GuestNode) -> pods.Pod:
    """Return a pod of 96 MiB; the controller is on for it and all that is in it."""
    pod = node.pod()
    for folder in reversed((pod.path, *pod.path.parents)):
        if folder.is_relative_to(pods.CGROUP):
            (folder / "cgroup.subtree_control").write_text("+memory")
    (pod.path / "memory.max").write_text(str(96 * _MIB))
    return pod


def _own_in(cgroup: Path, then: str) -> str:
    """Return what a process in *cgroup* tells of itself, in a cgroup namespace that begins there."""
    enter = f'echo $$ > {cgroup}/cgroup.procs && exec unshare --cgroup --mount sh -c "$0"'
    inner = f"{then} {sys.executable} -c '{_OWN}'"
    ran = subprocess.run(
        ["sh", "-c", enter, inner], capture_output=True, text=True, check=False, timeout=80
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()
