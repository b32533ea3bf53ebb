"""Reads the text of /etc/tpu/tpu-env, which the Cloud TPU runtime leaves on its hosts."""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from holdfast.model.tpu.env import TpuHostFacts
from holdfast.model.tpu.generations import parse_topology

_LINE = re.compile(r"(?:export\s+)?(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)\s*[:=]\s*(?P<value>.*)")
_ACCELERATOR = re.compile(r"[a-z0-9]+-[0-9]{1,6}")
_HOSTNAMES = re.compile(r"[A-Za-z0-9._:\[\]-]+(,[A-Za-z0-9._:\[\]-]+)*")
_MOST_PROBLEMS = 8
_MOST_SHOWN = 60


class TpuEnvFile(Struct, frozen=True, kw_only=True):
    """What the file says. `problems` name each line or value that could not be used."""

    values: Mapping[str, str] = field(default_factory=dict)
    facts: TpuHostFacts = field(default_factory=TpuHostFacts)
    problems: tuple[str, ...] = ()


def parse_tpu_env(text: str) -> TpuEnvFile:
    """Read lines ``KEY: 'value'`` and ``KEY=value``; never raises, whatever *text* is."""
    problems: list[str] = []
    values: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or line == "---":
            continue
        match = _LINE.fullmatch(line)
        value = None if match is None else _unquoted(match["value"])
        if match is None or value is None:
            problems.append(f"line {number} of tpu-env cannot be read: {_shown(line)}")
            continue
        values[match["key"]] = value
    hostnames = _checked(values, problems, "WORKER_HOSTNAMES", _is_hostnames)
    facts = TpuHostFacts(
        topology=_checked(values, problems, "TOPOLOGY", _is_topology),
        accelerator_type=_checked(values, problems, "ACCELERATOR_TYPE", _is_accelerator_type),
        worker_id=_checked(values, problems, "WORKER_ID", _is_number),
        worker_hostnames=tuple(hostnames.split(",")) if hostnames else (),
        ici_resiliency=_flag(values, problems),
    )
    if len(problems) > _MOST_PROBLEMS:
        more = len(problems) - _MOST_PROBLEMS
        problems[_MOST_PROBLEMS:] = [f"tpu-env has {more} more lines or values that are odd"]
    return TpuEnvFile(values=values, facts=facts, problems=tuple(problems))


def _unquoted(value: str) -> str | None:
    """Return *value* without its quotes; None when a quote is not closed or text follows it."""
    quote = value[:1]
    if quote not in ("'", '"') or not quote:
        return value if value.isprintable() else None
    inner = value[1:-1]
    if len(value) == 1 or value[-1] != quote or quote in inner or not inner.isprintable():
        return None
    return inner


def _checked(
    values: Mapping[str, str], problems: list[str], key: str, sound: Callable[[str], bool]
) -> str | None:
    """Return the value of *key*, also written with TPU_ before it; empty counts as absent."""
    usable = None
    for name in (f"TPU_{key}", key):
        value = values.get(name, "")
        if value and not sound(value):
            problems.append(f"{name} of tpu-env cannot be used: {_shown(value)}")
        elif value and usable is None:
            usable = value
    return usable


def _is_topology(value: str) -> bool:
    return parse_topology(value) is not None


def _is_accelerator_type(value: str) -> bool:
    return _ACCELERATOR.fullmatch(value) is not None


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _is_hostnames(value: str) -> bool:
    return _HOSTNAMES.fullmatch(value) is not None


def _is_flag(value: str) -> bool:
    return value.lower() in ("true", "false")


def _flag(values: Mapping[str, str], problems: list[str]) -> bool | None:
    text = _checked(values, problems, "ENABLE_ICI_RESILIENCY", _is_flag)
    return None if text is None else text.lower() == "true"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")
