"""What is taken from a daemon that runs as root with the node's own files; it calls one of these first."""

from vm.guest import capabilities, namespaces


def without_capabilities() -> None:
    """Be without what it takes to look into the processes of others."""
    capabilities.lose("SYS_PTRACE", "DAC_READ_SEARCH", "DAC_OVERRIDE")


def own_pid_namespace() -> None:
    """Be the first process of a pid namespace with the /proc of that, as in a pod without hostPID."""
    namespaces.unshare(namespaces.NEW_MOUNTS | namespaces.NEW_PIDS)
    namespaces.stay_outside()
    namespaces.mount("none", "/", flags=namespaces.PRIVATE | namespaces.RECURSIVE)
    namespaces.mount("proc", "/proc", "proc")


def read_only_sys() -> None:
    """See /sys read-only, as in a container that is not privileged; the cgroups are another mount."""
    namespaces.unshare(namespaces.NEW_MOUNTS)
    namespaces.mount("none", "/", flags=namespaces.PRIVATE | namespaces.RECURSIVE)
    flags = namespaces.REMOUNT | namespaces.BIND | namespaces.READ_ONLY
    namespaces.mount("none", "/sys", flags=flags)
