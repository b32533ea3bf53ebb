"""A program that computes on a GPU: `python program.py MIB [orphan|unfiled]`, until it is killed.

It prints "ready" once MIB of the card's memory are its own. `orphan` leaves a process behind that
computes as well and ignores SIGTERM; `unfiled` one that has closed all its files and kept what it
had mapped. They print their names and their pids.
"""

import ctypes
import os
import signal
import sys
import time


def compute(mib: int) -> None:
    """Take a context on the first card, and *mib* MiB of its memory."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for name, code in (
        ("cuInit", cuda.cuInit(0)),
        ("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)),
        ("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context)),
        ("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20))),
    ):
        if code:
            raise SystemExit(f"cannot call {name}: CUDA error {code}")


def main() -> None:
    """Do what the command line says."""
    mib, steps = int(sys.argv[1]), sys.argv[2:]
    if "orphan" in steps and not os.fork():  # before CUDA, which does not work in a child
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        compute(mib)
        print(f"orphan {os.getpid()}", flush=True)
        time.sleep(3600)
    compute(mib)
    if "unfiled" in steps and not os.fork():
        print(f"unfiled {os.getpid()}", flush=True)
        os.closerange(0, 4096)
        time.sleep(3600)
    print("ready", flush=True)
    time.sleep(3600)


main()
