"""The cases that run in the test machine: every function `case_...` of the modules in cases/."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., str])
_PREFIX = "case_"
PREPARATION = 200.0
"""How many seconds a daemon may take to start before a case, on a machine with much else to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case. `run` takes the GuestNode and returns what was seen, or raises AssertionError.

    `deadline` is in seconds of the guest's clock; a case that is `last` runs after all others,
    since it may leave the kernel in a state that nothing but a boot undoes. `daemon` names the way
    in which the daemon runs meanwhile (see MODES of guest/stage.py), none if empty. `needs` names
    a program that does not come with the machine's other parts (see PROGRAMS of packages.py).
    """

    name: str
    run: Callable[..., str]
    deadline: float = 60.0
    last: bool = False
    daemon: str = ""
    needs: str = ""

    @property
    def silence(self) -> float:
        """How many seconds may go by without a word: its preparation, itself, its undoing."""
        return PREPARATION + 2 * self.deadline + 30.0


def case(
    *, deadline: float = 60.0, last: bool = False, daemon: str = "", needs: str = ""
) -> Callable[[Function], Function]:
    """Decorate a case that needs other settings than the usual ones."""

    def mark(function: Function) -> Function:
        settings = {"deadline": deadline, "last": last, "daemon": daemon, "needs": needs}
        function.case_settings = settings  # type: ignore[attr-defined]
        return function

    return mark


def all_cases() -> tuple[Case, ...]:
    """Return the cases in the order in which they run; those that share a daemon are neighbours."""
    found = []
    for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent / "cases")])):
        for name, value in vars(importlib.import_module(f"vm.cases.{module.name}")).items():
            if name.startswith(_PREFIX) and value.__module__ == f"vm.cases.{module.name}":
                settings = getattr(value, "case_settings", {})
                found.append(Case(name=name.removeprefix(_PREFIX), run=value, **settings))
    return tuple(sorted(found, key=lambda case: (case.last, case.daemon)))


def selected(pattern: str) -> tuple[Case, ...]:
    """Return the cases whose name contains *pattern*, all of them if it is empty."""
    return tuple(case for case in all_cases() if pattern in case.name)
