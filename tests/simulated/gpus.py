"""What a node shows of NVIDIA's driver besides NVML: device nodes, /proc/devices, /proc/driver."""

import os
import shutil
from collections.abc import Sequence

from simulated.node import SimulatedNode
from simulated.nvml import Card

_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_PROC = "driver/nvidia"
_VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Mar  5 22:23:56 2024\n"


def load(node: SimulatedNode, cards: Sequence[Card], version: str) -> dict[int, int]:
    """Let the driver of *cards* appear; return which GPU each device number stands for.

    /proc/driver/nvidia comes last: by it a daemon knows that there is a driver.
    """
    paths = [f"/dev/nvidia{index}" for index in range(len(cards))]
    for path in (*paths, *_SHARED):
        if not node.node(path).exists():
            node.tree.terminal(path)
    # The nodes are terminals, so that their major is the driver's on this node.
    major = os.major(node.node(_SHARED[0]).stat().st_rdev)
    drivers = "".join(f"{major} {name}\n" for name in ("nvidia", "nvidiactl", "nvidia-uvm"))
    (node.root.proc / "devices").write_text(f"Character devices:\n{drivers}\nBlock devices:\n")
    if (node.root.proc / _PROC).exists():
        tell_version(node, version)
    else:
        _make_proc(node, cards, version)
    return {node.node(path).stat().st_rdev: index for index, path in enumerate(paths)}


def tell_version(node: SimulatedNode, version: str) -> None:
    """Let the kernel say that its driver is of *version*, as when it was replaced."""
    (node.root.proc / _PROC / "version").write_text(_VERSION.format(version))


def unload(node: SimulatedNode) -> None:
    """Let the driver be gone from the kernel; its nodes stay, as they do."""
    shutil.rmtree(node.root.proc / _PROC)


def address(card: Card) -> str:
    """Return a card's PCI address as sysfs writes it."""
    return card.bus.lower().removeprefix("0000")


def _make_proc(node: SimulatedNode, cards: Sequence[Card], version: str) -> None:
    """Make the driver's folder, and show it only when it is whole."""
    proc = node.root.proc / "driver/.nvidia"
    (proc / "gpus").mkdir(parents=True)
    for index, card in enumerate(cards):
        about = proc / "gpus" / address(card)
        about.mkdir()
        (about / "information").write_text(
            f"Model: \t\t {card.name}\nGPU UUID: \t {card.uuid}\nDevice Minor: \t {index}\n"
        )
    (proc / "version").write_text(_VERSION.format(version))
    proc.rename(node.root.proc / _PROC)
