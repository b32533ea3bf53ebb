"""What settings are made of: sections, durations and whole numbers within bounds."""

import math
import re
from typing import Annotated, Any, cast, get_args

import msgspec
from msgspec import Meta

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Index = Annotated[int, Meta(ge=0)]
Replicas = Annotated[int, Meta(ge=2, le=256)]

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h)")
PATTERN = rf"({_NUMBER}(ms|s|m|h))+|{_NUMBER}"
"""What a duration looks like when it is text, as a regular expression."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The rules that all sections share: unknown keys are refused, names are camelCase."""


def plain(section: Section) -> dict[str, Any]:
    """Return *section* as plain values for YAML and JSON; `sources.convert` reads them again."""
    return cast("dict[str, Any]", msgspec.to_builtins(section, enc_hook=float))


def entry_of(kind: object) -> type[Section] | None:
    """Return the section that each entry of a list is, where it is one."""
    first = next(iter(get_args(kind)), None)
    return first if isinstance(first, type) and issubclass(first, Section) else None


class Duration(float):
    """A length of time in seconds; written ``250ms``, ``30s``, ``1h30m`` or as a number."""

    __slots__ = ()

    @classmethod
    def parse(cls, given: object) -> "Duration":
        """Return what *given* says; raise ValueError with what would be right."""
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            raise ValueError(  # noqa: TRY004 - msgspec takes ValueError alone for bad input
                "expected a duration such as 30s or 250ms"
            )
        try:
            seconds = _seconds(given) if isinstance(given, str) else float(given)
        except OverflowError:
            seconds = math.inf
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"expected a duration such as 30s or 250ms, got {given!r}")
        return cls(seconds)


class Interval(Duration):
    """A Duration above zero: something is done again and again after it, and zero would spin."""

    __slots__ = ()

    @classmethod
    def parse(cls, given: object) -> "Interval":
        """Return what *given* says; raise ValueError with what would be right."""
        interval = cls(super().parse(given))
        if not interval:
            raise ValueError("expected a duration above zero")
        return interval


def _seconds(text: str) -> float:
    """Return what *text* says; not a number when it says nothing."""
    if not re.fullmatch(PATTERN, text):
        return math.nan
    parts = _PART.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(text)
