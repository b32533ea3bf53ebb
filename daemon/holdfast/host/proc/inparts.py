"""Reads what a process may have very much of, files and mappings, in a little memory."""

import os
from collections.abc import Callable, Iterator

from msgspec import Struct

_PART = 1 << 16
_A_LOT = 1 << 14
"""More open files than this are kept as bits, not as names."""
BEAT = 256
"""After so many small reads it is told that they go on."""


class Many(Struct, frozen=True):
    """The numbers of a process's open files, a bit for each: a million names take 50 MiB."""

    bits: bytes

    def __bool__(self) -> bool:
        return bool(self.bits)

    def __iter__(self) -> Iterator[bytes]:
        for byte, bits in enumerate(self.bits):
            for bit in range(8):
                if bits >> bit & 1:
                    yield b"%d" % (8 * byte + bit)


def _many(folder: str, beat: Callable[[], None]) -> Many:
    bits = bytearray()
    with os.scandir(folder.encode()) as files:
        for place, file in enumerate(files):
            if not place % BEAT:
                beat()
            byte, bit = divmod(int(file.name), 8)
            bits.extend(bytes(max(0, byte + 1 - len(bits))))
            bits[byte] |= 1 << bit
    return Many(bytes(bits))


def open_files(folder: str, beat: Callable[[], None] = lambda: None) -> list[bytes] | Many:
    """Return the names in an fd folder; *beat* is called every few of very many."""
    # The size tells how many there are since Linux 6.2, and is 0 before.
    if os.stat(folder).st_size > _A_LOT:
        return _many(folder, beat)
    return os.listdir(folder.encode())


def whole_lines(path: str) -> Iterator[bytes]:
    """Yield the text of *path* in parts that end with a line; nothing where it is gone.

    A program with a lot of memory has tens of megabytes of them, and our own memory is small.
    """
    rest = b""
    try:
        with open(path, "rb", buffering=_PART) as file:
            while part := file.read(_PART):
                lines, end, tail = part.rpartition(b"\n")
                if end:
                    yield rest + lines
                    rest = tail
                else:
                    rest += part
    except (FileNotFoundError, ProcessLookupError):
        return
    if rest:
        yield rest


def content(path: str) -> bytes:
    """Return the text of a small file; nothing where it is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def fdinfo(path: str) -> list[bytes]:
    """Return the lines of an fdinfo file; none where they cannot be read: they only add to it."""
    try:
        return content(path).splitlines()
    except OSError:
        return []
