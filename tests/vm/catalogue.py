"""The cases that run in the test machine: every function `case_...` of the modules in cases/."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vm.modes import CHART, MODES, OBSERVE

Function = TypeVar("Function", bound=Callable[..., str])
_PATIENCE = 6.0
_PREFIX, _CHART = "case_", "chart_"
PREPARATION = 700.0
"""How many seconds a daemon may take to start before a case, on a machine with much else to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case. `run` takes the GuestNode and returns what was seen, or raises AssertionError.

    `deadline` is how many seconds of the guest's clock it may take on an idle machine; a case that is `last` runs after all others,
    since it may leave the kernel in a state that nothing but a boot undoes. `daemon` names the way
    in which the daemon runs meanwhile (see modes.py), none if empty. `needs` names
    a program that does not come with the machine's other parts (see PROGRAMS of packages.py). One
    that is `asked` for runs only where a pattern selects it, not in a run of all cases.
    """

    name: str
    run: Callable[..., str]
    deadline: float = 60.0
    last: bool = False
    daemon: str = ""
    needs: str = ""
    asked: bool = False

    @property
    def as_chart(self) -> bool:
        """Whether its daemon runs as the chart does."""
        return self.daemon.startswith(CHART)

    @property
    def silence(self) -> float:
        """How many seconds may go by without a word: its preparation, itself, its undoing."""
        return PREPARATION + 2 * self.patience + 30.0

    @property
    def patience(self) -> float:
        """How many seconds until it is given up, on a machine with much else to do."""
        return _PATIENCE * self.deadline


def case(
    *,
    deadline: float = 60.0,
    last: bool = False,
    daemon: str = "",
    needs: str = "",
    chart: str | None = "",
    always: bool = False,
) -> Callable[[Function], Function]:
    """Decorate a case that needs other settings than the usual ones.

    One with a daemon is a second case where the daemon runs as the chart does: in the mode *chart*,
    by default in the same one, or not at all where that is None. Where it does, the case has to be
    asked for, unless *always*.
    """

    def mark(function: Function) -> Function:
        settings = {"deadline": deadline, "last": last, "needs": needs}
        of_chart = daemon.startswith(CHART)
        ways = [{**settings, "daemon": daemon, "asked": of_chart and not always}]
        if daemon and not of_chart and chart is not None:
            mode = f"{CHART}{chart or daemon}"
            ways.append({**settings, "daemon": mode, "asked": not always})
        function.case_settings = ways  # type: ignore[attr-defined]
        return function

    return mark


def all_cases() -> tuple[Case, ...]:
    """Return the cases in the order in which they run; those that share a daemon are neighbours.

    On a slow machine time may not be enough for the last of them: so first comes what is cheap or
    proves most.
    """
    found = []
    for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent / "cases")])):
        for name, value in vars(importlib.import_module(f"vm.cases.{module.name}")).items():
            if name.startswith(_PREFIX) and value.__module__ == f"vm.cases.{module.name}":
                for settings in getattr(value, "case_settings", [{}]):
                    named = _named(name.removeprefix(_PREFIX), settings.get("daemon", ""))
                    found.append(Case(name=named, run=value, **settings))
    return tuple(sorted(found, key=_turn))


def _turn(case: Case) -> tuple[bool, bool, bool, int]:
    ways = ["", *MODES]
    # Most cases with a daemon are of this mode, each about one more way to hold or to hand on.
    plain = case.daemon == OBSERVE
    return case.last, plain, case.as_chart, ways.index(case.daemon.removeprefix(CHART))


def _named(name: str, daemon: str) -> str:
    """Return the name of a case, which tells the way in which its daemon runs."""
    if not daemon.startswith(CHART) or name.startswith(_CHART):
        return name
    return _CHART + name.removeprefix("daemon_")


def selected(pattern: str) -> tuple[Case, ...]:
    """Return the cases whose name contains *pattern*; if it is empty, those that need no asking."""
    return tuple(
        case for case in all_cases() if pattern in case.name and (pattern or not case.asked)
    )
