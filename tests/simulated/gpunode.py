"""A simulated node with NVIDIA GPUs: nodes, /proc/driver/nvidia, and an NVML that is kept true."""

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from simulated.gpus import NOT_LOADED, SimulatedGpus, address
from simulated.node import SimulatedNode
from simulated.nvml import LIBRARY, Card, Event, Node, Slice, cards

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""What NVIDIA's container runtime reads to know which GPUs a container is to have."""
_VENDOR, _H100, _CLASS = 0x10DE, 0x2330, 0x030200
_MIB = 1 << 20
_IDLE = 5 * _MIB
_CONTEXT = 512 * _MIB
"""What a process that computes on a GPU takes of its memory."""
_LOST = 15
"""NVML's code: the GPU is lost."""
_FELL_OFF = 79


class GpuNode(SimulatedNode):
    """GPUs, and chips if asked for. The driver is not there until `load_driver`.

    NVML's process lists follow which processes of pods have which GPU's node open.
    """

    def __init__(self, folder: Path, *, library: Path, gpus: int = 8, chips: int = 0) -> None:
        """Build the node below *folder*; *library* is the built stub of NVML."""
        super().__init__(folder, chips=chips)
        self._library = library
        self._rdevs: dict[int, int] = {}
        self.control = folder / "nvml"
        self.driver_root = self.root.run / "nvidia/driver"
        self._gpus = SimulatedGpus(
            self, self.control, Node(init=NOT_LOADED, cards=cards(gpus, used=_IDLE))
        )
        for index, card in enumerate(self._gpus.stub.cards):
            self.tree.function(
                address(card),
                vendor=_VENDOR,
                device=_H100,
                class_code=_CLASS,
                driver=None,
                numa=index * 2 // gpus,
            )

    @property
    def uuids(self) -> tuple[str, ...]:
        """Return the GPUs' UUIDs, in NVML's order."""
        return tuple(card.uuid for card in self._gpus.stub.cards)

    def load_driver(self) -> None:
        """Let NVIDIA's driver appear, as a driver container makes it: nodes, library, /proc."""
        folder = self.driver_root / "usr/lib64"
        folder.mkdir(parents=True)
        shutil.copy2(self._library, folder / LIBRARY)
        for card in self._gpus.stub.cards:
            self.tree.bind(address(card), "nvidia")
        self._rdevs = self._gpus.load()

    def fall_off(self, index: int) -> None:
        """Let a GPU fall off the bus: an Xid, and from then on no answer but that it is lost."""
        lost = self._gpus.changed(index, lambda card: replace(card, errors={"*": _LOST}))
        event = Event(uuid=self.uuids[index], xid=_FELL_OFF)
        self._gpus.show(replace(lost, events=(*lost.events, event)))

    def xid(self, index: int, number: int) -> None:
        """Let the driver report an Xid of a GPU."""
        self._gpus.xid(self.uuids[index], number)

    def reset(self, index: int) -> None:
        """Let a GPU be reset: it answers again, and its former events are no longer delivered."""
        well = self._gpus.changed(index, lambda card: replace(card, errors={}))
        self._gpus.show(replace(well, past=well.past + len(well.events), events=()))

    def visible(self, variables: Mapping[str, str]) -> list[str]:
        """Return the GPUs' nodes that NVIDIA's container runtime adds for *variables*.

        Those that all GPUs share are left out: they tell no GPU from another.
        """
        wanted = set(variables.get(VISIBLE, "").split(","))
        return [
            f"/dev/nvidia{index}"
            for index, card in enumerate(self._gpus.stub.cards)
            if wanted & {card.uuid, *(each.uuid for each in card.slices)}
        ]

    def divide(self, index: int, uuid: str) -> None:
        """Let a GPU be in MIG mode with one slice."""
        pieces = (Slice(uuid, gi=7),)
        self._gpus.change(index, lambda card: replace(card, mig=1, slices=pieces))

    def users(self, index: int) -> tuple[int, ...]:
        """Return the processes of pods that have the GPU's node open."""
        pids = (pid for members in self._members.values() for pid in members)
        return tuple(pid for pid in pids if index in self._opened(pid))

    def _keep(self) -> None:
        super()._keep()
        cards = tuple(map(self._used, range(len(self.uuids)), self._gpus.stub.cards))
        if cards != self._gpus.stub.cards:
            self._gpus.show(replace(self._gpus.stub, cards=cards))

    def _used(self, index: int, card: Card) -> Card:
        """Return *card*, or its one slice, as the processes show it that have its node open."""
        users = self.users(index)
        used = _IDLE + _CONTEXT * len(users)
        processes = tuple(("compute", pid, _CONTEXT) for pid in users)
        if card.slices:
            (piece,) = card.slices
            return replace(card, slices=(replace(piece, used=used, processes=processes),))
        return replace(card, used=used, processes=processes)

    def _opened(self, pid: int) -> set[int]:
        """Return which GPUs' nodes a process has open."""
        return {self._rdevs[rdev] for rdev in _open_rdevs(pid) if rdev in self._rdevs}


def _open_rdevs(pid: int) -> Iterable[int]:
    """Yield the device numbers that a process has open; none once it has ended."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                yield link.stat().st_rdev
