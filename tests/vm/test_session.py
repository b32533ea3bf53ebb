"""What becomes of cases on a machine that is too slow to try them all in time."""

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vm.catalogue import Case
from vm.lines import JsonLines, SilenceError
from vm.machine import Machine
from vm.modes import CHART
from vm.parts import LackingError, Parts
from vm.session import FAILED, PASSED, SKIPPED, Boots, Outcome

_NAMES = ("one", "two", "three")
_NOWHERE = Path("nowhere")
_IMAGE = {"IMAGE": _NOWHERE}
_PARTS = Parts(
    release="none",
    kernel=_NOWHERE,
    modules=_NOWHERE,
    first_modules=(),
    faketpu=_NOWHERE,
    hold_device=_NOWHERE,
    shim=_NOWHERE,
    busybox=_NOWHERE,
)


@dataclass
class Guest:
    """Runs cases of which each passes, unless *acts* has what is to happen each time it is tried.

    An act returns whether the case passes; None: it does not end.
    """

    acts: dict[str, list[Callable[[], bool | None]]] = field(default_factory=dict)
    as_chart: str = ""
    """Which case needs the image."""
    booted: list[list[str]] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)
    """What it was told of the image."""

    @contextmanager
    def boot(self, *_: object, runner: list[str], **__: object) -> Iterator[Machine]:
        names = runner[1:]
        self.booted.append(names)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            work = threading.Thread(target=self._run, args=(JsonLines(theirs.fileno()), names))
            work.start()
            lines = JsonLines(ours.fileno())
            try:
                yield Machine(control=lines, qmp=lines)
            finally:
                ours.shutdown(socket.SHUT_RDWR)
                work.join()

    def _run(self, control: JsonLines, names: list[str]) -> None:
        try:
            control.send({"kind": "hello"})
            for name in names:
                if name == self.as_chart:
                    control.send({"kind": "image"})
                    self.images.append(control.receive(limit=60))
                passed = acts.pop(0)() if (acts := self.acts.get(name)) else True
                if passed is None:
                    return
                control.send(_result(name, passed))
        except SilenceError:
            pass  # the host has gone


def _result(name: str, passed: bool) -> dict[str, Any]:
    about = {"text": "as the test wanted it", "seconds": 0.0, "findings": {}}
    return {"kind": "result", "case": name, "passed": passed, **about}


def _boots(guest: Guest) -> Boots:
    daemons = {guest.as_chart: f"{CHART}observe"}
    cases = [Case(name=name, run=lambda _: "", daemon=daemons.get(name, "")) for name in _NAMES]
    return Boots(_PARTS, cases, {}, lambda _: None, math.inf, lambda: _IMAGE, boot=guest.boot)


def _verdicts(outcomes: list[Outcome]) -> dict[str, str]:
    assert len(outcomes) == len(_NAMES), "each case has one"
    return {each.name: each.verdict for each in outcomes}


def test_without_a_limit_all_are_tried() -> None:
    assert _verdicts(list(_boots(Guest()).run())) == dict.fromkeys(_NAMES, PASSED)


def test_what_has_begun_in_time_ends_and_the_rest_is_skipped_by_name() -> None:
    guest = Guest()
    boots = _boots(guest)

    def act() -> bool:
        boots.deadline = time.monotonic()
        return True

    guest.acts = {"one": [act]}
    outcomes = list(boots.run())

    assert _verdicts(outcomes) == {"one": PASSED, "two": SKIPPED, "three": SKIPPED}
    assert outcomes[-1].text == (
        "the machine is too slow to try it within half an hour; make vm CASE=three runs it"
    )


def test_what_has_failed_fails_however_little_time_is_left() -> None:
    guest = Guest()
    boots = _boots(guest)

    def act() -> bool:
        boots.deadline = time.monotonic()
        return False

    guest.acts = {"one": [act, act]}
    outcomes = list(boots.run())

    assert _verdicts(outcomes) == {"one": FAILED, "two": SKIPPED, "three": SKIPPED}
    assert guest.booted == [[*_NAMES], ["one"]], "it is tried once more, and nothing else"


def test_what_is_cut_off_although_it_had_not_failed_is_skipped() -> None:
    guest = Guest()
    boots = _boots(guest)
    boots.grace = 0.2

    def act() -> bool:
        boots.deadline = time.monotonic() + 0.3
        return True

    guest.acts = {"one": [act], "two": [lambda: None]}

    assert _verdicts(list(boots.run())) == {"one": PASSED, "two": SKIPPED, "three": SKIPPED}


def test_a_case_that_runs_as_the_chart_does_is_told_of_the_image_when_it_comes() -> None:
    guest = Guest(as_chart="two")

    assert _verdicts(list(_boots(guest).run())) == dict.fromkeys(_NAMES, PASSED)
    assert guest.images == [{"IMAGE": "nowhere"}]
    assert guest.booted == [[*_NAMES]]


def test_without_an_image_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)  # there it is no reason to skip
    guest = Guest(as_chart="two")
    boots = _boots(guest)

    def lack() -> dict[str, object]:
        raise LackingError("no builder is here")

    boots.image = lack
    outcomes = list(boots.run())

    assert _verdicts(outcomes) == {"one": PASSED, "two": SKIPPED, "three": PASSED}
    assert [each.text for each in outcomes if each.name == "two"] == ["no builder is here"]
    assert guest.booted == [[*_NAMES], ["three"]]
