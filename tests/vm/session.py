"""Runs cases in the test machine and collects what each of them saw."""

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from image import building
from vm import charts, machine, packages, parts
from vm.catalogue import Case
from vm.lines import SilenceError
from vm.parts import LackingError

WORK = machine.REPOSITORY / "build/vm"
_START = Path(__file__).parent / "guest/start.py"
_BOOT_LIMIT = 900.0
_BOOTS = 6
_TOO_SLOW = "the machine is too slow to try it within half an hour; make vm CASE={} runs it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case ended: `text` is what was seen, or why it failed, or why it could not run.

    `findings` are for the lines with which the whole run ends, by subject. `first_try` says why a
    case that passed had failed before.
    """

    name: str
    verdict: str
    text: str
    seconds: float = 0.0
    findings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    first_try: str = ""

    def __str__(self) -> str:
        """Return the line of `make vm`."""
        line = f"{self.verdict:7} {self.name} ({self.seconds:.1f} s): {self.text}"
        return f"{line}\nbefore it FAILED: {self.first_try}" if self.first_try else line


PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"


def run_cases(
    cases: Sequence[Case], *, tell: Callable[[str], None], limit: float = math.inf
) -> Iterator[Outcome]:
    """Run *cases*; yield the outcome of each as it ends, first of those that cannot run.

    What has not begun after *limit* seconds is skipped.
    """
    deadline = time.monotonic() + limit
    WORK.mkdir(parents=True, exist_ok=True)
    with _only_one():
        try:
            built = parts.gather(WORK, tell=tell)
        except LackingError as error:
            yield from _lack(cases, f"no test machine: {error}")
            return
        lacking, programs = _fetch_programs(cases, tell)
        for needs, reason in lacking.items():
            yield from _lack([case for case in cases if case.needs == needs], reason)
        runnable = [case for case in cases if case.needs not in lacking]
        variables = {**programs, "MINUTES": os.environ.get("MINUTES", "")}
        with ThreadPoolExecutor() as aside:
            # To build the image takes minutes, in which the cases run that do without.
            coming = aside.submit(_image_and_charts, runnable, tell)
            yield from Boots(built, runnable, variables, tell, deadline, coming.result).run()


@dataclass(slots=True)
class Boots:
    """One machine after another, until no case is left.

    After a failure a machine is booted again: what the case left behind is not to fail the next
    ones. And the case is tried once more there: an emulated machine on a busy host can be late with
    anything, and can stand still as a whole.
    """

    built: parts.Parts
    left: list[Case]
    variables: Mapping[str, object]
    tell: Callable[[str], None]
    deadline: float
    """When nothing is begun any more, on the monotonic clock."""
    image: Callable[[], Mapping[str, object]]
    """Returns the variables of the cases that run as the chart does; raises LackingError."""
    grace: float = 120.0
    """How many seconds what began before may go on then."""
    boot: Callable[..., AbstractContextManager[machine.Machine]] = machine.booted
    _failed: dict[str, str] = field(default_factory=dict)
    """Why a case that is tried once more failed."""

    def run(self) -> Iterator[Outcome]:
        """Yield the outcome of each case that is left."""
        for boot in range(_BOOTS):
            if self._is_late:
                yield from self._not_begun()
            if not self.left:
                break
            self.tell(f"booting {self.built.release}" + (" again" if boot else ""))
            yield from self._one_boot()
        for case in self.left:
            reason = self._failed.get(case.name, "the machine was booted too often")
            yield Outcome(name=case.name, verdict=FAILED, text=reason)

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def _end(self) -> float:
        return self.deadline + self.grace

    def _not_begun(self) -> Iterator[Outcome]:
        """Yield as skipped what is left, but for what failed and is to be tried once more."""
        skipped = [case for case in self.left if case.name not in self._failed]
        self.left = [case for case in self.left if case.name in self._failed]
        for case in skipped:
            yield Outcome(name=case.name, verdict=SKIPPED, text=_TOO_SLOW.format(case.name))

    def _one_boot(self) -> Iterator[Outcome]:
        """Yield the outcomes of the cases that are left, until one fails."""
        runner = [str(_START), *(case.name for case in self.left)]
        greeted = False
        try:
            with self.boot(self.built, WORK, runner=runner, variables=self.variables) as up:
                machine.serve_until(
                    up,
                    limit=_BOOT_LIMIT,
                    beat=_BOOT_LIMIT,
                    end=self._end,
                    handle=lambda word: word["kind"] == "hello",
                )
                greeted = True
                while self.left:
                    outcome = self._outcome(up, self.left[0])
                    yield from self._judged(outcome)
                    if outcome.verdict == FAILED or self._is_late:
                        return
        except LackingError as error:
            lacking = [case for case in self.left if case.as_chart]
            self.left = [case for case in self.left if not case.as_chart]
            yield from _lack(lacking, str(error))
        except SilenceError as error:
            if time.monotonic() >= self._end:  # which proves nothing of what has not failed before
                yield from self._not_begun()
            if greeted and self.left:
                yield from self._judged(_dead(self.left[0], str(error)))
                return
            # A machine that never spoke will not do so at the next boot either.
            while self.left:
                yield _dead(self.left.pop(0), str(error))

    def _judged(self, outcome: Outcome) -> Iterator[Outcome]:
        """Yield the outcome of the next case, unless that is to be tried once more."""
        first_try = self._failed.get(outcome.name, "")
        if outcome.verdict == FAILED and not first_try:
            self.tell(f"{outcome}\nit is tried once more, on a fresh machine")
            self._failed[outcome.name] = outcome.text
            return
        self.left.pop(0)
        yield replace(outcome, first_try=first_try) if outcome.verdict == PASSED else outcome

    def _outcome(self, up: machine.Machine, case: Case) -> Outcome:
        """Wait for the runner's word on *case*, and pass on what it tells meanwhile."""
        results: list[dict[str, Any]] = []

        def handle(message: dict[str, Any]) -> bool:
            if message["kind"] == "line":
                self.tell(message["text"])
            if message["kind"] == "image":
                up.control.send({name: str(value) for name, value in self.image().items()})
            if message["kind"] == "result" and message["case"] == case.name:
                results.append(message)
            return bool(results)

        machine.serve_until(up, limit=case.silence, handle=handle, end=self._end)
        seen = results[0]
        text = seen["text"] if seen["passed"] else f"{seen['text']}\nconsole:\n{_since(case)}"
        return Outcome(
            name=case.name,
            verdict=PASSED if seen["passed"] else FAILED,
            text=text,
            seconds=seen["seconds"],
            findings=seen["findings"],
        )


