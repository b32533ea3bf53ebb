"""What an open file is, by one system call: the kernel's own answer for each kind of file."""

import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from holdfast.host.files.paths import DeviceNumbers, FileAt, _by_stat

FDS = "/proc/self/fd"


@pytest.fixture
def folder() -> Iterator[int]:
    opened = os.open(FDS, os.O_PATH | os.O_DIRECTORY)
    yield opened
    os.close(opened)


@pytest.fixture(params=["statx", "stat"])
def numbers(request: pytest.FixtureRequest) -> DeviceNumbers:
    made = DeviceNumbers()
    assert not isinstance(made._statx, partial), "this kernel and C library have it"
    if request.param == "stat":  # as with an old C library
        made._statx = partial(_by_stat, made._words)
    return made


def _of(numbers: DeviceNumbers, folder: int, fd: int) -> int | None:
    return numbers.of_open_file(folder, b"%d" % fd)


def test_a_device_is_told_by_its_number_whatever_its_name(
    numbers: DeviceNumbers, folder: int
) -> None:
    ours, theirs = os.openpty()
    for fd in (ours, theirs):
        assert _of(numbers, folder, fd) == os.fstat(fd).st_rdev
        os.close(fd)


def test_what_has_another_type_is_no_device(
    numbers: DeviceNumbers, folder: int, tmp_path: Path
) -> None:
    with ExitStack() as open_now:
        one, other = socket.socketpair()
        open_now.enter_context(one)
        open_now.enter_context(other)
        removed = tmp_path / "removed"
        file = open_now.enter_context(removed.open("w"))
        removed.unlink()
        ends = os.pipe()
        memory, here = os.memfd_create("ours"), os.open(tmp_path, os.O_PATH)
        for fd in (one.fileno(), file.fileno(), *ends, memory, here):
            assert _of(numbers, folder, fd) == 0
        for fd in (*ends, memory, here):
            os.close(fd)


def test_of_an_anonymous_file_only_the_links_text_tells_what_it_is(
    numbers: DeviceNumbers, folder: int
) -> None:
    """The fd of a VFIO device is one, made by the same call in the kernel as these."""
    event = os.eventfd(0)
    with select.epoll() as epoll:
        for fd in (event, epoll.fileno()):
            assert str(Path(FDS, str(fd)).readlink()).startswith("anon_inode:")
            assert _of(numbers, folder, fd) is None
    os.close(event)
    assert _of(numbers, folder, event) is None, "nor of one that was closed"


def test_a_type_proves_nothing_while_it_is_unknown_where_anonymous_files_are(
    numbers: DeviceNumbers, folder: int
) -> None:
    """A kernel might give them a type; only their filesystem tells them from others then."""
    numbers._anonymous = None
    ours, theirs = os.openpty()
    ends = os.pipe()
    assert _of(numbers, folder, ours) == os.fstat(ours).st_rdev
    assert _of(numbers, folder, ends[0]) is None
    numbers._anonymous = os.minor(os.fstat(ends[0]).st_dev)
    assert _of(numbers, folder, ends[0]) is None
    for fd in (ours, theirs, *ends):
        os.close(fd)


def test_a_file_is_told_from_others_by_its_filesystem_and_inode(
    numbers: DeviceNumbers, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    found, status = numbers.file_at(bytes(file)), file.stat()
    assert found == FileAt(rdev=0, filesystem=status.st_dev, inode=status.st_ino)
    node = numbers.file_at(b"/dev/null")
    assert node is not None
    assert node.rdev == Path("/dev/null").stat().st_rdev
    assert numbers.file_at(bytes(tmp_path / "nothing")) is None
