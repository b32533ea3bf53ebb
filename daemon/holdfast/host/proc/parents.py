"""The ancestors of a process: who started a pod's processes, and which of them are sandboxes."""

from collections import defaultdict
from collections.abc import Set as AbstractSet

from holdfast.host.proc.procfs import INIT_PID_NAMESPACE, ProcessFacts, Procfs
from holdfast.model.reclaim.ending import Parent
from holdfast.model.use.sandbox import GVISORS, Program, Sandbox, sandbox_role

_FARTHEST = 16
"""How many ancestors are read at most. gVisor's helpers are children of its children."""


def outside_parent(procfs: Procfs, child: ProcessFacts, inside: AbstractSet[int]) -> Parent | None:
    """Return the nearest ancestor of *child* outside *inside*, the pids of its pod.

    None if the way up cannot be read. Processes come and go meanwhile: a parent that is younger
    than its child is another process that got the former parent's pid.
    """
    for _ in inside:
        parent = procfs.process(child.ppid)
        if parent is None or parent.process.start_ticks > child.process.start_ticks:
            return None
        if parent.process.pid not in inside:
            # Only init has no parent. A pid namespace below the node's has more of these, so
            # nothing is judged from there (`Visibility.hides`).
            init = parent.ppid == 0 and not parent.kernel_thread
            return Parent(pid=parent.process.pid, command=parent.comm, is_init=init)
        child = parent
    return None


def containing(procfs: Procfs, inside: AbstractSet[int]) -> frozenset[int]:
    """Return which of *inside*, the pids of a pod, have a child in another mount namespace.

    Each container has its own mount namespace, and its shim or conmon has the node's. What a
    container starts in further namespaces is left out, because it is not in the node's pid
    namespace. The child counts wherever it is: a program can be moved out of its pod's cgroup.
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


def sandbox_of(procfs: Procfs, pid: int) -> Sandbox | None:
    """Return what process *pid* is in a sandbox; None for any other process, or if it is gone.

    Raise HostError if it cannot be told whether it runs a virtual machine.
    """
    programs: list[Program] = []
    above = pid
    while above > 1 and len(programs) <= _FARTHEST:
        facts = procfs.process(above)
        if facts is None:
            break
        # Only gVisor's arguments say something, and a stuck program's take long to read.
        arguments = procfs.arguments(above) if facts.comm in GVISORS else ()
        programs.append(Program(command=facts.comm, arguments=arguments))
        above = facts.ppid
    role = sandbox_role(programs[0], programs[1:]) if programs else None
    if role is None and procfs.runs_a_machine(pid):
        return Sandbox.MACHINE
    return role


def _apart(procfs: Procfs, pid: int, child: int) -> bool:
    """Tell whether two processes may be in different mount namespaces; unknown counts as yes."""
    theirs = procfs.namespace(child, "mnt")
    return theirs is None or theirs != procfs.namespace(pid, "mnt")
