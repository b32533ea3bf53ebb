"""A GPU node as NVML shows it: the stub library, and the control file that it answers from."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

GIB = 1 << 30
CONTROL = "NVML_STUB"
"""The environment variable that names the control file."""
XID = 8
ALL_EVENTS = 0b1011
_SOURCE = Path(__file__).resolve().parents[1] / "native/nvml/stub.c"


@dataclass(frozen=True)
class Slice:
    uuid: str
    gi: int
    ci: int = 0
    profile: str = "1g.10gb"
    slices: tuple[int, int] = (1, 1)
    mib: int = 9856
    used: int = 0
    processes: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Card:
    """One GPU. `processes` are (compute|graphics|mps, pid, bytes); `errors` and `hangs` by function."""

    uuid: str
    minor: int = 0
    bus: str = "00000000:65:00.0"
    name: str = "NVIDIA H100 80GB HBM3"
    memory: int = 80 * GIB
    used: int = 0
    mig: int = -1
    events: int = ALL_EVENTS
    slices: tuple[Slice, ...] = ()
    processes: tuple[tuple[str, int, int], ...] = ()
    links: Mapping[int, tuple[bool, str, str]] = field(default_factory=dict)
    ancestors: Mapping[int, int] = field(default_factory=dict)
    remap: tuple[int, int] | None = None
    retired: int = -1
    temperature: tuple[int, int] | None = None
    recovery: int | None = None
    """NVML's number of what the driver asks for; None: an older driver."""
    errors: Mapping[str, int] = field(default_factory=dict)
    hangs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    uuid: str
    xid: int
    kind: int = XID
    gi: int = 0xFFFFFFFF
    ci: int = 0xFFFFFFFF


@dataclass(frozen=True)
class Node:
    cards: tuple[Card, ...] = ()
    driver: str = "550.54.15"
    init: int = 0
    wait: int = 0
    """What a wait for events fails with."""
    events: tuple[Event, ...] = ()


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-000000000000"


def cards(count: int, **changes: object) -> tuple[Card, ...]:
    """Return *count* GPUs, half of them behind each of two CPUs."""
    return tuple(
        replace(
            Card(
                uuid=uuid(index),
                minor=index,
                bus=f"00000000:{0x10 + index:02X}:00.0",
                ancestors={
                    other: 20 if (other < count / 2) == (index < count / 2) else 50
                    for other in range(count)
                    if other != index
                },
            ),
            **changes,  # type: ignore[arg-type]
        )
        for index in range(count)
    )


def build(folder: Path) -> Path:
    """Build the stub in *folder* and return the library."""
    gcc = shutil.which("gcc")
    if gcc is None:
        reason = "no gcc to build the NVML stub with (apt-get install gcc)"
        # On CI a machine is known to have all it takes: there a skip would hide a failure.
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(
        [gcc, *flags, f"-Wl,-soname,{library.name}", "-o", str(library), str(_SOURCE)],
        check=True,
        capture_output=True,
    )
    return library


def write(control: Path, node: Node) -> None:
    """Let the stub answer as *node* from now on."""
    lines = [f"init {node.init}", f"driver {node.driver}", f"wait {node.wait}"]
    for card in node.cards:
        lines += _card(card)
    lines += [
        f"event {number} {each.kind} {each.uuid or '-'} {each.xid} {each.gi} {each.ci}"
        for number, each in enumerate(node.events, start=1)
    ]
    half = control.with_name(f".{control.name}")
    half.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    half.replace(control)


def _card(card: Card) -> list[str]:
    lines = [
        f"gpu {card.uuid}",
        f"name {card.name}",
        f"bus {card.bus}",
        f"minor {card.minor}",
        f"memory {card.memory}",
        f"used {card.used}",
        f"mig {card.mig}",
        f"events {card.events}",
        f"retired {card.retired}",
    ]
    if card.remap is not None:
        lines.append(f"remap {card.remap[0]} {card.remap[1]}")
    if card.recovery is not None:
        lines.append(f"recovery {card.recovery}")
    if card.temperature is not None:
        lines.append(f"temperature {card.temperature[0]} {card.temperature[1]}")
    lines += [f"link {link} {int(up)} {kind} {bus}" for link, (up, kind, bus) in card.links.items()]
    lines += [f"ancestor {other} {level}" for other, level in card.ancestors.items()]
    lines += [f"error {function} {code}" for function, code in card.errors.items()]
    lines += [f"hang {function} {seconds}" for function, seconds in card.hangs.items()]
    lines += [_process(each) for each in card.processes]
    for each in card.slices:
        gi, ci = each.slices
        lines.append(
            f"slice {each.uuid} {each.gi} {each.ci} {gi} {ci} {each.mib} {card.name} MIG {each.profile}"
        )
        lines.append(f"used {each.used}")
        lines += [_process(process) for process in each.processes]
    return lines


def _process(process: tuple[str, int, int]) -> str:
    kind, pid, memory = process
    return f"process {kind} {pid} {memory}"
