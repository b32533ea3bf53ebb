"""NVIDIA's GPUs and driver on a simulated node: NVML, device nodes, /proc, kept true together."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from simulated.node import SimulatedNode
from simulated.nvml import Card, Event, Node, cards, write

NOT_LOADED = 9
"""NVML's code: the driver is not loaded."""
_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_PROC = "driver/nvidia"
_VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Mar  5 22:23:56 2024\n"


@dataclass
class SimulatedGpus:
    """The GPUs of *node*; `control` is the file that the stub of NVML answers from."""

    node: SimulatedNode
    control: Path
    stub: Node = field(default_factory=lambda: Node(init=NOT_LOADED))
    """What NVML answers; the driver is not there at first."""
    _capabilities: dict[str, int] = field(default_factory=dict)
    """The minor number of each capability that has a node."""

    def __post_init__(self) -> None:
        self.show(self.stub)

    def arrive(self, count: int, **changes: object) -> None:
        """Load the driver of *count* GPUs, each with *changes*."""
        self.show(replace(self.stub, cards=cards(count, **changes)))
        self.load()

    def load(self) -> dict[int, int]:
        """Load the driver: NVML, the device nodes, then /proc, by which a daemon knows of it.

        Return which GPU each device number stands for.
        """
        self.show(replace(self.stub, init=0))
        paths = [f"/dev/nvidia{index}" for index in range(len(self.stub.cards))]
        for path in (*paths, *_SHARED):
            if not self.node.node(path).exists():
                self.node.tree.terminal(path)
        # The nodes are terminals, so that their major is the driver's on this node.
        major = self._major()
        drivers = "".join(f"{major} {name}\n" for name in ("nvidia", "nvidiactl", "nvidia-uvm"))
        proc = self.node.root.proc
        (proc / "devices").write_text(f"Character devices:\n{drivers}\nBlock devices:\n")
        if (proc / _PROC).exists():
            self._tell_version()
        else:
            self._make_proc()
        return {self.node.node(path).stat().st_rdev: index for index, path in enumerate(paths)}

    def replace_driver(self, version: str) -> None:
        """Replace the kernel's driver by another version; at no moment is there none."""
        self.show(replace(self.stub, driver=version))
        self._tell_version()

    def leave(self) -> None:
        """Unload the driver; its device nodes stay, as they do."""
        shutil.rmtree(self.node.root.proc / _PROC)
        self.show(replace(self.stub, init=NOT_LOADED))

    def add_capabilities(self, *lines: str, major: int = 237) -> None:
        """Let the driver have these capabilities of MIG slices."""
        devices = self.node.root.proc / "devices"
        devices.write_text(devices.read_text().replace(":\n", f":\n{major} nvidia-caps\n", 1))
        folder = self.node.root.proc / "driver/nvidia-caps"
        folder.mkdir(exist_ok=True)
        (folder / "mig-minors").write_text("\n".join(lines))

    def make_capabilities(self, instances: int) -> None:
        """Let each GPU have so many GPU instances with one compute instance, each with its node."""
        lines = []
        for card in self.stub.cards:
            for name in (f"gpu{card.minor}/gi{number}" for number in range(instances)):
                lines += [
                    f"{each}/access {self._capability(each)}" for each in (name, f"{name}/ci0")
                ]
        self.add_capabilities(*lines, major=self._major())

    def _capability(self, name: str) -> int:
        """Return the minor number of a capability's node, which is a terminal."""
        if name not in self._capabilities:
            folder = self.node.root.dev / "nvidia-caps"
            folder.mkdir(exist_ok=True)
            made = f"/dev/nvidia-caps/{name.replace('/', '-')}"
            minor = os.minor(self.node.tree.terminal(made))
            self.node.tree.rename(made, f"/dev/nvidia-caps/nvidia-cap{minor}")
            self._capabilities[name] = minor
        return self._capabilities[name]

    def _major(self) -> int:
        """Return the major number of this node's terminals, which is the driver's on it."""
        return os.major(self.node.node(_SHARED[0]).stat().st_rdev)

    def add_imex_channel(self) -> None:
        """Let the node have IMEX channel 0."""
        folder = self.node.root.dev / "nvidia-caps-imex-channels"
        folder.mkdir(exist_ok=True)
        self.node.tree.terminal("/dev/nvidia-caps-imex-channels/channel0")

    def add_renderer(self, card: Card) -> str:
        """Let programs draw on a GPU; return the node by which they do."""
        (self.node.root.dev / "dri").mkdir(exist_ok=True)
        path = f"/dev/dri/renderD{128 + card.minor}"
        rdev = self.node.tree.terminal(path)
        entry = self.node.root.sys / "bus/pci/devices" / address(card) / "drm" / Path(path).name
        entry.mkdir(parents=True)
        (entry / "dev").write_text(f"{os.major(rdev)}:{os.minor(rdev)}\n")
        return path

    def show(self, stub: Node) -> None:
        """Let NVML answer as *stub* from now on."""
        self.stub = stub
        write(self.control, stub)

    def change(self, index: int, change: Callable[[Card], Card]) -> None:
        """Change one GPU."""
        self.show(self.changed(index, change))

    def changed(self, index: int, change: Callable[[Card], Card]) -> Node:
        """Return what NVML would answer if one GPU were changed."""
        before = enumerate(self.stub.cards)
        changed = tuple(change(card) if place == index else card for place, card in before)
        return replace(self.stub, cards=changed)

    def xid(self, uuid: str, number: int) -> None:
        """Let the driver report an Xid."""
        self.show(replace(self.stub, events=(*self.stub.events, Event(uuid, number))))

    def _tell_version(self) -> None:
        version = _VERSION.format(self.stub.driver)
        (self.node.root.proc / _PROC / "version").write_text(version)

    def _make_proc(self) -> None:
        """Make the driver's folder, and show it only when it is whole."""
        proc = self.node.root.proc / "driver/.nvidia"
        (proc / "gpus").mkdir(parents=True)
        for index, card in enumerate(self.stub.cards):
            about = proc / "gpus" / address(card)
            about.mkdir()
            (about / "information").write_text(
                f"Model: \t\t {card.name}\nGPU UUID: \t {card.uuid}\nDevice Minor: \t {index}\n"
            )
        (proc / "version").write_text(_VERSION.format(self.stub.driver))
        proc.rename(self.node.root.proc / _PROC)


def address(card: Card) -> str:
    """Return a card's PCI address as sysfs writes it."""
    return card.bus.lower().removeprefix("0000")
