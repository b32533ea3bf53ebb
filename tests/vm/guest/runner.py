"""Runs in the guest: the cases named on the command line, one after the other, reported as JSON."""

import linecache
import os
import signal
import termios
import threading
import time
import traceback
import tty
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from forked import Template
from vm.catalogue import PREPARATION, Case, all_cases
from vm.guest.node import GuestNode
from vm.lines import JsonLines

_CONTROL = "/dev/ttyS1"
_IMAGE = "IMAGE"
_BUILD = 900.0
"""How many seconds the image may take, which is built on the host meanwhile."""
_HEARTBEAT = 5.0
"""Every so many seconds the host is told that this machine runs (see serve_until of machine.py)."""


class _LateError(Exception):
    """The case's deadline has passed."""


def main(names: list[str], template: Template) -> None:
    """Run the cases *names* in this order, until one fails; daemons are forked from *template*."""
    fd = os.open(_CONTROL, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(fd, termios.TCSANOW)
    control = JsonLines(fd)
    node = GuestNode(control, template)
    cases = {case.name: case for case in all_cases()}
    signal.signal(signal.SIGALRM, _late)
    node.prepare()
    control.send({"kind": "hello"})
    threading.Thread(target=_beat, args=(control,), daemon=True).start()
    for name in names:
        print(f"=== {name}", flush=True)
        if cases[name].as_chart and _IMAGE not in os.environ:
            control.send({"kind": "image"})
            os.environ.update(control.receive(limit=_BUILD))
        began = time.monotonic()
        passed, text = _run(cases[name], node)
        seconds = time.monotonic() - began
        control.send(
            {
                "kind": "result",
                "case": name,
                "passed": passed,
                "text": text,
                "seconds": seconds,
                "findings": node.findings if passed else {},
            }
        )
        if not passed:
            return  # what it left behind is not undone: the host boots a fresh machine


def _beat(control: JsonLines) -> None:
    while True:
        control.send({"kind": "alive"})
        time.sleep(_HEARTBEAT)


def _run(case: Case, node: GuestNode) -> tuple[bool, str]:
    text, node.findings = "", {}
    phases: tuple[tuple[Callable[[], str | None], float], ...] = (
        (lambda: node.play(case.daemon), PREPARATION),
        (lambda: case.run(node), case.patience),
        (node.restore, case.patience),
    )
    for what, limit in phases:
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            text = what() or text
        except Exception as error:  # noqa: BLE001 - whatever a case raises is its verdict
            print(node.daemon_words, flush=True)
            return False, f"{text}\n{_where(error)}".strip()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return True, text


def _where(error: Exception) -> str:
    """Say what went wrong, by which lines of the tests, and with which values."""
    walked = list(traceback.walk_tb(error.__traceback__))[2:]
    lines = [f"{type(error).__name__}: {error}"]
    for frame, number in walked:
        path = Path(frame.f_code.co_filename)
        lines.append(f"  {path.name}:{number} {linecache.getline(str(path), number).strip()}")
        if path.parent.name == "cases":
            values = (f"{name}={repr(value)[:200]}" for name, value in frame.f_locals.items())
            lines.append("    with " + ", ".join(values))
    return "\n".join(lines)


def _late(number: int, frame: FrameType | None) -> None:
    raise _LateError("the case did not end by its deadline")
