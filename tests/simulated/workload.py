"""The program in the demo's containers: opens its nodes, holds them, may leave a process behind.

Run as a script: workload.py SPEC NODE…, where SPEC is JSON as `Workload` has it. It prints one line
for each process of it, so that its runtime knows them; it imports nothing of holdfast.
"""

import json
import os
import signal
import sys
import time


def main() -> None:
    """Hold, until told to end."""
    spec, nodes = json.loads(sys.argv[1]), sys.argv[2:]
    sys.stdin.readline()  # the runtime has put us into our cgroup
    fds = [os.open(node, os.O_RDWR | os.O_NOCTTY) for node in nodes] if spec["opens"] else []
    print(f"pid {os.getpid()}", flush=True)
    if spec["orphan"]:
        _leave_behind(fds[: max(spec["orphan"], 0)])
    if spec["ignores_term"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(spec["runs_for"] if spec["runs_for"] is not None else 1e6)


def _leave_behind(keep: list[int]) -> None:
    """Fork twice, so that the process is an orphan, and keep *keep* open in it."""
    born, tell = os.pipe()
    if os.fork():
        os.wait()
        os.read(born, 1)  # it has told its pid, so that our "ready" comes after it
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    print(f"pid {os.getpid()}", flush=True)
    os.write(tell, b"!")
    out = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(out, fd)
    for fd in range(3, 256):
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                continue
    time.sleep(1e6)


if __name__ == "__main__":
    main()
