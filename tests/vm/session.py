"""Runs cases in the test machine and collects what each of them saw."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vm import charts, machine, packages, parts
from vm.catalogue import Case
from vm.lines import SilenceError
from vm.modes import CHART
from vm.parts import LackingError

WORK = machine.REPOSITORY / "build/vm"
_RUNNER = Path(__file__).parent / "guest/runner.py"
_BOOT_LIMIT = 900.0
_BOOTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case ended: `text` is what was seen, or why it failed, or why it could not run.

    `findings` are for the lines with which the whole run ends, by subject.
    """

    name: str
    verdict: str
    text: str
    seconds: float = 0.0
    findings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the line of `make vm`."""
        return f"{self.verdict:7} {self.name} ({self.seconds:.1f} s): {self.text}"


PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"


def run_cases(
    cases: Sequence[Case],
    *,
    report: Callable[[Outcome], None],
    tell: Callable[[str], None],
) -> None:
    """Run *cases*, reporting each once. A machine that dies takes only the case it died in along."""
    WORK.mkdir(parents=True, exist_ok=True)
    with _only_one():
        try:
            built = parts.gather(WORK, tell=tell)
        except LackingError as error:
            _lack(cases, f"no test machine: {error}", report)
            return
        left, programs = _with_programs(cases, report, tell)
        left = _with_charts(left, report)
        variables = {
            **programs,
            "CHART": WORK / "charts.json",
            "NODE_PYTHON": _node_python(),
            "MINUTES": os.environ.get("MINUTES", ""),
        }
        froze: set[str] = set()
        for boot in range(_BOOTS):
            if not left:
                break
            tell(f"booting {built.release}" + (" again" if boot else ""))
            try:
                _one_boot(built, left, variables, report, tell)
            except machine.FrozenError as error:
                name = left[0].name
                if name in froze:
                    report(_dead(left.pop(0), f"two machines froze in it: {error}"))
                froze.add(name)
        for case in left:
            report(Outcome(name=case.name, verdict=FAILED, text="the machine died too often"))


def _lack(cases: Sequence[Case], text: str, report: Callable[[Outcome], None]) -> None:
    """Report *cases* as skipped; on CI a machine has all it takes, there a skip would hide a failure."""
    verdict = FAILED if os.environ.get("CI") and os.geteuid() == 0 else SKIPPED
    for case in cases:
        report(Outcome(name=case.name, verdict=verdict, text=text))


def _with_programs(
    cases: Sequence[Case], report: Callable[[Outcome], None], tell: Callable[[str], None]
) -> tuple[list[Case], Mapping[str, Path]]:
    """Fetch what some cases need; return the cases that can run, and where their programs are."""
    found: dict[str, Path] = {}
    for name in sorted({case.needs for case in cases} - {""}):
        try:
            found[name] = packages.program(WORK, name, tell=tell)
        except LackingError as error:
            _lack([case for case in cases if case.needs == name], str(error), report)
    return [case for case in cases if case.needs in {"", *found}], found


def _with_charts(cases: Sequence[Case], report: Callable[[Outcome], None]) -> list[Case]:
    """Write down the pods that the chart makes; return the cases that can run."""
    try:
        charts.write((case.daemon for case in cases), WORK / "charts.json")
    except ImportError as error:  # Helm's engine, which is there on x86-64 alone
        _lack([case for case in cases if case.daemon.startswith(CHART)], str(error), report)
        return [case for case in cases if not case.daemon.startswith(CHART)]
    return list(cases)


def _node_python() -> Path:
    """Return the Python that has what a node has and no more, or where there is none, ours."""
    node = machine.REPOSITORY / "build/runtime/bin/python"
    return node if node.exists() else Path(sys.executable)


def _one_boot(
    built: parts.Parts,
    left: list[Case],
    variables: Mapping[str, object],
    report: Callable[[Outcome], None],
    tell: Callable[[str], None],
) -> None:
    """Run the cases that are *left*, and take each out that has run, until one takes the machine down.

    Raises FrozenError if the machine stands still as a whole, which may be the emulator's doing:
    that case is still left, for another machine.
    """
    greeted = False
    runner = [str(_RUNNER), *(case.name for case in left)]
    try:
        with machine.booted(built, WORK, runner=runner, variables=variables) as up:
            machine.serve_until(
                up,
                limit=_BOOT_LIMIT,
                beat=_BOOT_LIMIT,
                handle=lambda word: word["kind"] == "hello",
            )
            greeted = True
            while left:
                report(_outcome(up, left[0], tell))
                left.pop(0)
    except machine.FrozenError as error:
        tell(f"the machine froze in {left[0].name}: {error}")
        raise
    except SilenceError as error:
        # A machine that never spoke will not do so at the next boot either.
        dead = left[:1] if greeted else left[:]
        for case in dead:
            report(_dead(case, str(error)))
        del left[: len(dead)]


def _dead(case: Case, reason: str) -> Outcome:
    """Return the outcome of a case in which the machine died, with the last words of both sides."""
    text = f"the machine died: {reason}\n{_tail('console.log')}\n{_tail('qemu.log')}".rstrip()
    return Outcome(name=case.name, verdict=FAILED, text=text)


def _outcome(up: machine.Machine, case: Case, tell: Callable[[str], None]) -> Outcome:
    """Wait for the runner's word on *case*, and pass on what it tells meanwhile."""
    results: list[dict[str, Any]] = []

    def handle(message: dict[str, Any]) -> bool:
        if message["kind"] == "line":
            tell(message["text"])
        if message["kind"] == "result" and message["case"] == case.name:
            results.append(message)
        return bool(results)

    machine.serve_until(up, limit=case.silence, handle=handle)
    seen = results[0]
    text = seen["text"] if seen["passed"] else f"{seen['text']}\nconsole:\n{_since(case)}"
    return Outcome(
        name=case.name,
        verdict=PASSED if seen["passed"] else FAILED,
        text=text,
        seconds=seen["seconds"],
        findings=seen["findings"],
    )


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
