"""A simulated node with NVIDIA GPUs: nodes, /proc/driver/nvidia, and an NVML that is kept true."""

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from simulated import driver
from simulated.node import SimulatedNode
from simulated.nvml import LIBRARY, Card, Event, Node, cards, write

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""What NVIDIA's container runtime reads to know which GPUs a container is to have."""
_VENDOR, _H100, _CLASS = 0x10DE, 0x2330, 0x030200
_MIB = 1 << 20
_IDLE = 5 * _MIB
_CONTEXT = 512 * _MIB
"""What a process that computes on a GPU takes of its memory."""
_NOT_LOADED, _LOST = 9, 15
"""NVML's codes: the driver is not loaded, the GPU is lost."""
_VERSION = Node().driver
_FELL_OFF = 79


class GpuNode(SimulatedNode):
    """GPUs, and chips if asked for. The driver is not there until `load_driver`.

    NVML's process lists follow which processes of pods have which GPU's node open.
    """

    def __init__(self, folder: Path, *, library: Path, gpus: int = 8, chips: int = 0) -> None:
        """Build the node below *folder*; *library* is the built stub of NVML."""
        super().__init__(folder, chips=chips)
        self._library = library
        self._shown: Node | None = None
        self._events: tuple[Event, ...] = ()
        self._past = 0
        self._loaded = False
        self._lost: set[int] = set()
        self._cards = cards(gpus, used=_IDLE)
        self._rdevs: dict[int, int] = {}
        self.control = folder / "nvml"
        self.driver_root = self.root.run / "nvidia/driver"
        self._show()
        for index, card in enumerate(self._cards):
            self.tree.function(
                driver.address(card),
                vendor=_VENDOR,
                device=_H100,
                class_code=_CLASS,
                driver=None,
                numa=index * 2 // gpus,
            )

    @property
    def uuids(self) -> tuple[str, ...]:
        """Return the GPUs' UUIDs, in NVML's order."""
        return tuple(card.uuid for card in self._cards)

    def load_driver(self) -> None:
        """Let NVIDIA's driver appear, as a driver container makes it: nodes, library, /proc."""
        folder = self.driver_root / "usr/lib64"
        folder.mkdir(parents=True)
        shutil.copy2(self._library, folder / LIBRARY)
        for card in self._cards:
            self.tree.bind(driver.address(card), "nvidia")
        self._loaded = True
        self._show()
        self._rdevs = driver.load(self, self._cards, _VERSION)

    def fall_off(self, index: int) -> None:
        """Let a GPU fall off the bus: an Xid, and from then on no answer but that it is lost."""
        self._lost.add(index)
        self._events += (Event(uuid=self._cards[index].uuid, xid=_FELL_OFF),)
        self._show()

    def reset(self, index: int) -> None:
        """Let a GPU be reset: it answers again, and nobody hears of its past any more."""
        self._lost.discard(index)
        self._past += len(self._events)
        self._events = ()
        self._show()

    def visible(self, variables: Mapping[str, str]) -> list[str]:
        """Return the GPUs' nodes that NVIDIA's container runtime adds for *variables*.

        Those that all GPUs share are left out: nobody is told apart by them.
        """
        wanted = [each for each in variables.get(VISIBLE, "").split(",") if each]
        return [f"/dev/nvidia{self.uuids.index(each)}" for each in wanted if each in self.uuids]

    def users(self, index: int) -> tuple[int, ...]:
        """Return the processes of pods that have the GPU's node open."""
        pids = (pid for members in self._members.values() for pid in members)
        return tuple(pid for pid in pids if index in self._opened(pid))

    def _keep(self) -> None:
        super()._keep()
        self._show()

    def _show(self) -> None:
        """Let NVML answer as things are."""
        shown = Node(
            cards=tuple(self._card(index) for index in range(len(self._cards))),
            init=0 if self._loaded else _NOT_LOADED,
            events=self._events,
            past=self._past,
        )
        if shown != self._shown:
            write(self.control, shown)
            self._shown = shown

    def _card(self, index: int) -> Card:
        users = self.users(index)
        return replace(
            self._cards[index],
            used=_IDLE + _CONTEXT * len(users),
            processes=tuple(("compute", pid, _CONTEXT) for pid in users),
            errors={"*": _LOST} if index in self._lost else {},
        )

    def _opened(self, pid: int) -> set[int]:
        """Return which GPUs' nodes a process has open."""
        return {self._rdevs[rdev] for rdev in _open_rdevs(pid) if rdev in self._rdevs}


def _open_rdevs(pid: int) -> Iterable[int]:
    """Yield the device numbers that a process has open; none once it has ended."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                yield link.stat().st_rdev
