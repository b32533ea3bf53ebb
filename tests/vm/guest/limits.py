"""What is taken from a daemon that runs as root with the node's own files; it calls one of these first."""

from vm.guest import capabilities, syscalls


def without_capabilities() -> None:
    """Be without what it takes to look into the processes of others."""
    capabilities.lose("SYS_PTRACE", "DAC_READ_SEARCH", "DAC_OVERRIDE")


def own_pid_namespace() -> None:
    """Be the first process of a pid namespace with the /proc of that, as in a pod without hostPID."""
    syscalls.unshare(syscalls.NEW_MOUNTS | syscalls.NEW_PIDS)
    syscalls.stay_outside()
    syscalls.mount("none", "/", flags=syscalls.PRIVATE | syscalls.RECURSIVE)
    syscalls.mount("proc", "/proc", "proc")


def read_only_sys() -> None:
    """See /sys read-only, as in a container that is not privileged; the cgroups are another mount."""
    syscalls.unshare(syscalls.NEW_MOUNTS)
    syscalls.mount("none", "/", flags=syscalls.PRIVATE | syscalls.RECURSIVE)
    flags = syscalls.REMOUNT | syscalls.BIND | syscalls.READ_ONLY
    syscalls.mount("none", "/sys", flags=flags)
