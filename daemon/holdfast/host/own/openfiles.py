"""Lets this process have as many open files as the kernel allows it."""

import resource


def allow_all() -> int:
    """Raise the soft limit to the hard one, and return it.

    Every followed process, watched file and call of kubelet's is an open file; systemd's default
    soft limit of 1024 is meant for programs that use select(2), which this one does not.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
