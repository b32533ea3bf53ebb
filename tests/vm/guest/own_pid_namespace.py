"""Runs a command in a pid namespace of its own, with the /proc of that, as a pod without hostPID has.

usage: own_pid_namespace.py COMMAND...   (a signal to end is passed on; its exit status is ours)
"""

import ctypes
import os
import signal
import subprocess
import sys

_NEW_MOUNTS, _NEW_PIDS = 0x00020000, 0x20000000


def main() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS | _NEW_PIDS):
        raise OSError(ctypes.get_errno(), "cannot unshare")
    script = 'mount --make-rprivate / && mount -t proc proc /proc && exec "$@"'
    with subprocess.Popen(["/bin/sh", "-c", script, "sh", *sys.argv[1:]]) as child:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child.pid, signal.SIGTERM))
        return child.wait()


if __name__ == "__main__":
    sys.exit(main())
