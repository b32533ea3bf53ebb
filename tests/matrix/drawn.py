"""Any value that a setting's own type allows: within its form and its bounds, or at their ends.

Hypothesis would draw by what modules are loaded too: a seed alone has to give the same again.
"""

import random
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta, structs

from fakes.refusedsettings import tree
from holdfast.errors import SettingsError
from holdfast.settings import Settings, convert
from holdfast.settings.hardware import SharedName
from holdfast.settings.types import (
    Duration,
    Glob,
    PciClass,
    PciIds,
    Section,
    entry_of,
    forms,
    is_section,
)

_TIMES = ("1s", "250ms", "1h30m", "0.5", "90", 2, 0.25)
_LONGEST, _HIGHEST, _MOST = 400, 1 << 53, 4
"""How long a text, how high a number, and how many entries, where the type has no bound."""
_LETTERS = (
    *map(chr, range(160)),
    *"\xadé\u0301ß\u2028\u202e\ufeff\uffff字😀\U0010ffff",
)
_LIKELY: Mapping[Any, tuple[str, ...]] = {
    Glob: ("*", "0000:4*", "*:00.0", "GPU-*", "[0-9G]*", "?*?"),
    PciIds: ("*:*", "1234:??11", "10DE:*"),
    PciClass: ("0X01", "0x030200", "01"),
    SharedName: ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"),
}
"""Texts that are for some of the hardware: by chance hardly one is."""
_ODD = (
    *("9" * 309, "0x" + "f" * 17, "0b_", "1.0e+999", ".1_0", "1_000", "0o17", "1e3", "12:30"),
    *("2001-01-01", "2001-99-99", "NULL", "~", "Off", ".nan", "=", "<<"),
)
"""Texts that are something else to some readers of YAML."""


def value(path: str, chance: random.Random) -> Any:
    """Return a value that the key at *path* may have, with the defaults of all others."""

    def fits(each: Any) -> bool:
        return refusal(tree({path: each})) is None

    while True:
        found = any_value(path, chance)
        if fits(found):
            long = isinstance(found, str) and chance.random() < 0.5
            return _grown(found, fits) if long else found


def any_value(path: str, chance: random.Random) -> Any:
    """Return a value of the type that the key at *path* has; it may be refused all the same."""
    return _of(_kind(path), chance)


def refusal(config: Mapping[str, Any]) -> str | None:
    """Return why the daemon would not start with *config*, without starting it."""
    try:
        convert(config)
    except SettingsError as error:
        return str(error)
    return None


@cache
def _kind(path: str) -> Any:
    kind: Any = Settings
    for name in path.split("."):
        kind = forms(kind)[name]
    return kind


def _of(kind: Any, chance: random.Random) -> Any:  # noqa: PLR0911 - a table of kinds
    origin, parts = get_origin(kind), get_args(kind)
    if is_section(kind):
        return _section(kind, chance)
    if isinstance(kind, type) and issubclass(kind, Duration):
        return chance.choice(_TIMES)
    if origin is Literal:
        return chance.choice(parts)
    if origin is tuple:
        least = int(entry_of(kind) is not None)
        return [_of(parts[0], chance) for _ in range(chance.randint(least, _MOST))]
    if origin is Annotated and parts[0] is str:
        return _text(kind, parts[1], chance)
    if kind is int or origin is Annotated:
        form = parts[1] if parts else Meta()
        least, most = int(form.ge or 0), int(form.le or _HIGHEST)
        return chance.choice((least, most, chance.randint(least, most)))
    if kind is bool:
        return chance.random() < 0.5
    return _of(chance.choice(parts), chance) if parts else None


def _section(kind: type[Section], chance: random.Random) -> dict[str, Any]:
    needed = {each.encode_name for each in structs.fields(kind) if each.required}
    return {
        name: _of(each, chance)
        for name, each in forms(kind).items()
        if name in needed or chance.random() < 0.6
    }


def _text(kind: Any, form: Meta, chance: random.Random) -> str:
    """Return a text of a form: one that is likely, or a word of what is said of it, made odder."""
    pattern, most = str(form.pattern), form.max_length or _LONGEST

    def fits(each: str) -> bool:
        return len(each) <= most and re.search(pattern, each) is not None

    if kind in _LIKELY and chance.random() < 0.7:
        return chance.choice(_LIKELY[kind])
    words = ("", *(each.strip("`,") for each in str(form.description).split()))
    text = chance.choice([each for each in (*words, *_ODD) if fits(each)])
    for _ in range(chance.choice((0, chance.randrange(40)))):
        place = chance.randint(0, len(text))
        odd = "".join(chance.choices(_LETTERS, k=chance.randrange(3)))
        other = text[:place] + odd + text[place + chance.randrange(3) :]
        if fits(other):
            text = other
    return _grown(text, fits) if chance.random() < 0.5 else text


def _grown(text: str, fits: Callable[[str], bool]) -> str:
    """Return *text* with as many more of its first and of its last characters as *fits* allows."""
    for place in (1, -1):
        step = _LONGEST if text else 0
        while step:
            longer = text[:place] + text[min(place, 0)] * step + text[place:]
            if len(longer) <= _LONGEST and fits(longer):
                text = longer
            else:
                step //= 2
    return text
