"""A process of which the kernel gives no answer costs the proof for itself, and nobody else's look."""

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.books import name
from fakes.inuse import holder_scan
from holdfast.host.proc.visits import Visitor, Visits
from holdfast.model.ids import DeviceName
from holdfast.model.use.holders import Scan, ScanTarget
from simulated.proctree import ProcTree
from waiting import wait_until

ONE, TWO = name("one"), name("two")
_PATIENCE = 2.0
"""Longer than a busy machine keeps a look waiting for a processor, in seconds."""


@pytest.fixture
def terminals() -> Iterator[tuple[str, str]]:
    """Give the paths of two character devices."""
    pairs = [os.openpty(), os.openpty()]
    yield os.ttyname(pairs[0][1]), os.ttyname(pairs[1][1])
    for fd in (*pairs[0], *pairs[1]):
        os.close(fd)


def _target(device: DeviceName, path: str) -> ScanTarget:
    return ScanTarget(
        device=device, rdevs=frozenset({Path(path).stat().st_rdev}), addresses=frozenset()
    )


def _hangs(file: Path) -> None:
    """Let whoever reads *file* wait, as for the memory of a process that is stuck."""
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def _answers(file: Path) -> None:
    """Let those who wait for *file* go on."""
    fd = os.open(file, os.O_RDWR)
    file.unlink()
    file.write_text("")
    os.close(fd)


class Silence:
    """A read in the kernel that gets no answer until it `ends`."""

    def __init__(self) -> None:
        self._answer, self._ends = os.pipe()

    def wait(self) -> None:
        os.read(self._answer, 1)

    def ends(self) -> None:
        os.close(self._ends)


def _waiting() -> int:
    return sum(thread.name == "visits" for thread in threading.enumerate())


def _pids(scan: Scan, device: DeviceName) -> list[int]:
    return [each.process.pid for each in scan.holders.get(device, ())]


def test_a_process_whose_mappings_cannot_be_read_is_a_gap_and_all_others_are_seen(
    tree: ProcTree, terminals: tuple[str, str]
) -> None:
    before = _waiting()
    one, two = terminals
    for pid, path in ((70, one), (71, two), (72, two)):
        tree.open_file(tree.process(pid), 3, path)
    maps = tree.root.proc / "71/maps"
    _hangs(maps)
    holders = holder_scan(tree.root, patience=_PATIENCE)
    scan = holders.scan([_target(ONE, one), _target(TWO, two)], maps=True)
    assert (_pids(scan, ONE), _pids(scan, TWO)) == ([70], [71, 72]), "what it has open is seen"
    assert scan.gaps == (
        "pid 71 (worker) cannot be inspected: what it has mapped could not be read in time",
    )
    assert not holders.scan([_target(ONE, one)]).gaps, "where nobody asks for mappings"

    for _ in range(5):
        again = holders.scan([_target(ONE, one), _target(TWO, two)], maps=True)
        assert again.gaps == scan.gaps
        assert again.seconds < _PATIENCE, "it is waited for once"
    assert _waiting() == before + 1, "and holds up one thread"
    assert holders.hanging == {71}

    _answers(maps)
    wait_until(lambda: _waiting() == before, what="the thread to go on")
    assert holders.hanging == frozenset()
    assert not holders.scan([_target(ONE, one), _target(TWO, two)], maps=True).gaps


def test_however_many_processes_are_stuck_the_threads_they_hold_up_are_few(tree: ProcTree) -> None:
    before = _waiting()
    for pid in range(100, 250):
        _hangs(tree.process(pid) / "maps")
    holders = holder_scan(tree.root, patience=0.02)
    scan = holders.scan([_target(ONE, "/dev/null")], maps=True)
    (gap,) = scan.gaps
    assert "and 149 others" in gap
    assert 0 < _waiting() - before <= 64
    for pid in range(100, 250):
        _answers(tree.root.proc / f"{pid}/maps")
    wait_until(lambda: _waiting() == before, what="the threads to go on")


def test_another_process_with_the_pid_of_one_that_is_stuck_is_looked_at_in_full() -> None:
    starts, silence = {7: 1, 8: 1}, Silence()
    asked: list[tuple[int, bool]] = []

    def look(pid: int, *, careful: bool, beat: object) -> int:
        asked.append((pid, careful))
        if not careful and (pid, starts[pid]) == (7, 1):
            silence.wait()
        return pid

    visits = Visits(lambda pid: starts[pid], patience=0.05)
    assert visits.each([7, 8], lambda: look) == ({7: 7, 8: 8}, ())
    assert asked == [(7, False), (8, False), (7, True)]
    starts[7] = 3
    asked.clear()
    assert visits.each([7], lambda: look) == ({7: 7}, ())
    assert asked == [(7, False)]
    silence.ends()


