"""A node's GPUs as NVML shows them: a stub library, and the control file that it answers from."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.errors import HostError

LIBRARY = "libnvidia-ml.so.1"
GIB = 1 << 30
CONTROL = "NVML_STUB"
"""The environment variable that names the control file."""
XID = 8
"""NVML's number of the type of event that carries an Xid."""
ALL_EVENTS = 0b1011
_ANY = 0xFFFFFFFF
"""What an event says of the slice when it is about the whole GPU."""
_SOURCE = Path(__file__).with_name("native") / "nvml.c"
_COMPILERS = ("cc", "gcc", "clang")
_SAME_SWITCH, _OTHER_CPU = 20, 50
_STALLS = ("", "wait", "end")


class Slice(Struct, frozen=True):
    """One MIG device. `processes` as those of a card; `used` in bytes."""

    uuid: str
    gi: int
    ci: int = 0
    profile: str = "1g.10gb"
    slices: tuple[int, int] = (1, 1)
    mib: int = 9856
    used: int = 0
    processes: tuple[tuple[str, int, int], ...] = ()


class Card(Struct, frozen=True):
    """One GPU. `processes` are (compute|graphics|mps, pid, bytes).

    `errors` (NVML's codes) and `hangs` (seconds) are by the function that they concern; `*`: all.
    """

    uuid: str
    minor: int = 0
    bus: str = "00000000:65:00.0"
    name: str = "NVIDIA H100 80GB HBM3"
    memory: int = 80 * GIB
    used: int = 0
    mig: int = -1
    utilization: int = -1
    """Percent; below 0: it does not tell."""
    virtualization: int = -1
    addressing: int = -1
    """NVML's numbers of the modes; below 0: it does not tell."""
    fabric: tuple[int, int, int, str] | None = None
    """NVML's state and status, the clique and the cluster, 16 bytes in hex; None: there is none."""
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


class Event(Struct, frozen=True):
    """Something that happened to the GPU `uuid`; empty: NVML cannot say to which."""

    uuid: str
    xid: int
    kind: int = XID
    gi: int = _ANY
    ci: int = _ANY


class Node(Struct, frozen=True):
    """All that the library answers from; `init` is what its start, `wait` what a wait fails with.

    `stall`: a wait for events, or the end of the set of them, does not come back. `keeps`: the path
    of a file that is open while the library is begun, as the driver's nodes are by NVIDIA's.

    `past` events came before the first of `events`, and are no longer delivered.
    """

    cards: tuple[Card, ...] = ()
    driver: str = "550.54.15"
    init: int = 0
    wait: int = 0
    events: tuple[Event, ...] = ()
    past: int = 0
    stall: Literal["", "wait", "end"] = ""
    keeps: str = ""


def uuid(number: int) -> str:
    """Return the UUID of the GPU with that index."""
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
                    other: _SAME_SWITCH
                    if (other < count / 2) == (index < count / 2)
                    else _OTHER_CPU
                    for other in range(count)
                    if other != index
                },
            ),
            **changes,
        )
        for index in range(count)
    )


def compiler() -> str:
    """Return this machine's C compiler; raise HostError when it has none."""
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise HostError(
            "cannot build the stand-in for NVIDIA's library: there is no C compiler "
            f"({', '.join(_COMPILERS)}) on the PATH; install one, such as by `apt-get install gcc` "
            "or `dnf install gcc`"
        )
    return found


def build(folder: Path, *, version: str = "") -> Path:
    """Build the library in *folder* and return it; raise HostError when that fails.

    It is of the driver's *version* alone, or, if that is empty, of whichever there is.
    """
    library = folder / LIBRARY
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-pthread", f'-DVERSION="{version}"']
    made = subprocess.run(
        [compiler(), *flags, f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(_SOURCE)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise HostError(
            "cannot build the stand-in for NVIDIA's library: "
            f"{(made.stderr.strip().splitlines() or ['the compiler failed'])[-1]}; the C library's "
            "headers may be missing (`apt-get install libc6-dev`)"
        )
    return library


def write(control: Path, node: Node) -> None:
    """Let the library answer as *node* from now on."""
    lines = [
        f"init {node.init}",
        f"driver {node.driver}",
        f"wait {node.wait}",
        f"stall {_STALLS.index(node.stall)}",
    ]
    if node.keeps:
        lines.append(f"keeps {node.keeps}")
    for card in node.cards:
        lines += _card(card)
    lines += [
        f"event {number} {each.kind} {each.uuid or '-'} {each.xid} {each.gi} {each.ci}"
        for number, each in enumerate(node.events, start=node.past + 1)
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
        f"utilization {card.utilization}",
        f"events {card.events}",
        f"retired {card.retired}",
    ]
    if card.virtualization >= 0:
        lines.append(f"virtualization {card.virtualization}")
    if card.addressing >= 0:
        lines.append(f"addressing {card.addressing}")
    if card.fabric is not None:
        lines.append(f"fabric {' '.join(map(str, card.fabric))}")
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
            f"slice {each.uuid} {each.gi} {each.ci} {gi} {ci} {each.mib} "
            f"{card.name} MIG {each.profile}"
        )
        lines.append(f"used {each.used}")
        lines += [_process(process) for process in each.processes]
    return lines


def _process(process: tuple[str, int, int]) -> str:
    kind, pid, memory = process
    return f"process {kind} {pid} {memory}"