def _lack(cases: Sequence[Case], text: str) -> Iterator[Outcome]:
    """Yield *cases* as skipped; on CI a machine has all it takes, there a skip would hide a failure."""
    verdict = FAILED if os.environ.get("CI") and os.geteuid() == 0 else SKIPPED
    for case in cases:
        yield Outcome(name=case.name, verdict=verdict, text=text)


def _fetch_programs(
    cases: Sequence[Case], tell: Callable[[str], None]
) -> tuple[Mapping[str, str], Mapping[str, Path]]:
    """Fetch what some cases need; return why which cannot be had, and where the others are."""
    lacking: dict[str, str] = {}
    found: dict[str, Path] = {}
    for name in sorted({case.needs for case in cases} - {""}):
        try:
            found[name] = packages.program(WORK, name, tell=tell)
        except LackingError as error:
            lacking[name] = str(error)
    return lacking, found


def _image_and_charts(cases: Sequence[Case], tell: Callable[[str], None]) -> Mapping[str, object]:
    """Have the image and the pods that the chart makes for *cases*; return where the guest finds them.

    Raises LackingError with the reason where one of them cannot be had.
    """
    modes = [case.daemon for case in cases if case.as_chart]
    if not modes:
        return {}
    try:
        charts.write(modes, WORK / "charts.json")
    except ImportError as error:  # Helm's engine, which is there on x86-64 alone
        raise LackingError(str(error)) from error
    image = building.made(tell=tell)
    return {
        "CHART": WORK / "charts.json",
        "IMAGE": image.root,
        "IMAGE_CONFIG": json.dumps(image.config),
    }


def _dead(case: Case, reason: str) -> Outcome:
    """Return the outcome of a case in which the machine died, with the last words of both sides."""
    text = f"the machine died: {reason}\n{_tail('console.log')}\n{_tail('qemu.log')}".rstrip()
    return Outcome(name=case.name, verdict=FAILED, text=text)


def _since(case: Case) -> str:
    """Return what the console says since *case* began."""
    return _tail("console.log").rpartition(f"=== {case.name}")[2].strip()


def _tail(name: str) -> str:
    """Return the last words of a log of this boot."""
    path = WORK / name
    return path.read_text(errors="replace")[-6000:].strip() if path.exists() else ""


@contextmanager
def _only_one() -> Iterator[None]:
    """Hold the checkout's one machine: two at once would only make each other late."""
    with (WORK / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
