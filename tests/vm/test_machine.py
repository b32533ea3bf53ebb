"""What the host makes of a machine that says nothing: it stands still, or its case does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vm.lines import JsonLines, SilenceError
from vm.machine import Machine, serve_until


@contextmanager
def _machine(*, beats: float | None) -> Iterator[Machine]:
    """Return a machine that says each *beats* seconds that it is alive, and nothing else."""
    ended = threading.Event()
    with _pair() as (host, guest), _pair() as (qmp, _):
        control = JsonLines(guest.fileno())

        def beat() -> None:
            while not ended.wait(beats):
                control.send({"kind": "alive"})

        thread = threading.Thread(target=beat)
        if beats:
            thread.start()
        try:
            yield Machine(control=JsonLines(host.fileno()), qmp=JsonLines(qmp.fileno()))
        finally:
            ended.set()
            if beats:
                thread.join()


@contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    host, guest = socket.socketpair()
    with host, guest:
        yield host, guest


def test_a_machine_without_a_heartbeat_stands_still() -> None:
    with _machine(beats=None) as machine, pytest.raises(SilenceError, match="stands still"):
        serve_until(machine, limit=3600.0, beat=0.05, handle=bool)


def test_a_machine_that_only_beats_does_not_stand_still() -> None:
    with _machine(beats=0.01) as machine, pytest.raises(SilenceError, match="it lives"):
        serve_until(machine, limit=0.5, beat=30.0, handle=bool)
