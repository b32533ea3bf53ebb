"""What a process is in a sandbox, by what it and its ancestors run."""

from holdfast.host.proc.procfs import Procfs
from holdfast.model.use.sandbox import GVISORS, Program, Sandbox, sandbox_role

_FARTHEST = 16
"""How many ancestors are read at the most; gVisor's helpers are its children's children."""


def sandbox_of(procfs: Procfs, pid: int) -> Sandbox | None:
    """Return what process *pid* is in a sandbox, None for any other process or one that is gone.

    Raise HostError where it cannot be told whether it runs a virtual machine.
    """
    programs: list[Program] = []
    above = pid
    while above > 1 and len(programs) <= _FARTHEST:
        facts = procfs.process(above)
        if facts is None:
            break
        # They say nothing of other programs, and reading them of one that is stuck takes a while.
        arguments = procfs.arguments(above) if facts.comm in GVISORS else ()
        programs.append(Program(command=facts.comm, arguments=arguments))
        above = facts.ppid
    role = sandbox_role(programs[0], programs[1:]) if programs else None
    if role is None and procfs.runs_a_machine(pid):
        return Sandbox.MACHINE
    return role
