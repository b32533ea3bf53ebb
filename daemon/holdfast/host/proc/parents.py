"""Who started the processes of a pod: their parents outside of it, and those who contain others."""

from collections import defaultdict
from collections.abc import Set as AbstractSet

from holdfast.host.proc.procfs import INIT_PID_NAMESPACE, ProcessFacts, Procfs
from holdfast.model.reclaim.ending import Parent


def outside_parent(procfs: Procfs, child: ProcessFacts, inside: AbstractSet[int]) -> Parent | None:
    """Return the nearest ancestor of *child* that is none of *inside*, the pids of its pod.

    None where the way up cannot be read. Processes come and go meanwhile: a parent that is younger
    than its child is another process with the former parent's pid.
    """
    for _ in inside:
        parent = procfs.process(child.ppid)
        if parent is None or parent.process.start_ticks > child.process.start_ticks:
            return None
        if parent.process.pid not in inside:
            # Init alone has no parent; a pid namespace below the node's has more of these, and is
            # no place to judge from (`Visibility.hides`).
            init = parent.ppid == 0 and not parent.kernel_thread
            return Parent(pid=parent.process.pid, command=parent.comm, is_init=init)
        child = parent
    return None


def containing(procfs: Procfs, inside: AbstractSet[int]) -> frozenset[int]:
    """Return which of *inside*, the pids of a pod, have a child in another mount namespace.

    Every container has a mount namespace of its own, and its shim or conmon has the node's. What a
    container starts in further namespaces is left out: it is not in the node's pid namespace. The
    child counts wherever it is: a container's program can be moved out of its pod's cgroup.
    """
    children: dict[int, set[int]] = defaultdict(set)
    for pid in inside:
        facts = procfs.process(pid)
        if facts is not None and facts.ppid in inside:
            children[facts.ppid].add(pid)
    outside = [pid for pid in inside if procfs.namespace(pid, "pid") in {None, INIT_PID_NAMESPACE}]
    return frozenset(
        pid
        for pid in outside
        if any(_apart(procfs, pid, child) for child in children[pid] | procfs.children(pid))
    )


def _apart(procfs: Procfs, pid: int, child: int) -> bool:
    """Tell whether the two may be in different mount namespaces: both can be read, or they are."""
    theirs = procfs.namespace(child, "mnt")
    return theirs is None or theirs != procfs.namespace(pid, "mnt")
