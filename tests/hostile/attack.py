"""What an attack is: a program, where it runs, and what it makes hard to see."""

from enum import Enum
from typing import Literal

from msgspec import Struct


class Place(Enum):
    """In whose cgroup the attack runs."""

    FORMER = "the pod whose device the next one shall get"
    STRANGER = "another pod, without a device, which kubelet counts all the time"


class Attack(Struct, frozen=True, kw_only=True):
    """A program that makes it hard to see that a device is in use, or to look at all.

    `run` is the program, its kind of attack and its numbers; the nodes come after. `seconds` is how
    long others start and end pods meanwhile. `origin`: where a review showed it first.
    """

    name: str
    on: str
    run: tuple[str, ...]
    place: Place = Place.STRANGER
    nodes: int = 1
    chips: int = 3
    mode: Literal["observe", "terminate"] = "observe"
    seconds: float = 2.5
    mappable: bool = False
    """The device is one whose memory can be mapped; who holds it is known by the attacker's word."""
    asks: bool = False
    """Somebody asks `holdfast holders` each second."""
    forced: bool = False
    """The former pod is deleted by force and has an hour left to end."""
    origin: str = ""
    wins: bool = False
    """It is known to win at times: that is told, and not counted."""
    untold: str = ""
    """What a look says of it where the kernel does not tell which file it is: then the next pod may
    start, marked as unverified for this reason, and never as on a device that is known to be free."""


class Result(Struct, kw_only=True):
    """What came of an attack. Times in seconds, memory in MiB."""

    attack: Attack
    skipped: str = ""
    kernel: str = ""
    daemon: str = ""
    handed_out: str = ""
    """What the kernel told of the device that the next pod was started on; empty: it was free."""
    unverified: str = ""
    """The reason for which that start is marked, where the kernel does not tell more."""
    start: float = 0.0
    release: float = 0.0
    held_up: list[str] = []
    memory: float = 0.0

    def row(self) -> str:
        """Return its line of the table."""
        if self.skipped:
            return f"{self.attack.name:24} NOT RUN: {self.skipped}"
        verdicts = [
            *([f"HANDED OUT{', as is known' * self.attack.wins}"] if self.handed_out else ()),
            *(f"HELD UP: {each}" for each in self.held_up),
            *(["OVER MEMORY"] if self.memory > MEMORY else ()),
        ]
        kept = f"kept, unverified: {self.unverified}" if self.unverified else "kept"
        start = f"{self.start:5.1f} s" if self.start else "not tried"
        return (
            f"{self.attack.name:24} {self.kernel:30} start {start:9} release "
            f"{self.release:5.1f} s  {self.memory:5.1f} MiB  {'; '.join(verdicts) or kept}: {self.daemon}"
        )


MEMORY = 96.0
"""The most memory in MiB that the daemon may ever have in use."""
LATER_START = 2.0
"""How much longer another pod's start may take under an attack, in seconds."""
LATER_RELEASE = 5.0
"""How much longer the release of another pod's device may take under an attack, in seconds."""