def test_one_that_cannot_even_be_looked_at_carefully_is_left_out_for_as_long_as_it_hangs() -> None:
    silence = Silence()
    visits = Visits(lambda _pid: 1, patience=0.05)

    def look(pid: int, *, careful: bool, beat: object) -> int:
        if pid == 7:
            silence.wait()
        return pid

    for _ in range(3):
        assert visits.each([7, 8], lambda: look) == ({8: 8}, (7,))
    silence.ends()
    wait_until(lambda: visits.each([7, 8], lambda: look) == ({7: 7, 8: 8}, ()), what="its answer")


def test_a_long_look_that_goes_on_is_waited_for() -> None:
    """A process with a million files is slow, and not stuck: anybody may open that many."""
    visits = Visits(lambda _pid: 1, patience=0.2)

    def look(pid: int, *, careful: bool, beat: object) -> bool:
        assert callable(beat)
        for _ in range(30):
            threading.Event().wait(0.02)
            beat()
        return careful

    assert visits.each([7], lambda: look) == ({7: False}, ())


def test_once_a_look_has_waited_enough_the_rest_is_looked_at_carefully() -> None:
    """Three hundred processes that hang for a moment each are not three hundred moments."""
    visits, silence = Visits(lambda _pid: 1, patience=0.2), Silence()
    waits = visits.waits()

    def look(pid: int, *, careful: bool, beat: object) -> bool:
        if pid == 7:
            silence.wait()
        return careful

    assert visits.each([7], lambda: look, waits=waits) == ({}, (7,))
    assert visits.each([8], lambda: look, waits=waits) == ({8: True}, ())
    assert visits.each([8], lambda: look) == ({8: False}, ())
    silence.ends()


def test_what_a_look_waits_for_a_processor_takes_none_of_its_time() -> None:
    visits = Visits(lambda _pid: 1, patience=60.0)
    waits = visits.waits()
    before = waits.left

    def look(pid: int, *, careful: bool, beat: object) -> bool:
        hashlib.pbkdf2_hmac("sha256", b"long", b"enough", 1_000_000)  # and lets others go on
        return careful

    assert visits.each([7], lambda: look, waits=waits) == ({7: False}, ())
    assert waits.left == before


def test_no_thread_is_started_for_what_only_waits_for_its_turn_to_run_python() -> None:
    """Each more would make all of them slower, and the look would find no time for most."""
    visits, over, begun = Visits(lambda _pid: 1, patience=60.0), threading.Event(), []

    def compute() -> None:
        while not over.is_set():
            pass

    def look(pid: int, *, careful: bool, beat: object) -> bool:
        for _ in range(20):
            hashlib.pbkdf2_hmac("sha256", b"a", b"moment", 2000)  # and lets others go on
        return careful

    def begin() -> Visitor[bool]:
        begun.append(look)
        return look

    busy = [threading.Thread(target=compute) for _ in range(3)]
    for each in busy:
        each.start()
    try:
        answers, unread = visits.each(range(4), begin)
    finally:
        over.set()
        for each in busy:
            each.join()
    assert (answers, unread) == (dict.fromkeys(range(4), False), ())
    assert len(begun) == 1


def test_what_a_look_raises_is_raised() -> None:
    def look(pid: int, *, careful: bool, beat: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Visits(lambda _pid: 1, patience=_PATIENCE).each([7], lambda: look)


def test_a_holder_whose_arguments_cannot_be_read_is_named_by_what_the_kernel_calls_it(
    tree: ProcTree, terminals: tuple[str, str]
) -> None:
    before = _waiting()
    one, two = terminals
    tree.open_file(tree.process(70, comm="exe"), 3, one)
    tree.open_file(tree.process(71), 3, two)
    _hangs(tree.root.proc / "70/cmdline")
    holders = holder_scan(tree.root, patience=_PATIENCE)
    for _ in range(3):
        scan = holders.scan([_target(ONE, one), _target(TWO, two)])
        (holder,) = scan.holders[ONE]
        assert (holder.process.pid, holder.command, holder.sandbox) == (70, "exe", None)
        assert _pids(scan, TWO) == [71]
        assert not scan.gaps
    assert _waiting() == before + 1
    _answers(tree.root.proc / "70/cmdline")
    wait_until(lambda: _waiting() == before, what="the thread to go on")


def test_the_arguments_of_a_program_that_is_none_of_a_sandboxs_are_not_read(
    tree: ProcTree, terminals: tuple[str, str]
) -> None:
    """They would tell nothing, and they are where a read can hang."""
    one, _ = terminals
    tree.open_file(tree.process(70, comm="worker", ppid=71), 3, one)
    tree.process(71, comm="runsc-sandbox")
    (tree.root.proc / "71/cmdline").write_bytes(b"runsc-sandbox\0boot\0")
    (tree.root.proc / "70/cmdline").mkdir()
    (holder,) = holder_scan(tree.root).scan([_target(ONE, one)]).holders[ONE]
    assert holder.sandbox is not None
