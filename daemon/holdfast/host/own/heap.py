"""Gives memory that this process does not use any more back to the node."""

import ctypes
import gc


def give_back() -> None:
    """Drop what only cycles keep alive, and have the C library return its free pages.

    The C library keeps freed memory for later, which a cgroup goes on counting as used. Takes some
    tens of milliseconds: run it on a lane, and rarely.
    """
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # a C library other than glibc
        return
    trim(0)
