"""NVIDIA GPUs on a simulated node: what the kernel shows, and NVML's stub, kept true together."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from fakes.nvml import Card, Event, Node, cards, write
from simulated import driver
from simulated.node import SimulatedNode


@dataclass
class SimulatedGpus:
    """The GPUs of *node*; `control` is the file that the stub answers from."""

    node: SimulatedNode
    control: Path
    stub: Node = field(default_factory=Node)

    def arrive(self, count: int, **changes: object) -> None:
        """Load the driver: /proc, the nodes, and then NVML's answers, each GPU with *changes*."""
        self.show(replace(self.stub, init=0, cards=cards(count, **changes)))
        driver.load(self.node, self.stub.cards, self.stub.driver)

    def replace_driver(self, version: str) -> None:
        """Load another version of the kernel's driver, so fast that nobody sees it missing."""
        self.show(replace(self.stub, driver=version))
        driver.tell_version(self.node, version)

    def add_capabilities(self, *lines: str) -> None:
        """Let the driver have these capabilities of MIG slices."""
        devices = self.node.root.proc / "devices"
        devices.write_text(devices.read_text().replace(":\n", ":\n237 nvidia-caps\n", 1))
        folder = self.node.root.proc / "driver/nvidia-caps"
        folder.mkdir(exist_ok=True)
        (folder / "mig-minors").write_text("\n".join(lines))

    def add_imex_channel(self) -> None:
        """Let the node have IMEX channel 0."""
        folder = self.node.root.dev / "nvidia-caps-imex-channels"
        folder.mkdir(exist_ok=True)
        self.node.tree.terminal("/dev/nvidia-caps-imex-channels/channel0")

    def leave(self) -> None:
        """Unload the driver."""
        driver.unload(self.node)
        self.show(replace(self.stub, init=9))

    def show(self, stub: Node) -> None:
        """Let NVML answer as *stub* from now on."""
        self.stub = stub
        write(self.control, stub)

    def change(self, index: int, change: Callable[[Card], Card]) -> None:
        """Change one GPU."""
        before = self.stub.cards
        self.show(
            replace(
                self.stub,
                cards=tuple(change(c) if i == index else c for i, c in enumerate(before)),
            )
        )

    def xid(self, uuid: str, number: int) -> None:
        """Let the driver report an Xid."""
        self.show(replace(self.stub, events=(*self.stub.events, Event(uuid, number))))

    def node_of(self, uuid: str) -> Path:
        """Return the device node of a GPU."""
        minor = next(card.minor for card in self.stub.cards if card.uuid == uuid)
        return self.node.node(f"/dev/nvidia{minor}")
