"""The kernel's capabilities, as manifests name them, and becoming a process that has only some."""

import ctypes
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vm.guest.syscalls import check, libc

_NO_NEW_PRIVS, _DROP_BOUNDING, _AMBIENT, _CLEAR_ALL = 38, 24, 47, 4
_VERSION = 0x20080522

CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD"),
    *("LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)
"""By their numbers, from 0."""

USUAL = (
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID"),
    *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)
"""What containerd gives where a manifest says nothing."""


def become(security: Mapping[str, Any], *, privileged: bool) -> None:
    """Have the rights that the manifest gives, and cannot get others."""
    if not privileged:
        wanted = set(_wanted(security.get("capabilities", {})))
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        for number in range(last + 1):
            name = CAPABILITIES[number] if number < len(CAPABILITIES) else ""
            if name not in wanted:
                check(libc.prctl(_DROP_BOUNDING, number, 0, 0, 0), f"drop {name}")
    check(libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0), "clear the ambient capabilities")
    os.setgroups([])
    os.setgid(security.get("runAsGroup", 0))
    uid = security.get("runAsUser", 0)
    # What is permitted and effective after exec: for uid 0 all of the bounding set, else nothing.
    os.setuid(uid)
    if not uid:
        _drop_inheritable()
    if not security.get("allowPrivilegeEscalation", True):
        check(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")


def _wanted(capabilities: Mapping[str, Sequence[str]]) -> Iterator[str]:
    dropped = {name.removeprefix("CAP_") for name in capabilities.get("drop", ())}
    if "ALL" not in dropped:
        yield from (name for name in USUAL if name not in dropped)
    for name in capabilities.get("add", ()):
        if name.removeprefix("CAP_") not in CAPABILITIES:
            raise ValueError(f"there is no capability {name}")
        yield name.removeprefix("CAP_")


def lose(*names: str) -> None:
    """Be without *names* for good, also after an exec, by which root has all that it may have."""
    for name in names:
        number = CAPABILITIES.index(name)
        check(libc.prctl(_DROP_BOUNDING, number, 0, 0, 0), f"drop {name}")
    give_up(*names)


def give_up(*names: str) -> None:
    """Have this thread alone, and what it starts, be without *names*."""
    left = ~sum(1 << CAPABILITIES.index(name) for name in names)
    effective, permitted, _ = _sets()
    _set(effective & left, permitted & left, 0)


def _drop_inheritable() -> None:
    effective, permitted, _ = _sets()
    _set(effective, permitted, 0)


def _sets() -> tuple[int, int, int]:
    """Return this thread's effective, permitted and inheritable capabilities, as bits by their numbers."""
    sets = ctypes.create_string_buffer(24)
    check(libc.capget(_header(), sets), "read the capabilities")
    words = struct.unpack("=6I", sets.raw)
    low, high = words[:3], words[3:]
    effective, permitted, inheritable = (a | b << 32 for a, b in zip(low, high, strict=True))
    return effective, permitted, inheritable


def _set(*sets: int) -> None:
    words = [each >> shift & 0xFFFFFFFF for shift in (0, 32) for each in sets]
    done = libc.capset(_header(), ctypes.create_string_buffer(struct.pack("=6I", *words), 24))
    check(done, "set the capabilities")


def _header() -> Any:
    return ctypes.create_string_buffer(struct.pack("=Ii", _VERSION, 0), 8)
