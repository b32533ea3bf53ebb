"""Processes with files of a file system in user space that stops to answer: frozenfiles.py NAME NUMBER NODE.

Run as a script, which imports nothing of holdfast. It says "holds" on standard output when it is set.
"""

import ctypes
import mmap
import os
import signal
import struct
import sys
import tempfile
import time

_LOOKUP, _FORGET, _GETATTR, _OPEN, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 18, 25, 26
_ENOSYS = 38
_FILE, _FOLDER = 0o100644, 0o040755


def main() -> None:
    """Be in the cgroup, mount, have the files open, and let nobody answer any more."""
    kind, number, node = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    folder = tempfile.mkdtemp(prefix="frozen-")
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        print(f"skip: cannot open /dev/fuse: {error.strerror}", flush=True)
        return
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"hostile", folder.encode(), b"fuse", 0, options):
        reason = os.strerror(ctypes.get_errno())
        print(f"skip: cannot mount a file system in user space: {reason}", flush=True)
        return
    server = os.fork()
    if not server:
        _serve(fuse)
    os.close(fuse)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it is for our children
    born, tell = os.pipe()
    for _ in range(number):
        if not os.fork():
            if kind == "arguments":
                program = f"{os.environ['HOSTILE_PROGRAMS']}/stuck"
                os.set_inheritable(tell, True)
                os.execl(program, "exe", str(tell), node, f"{folder}/file")
            _hold(kind, f"{folder}/file", node, tell)
        os.read(born, 1)
    os.kill(server, signal.SIGSTOP)
    if kind == "exits":
        os.kill(0, signal.SIGUSR1)
        time.sleep(0.3)
    print("set" if kind == "only" else "holds", flush=True)
    time.sleep(1e6)


def _hold(kind: str, file: str, node: str, tell: int) -> None:
    """Have the file open and mapped; the node too, unless *kind* is ``only``."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    opened = os.open(file, os.O_RDONLY)
    mapped = mmap.mmap(opened, 4096, mmap.MAP_SHARED, mmap.PROT_READ) if kind != "exits" else None
    # Files are closed in the order of their numbers: this one after the one that hangs.
    if kind != "only":
        os.open(node, os.O_RDWR | os.O_NOCTTY)
    os.write(tell, b"!")
    while mapped is None or not mapped.closed:
        time.sleep(1e6)


def _serve(fuse: int) -> None:
    """Answer the kernel, with one file in one folder, until we are stopped."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    while True:
        request = os.read(fuse, 1 << 18)
        _, code, unique, at = struct.unpack_from("<IIQQ", request)
        error, body = 0, b""
        if code == _INIT:
            body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, 0)
        elif code == _LOOKUP:
            body = struct.pack("<QQQQII", 2, 1, 3600, 0, 0, 0) + _attributes(2)
        elif code == _GETATTR:
            body = struct.pack("<QII", 0, 0, 0) + _attributes(at)
        elif code == _OPEN:
            body = struct.pack("<QII", 1, 0, 0)
        elif code == _FORGET:
            continue
        elif code not in {_FLUSH, _RELEASE}:
            error = -_ENOSYS
        os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def _attributes(at: int) -> bytes:
    mode = _FOLDER if at == 1 else _FILE
    return struct.pack("<6Q10I", at, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


if __name__ == "__main__":
    main()
