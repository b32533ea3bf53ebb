"""Which devices a container may open: the program that a runtime hangs on its cgroup (version 2).

A container that is not privileged may make any node and open a few harmless devices. A node that is
mounted into it is there to be looked at: opening it is EPERM, whatever capabilities it has.
"""

import ctypes
import os
import platform
import struct
from pathlib import Path

from vm.guest.syscalls import check, libc

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_CHARACTER, _MKNOD = 2, 1
_HARMLESS = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))
"""null, zero, full, random, urandom, tty, ptmx and every pts: what runc and crun allow."""

# Registers: r0 the answer, r1 the context, r2 the type, r3 the access, r4 major, r5 minor.
_LOAD, _COPY, _SHIFT, _MASK, _SET = 0x61, 0xBF, 0x77, 0x57, 0xB7
_UNLESS_EQUAL, _EXIT = 0x55, 0x95


def restrict(cgroup: Path) -> None:
    """Let what runs in *cgroup* open only what any container may; lasts as long as the cgroup."""
    program = _program()
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"GPL")
    words = ctypes.create_string_buffer(4096)
    load = struct.pack(
        "=IIQQIIQII",
        *(_TYPE_CGROUP_DEVICE, len(program) // 8, ctypes.addressof(code)),
        *(ctypes.addressof(licence), 1, len(words), ctypes.addressof(words), 0, 0),
    )
    loaded = _bpf(_PROG_LOAD, load, f"load the device program: {words.value.decode()}")
    folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        attach = struct.pack("=IIII", folder, loaded, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI)
        _bpf(_PROG_ATTACH, attach, f"attach the device program to {cgroup}")
    finally:
        os.close(folder)
        os.close(loaded)


def _program() -> bytes:
    """Return the program; its context is access << 16 | type, major, minor."""
    allow = [_step(_SET, 0, value=1), _step(_EXIT)]
    steps = [
        *(_step(_LOAD, 2, 1), _step(_COPY, 3, 2), _step(_SHIFT, 3, value=16)),
        _step(_MASK, 2, value=0xFFFF),
        *(_step(_LOAD, 4, 1, offset=4), _step(_LOAD, 5, 1, offset=8)),
        *(_step(_UNLESS_EQUAL, 3, offset=2, value=_MKNOD), *allow),
    ]
    for major, minor in _HARMLESS:
        tests = [(2, _CHARACTER), (4, major), *([] if minor is None else [(5, minor)])]
        for left, (register, value) in zip(range(len(tests), 0, -1), tests, strict=True):
            # Past the other tests and the two steps that allow.
            steps.append(_step(_UNLESS_EQUAL, register, offset=left + 1, value=value))
        steps += allow
    return b"".join([*steps, _step(_SET, 0, value=0), _step(_EXIT)])


def _step(
    operation: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0
) -> bytes:
    return struct.pack("=BBhi", operation, source << 4 | target, offset, value)


def _bpf(command: int, attributes: bytes, what: str) -> int:
    given = ctypes.create_string_buffer(attributes, len(attributes))
    number = _SYS_BPF[platform.machine()]
    result: int = libc.syscall(number, command, given, len(attributes))
    check(result, what)
    return result
