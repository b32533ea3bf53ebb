"""A reboot, as far as a guest that goes on running can have one: another boot id, other groups."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

from vm import topology
from vm.guest.pci import PCI, Function, below

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def another_boot_id(folder: Path) -> Callable[[], None]:
    """Let the kernel tell another boot id; return what undoes that. *folder* keeps the new one."""
    file = folder / "boot_id"
    file.write_text(f"{uuid4()}\n")
    subprocess.run(["mount", "--bind", file, _BOOT_ID], check=True)

    def undo() -> None:
        subprocess.run(["umount", _BOOT_ID], check=True)

    return undo


def renumber(chips: Sequence[Function]) -> None:
    """Give *chips*, in the order of their addresses, other IOMMU groups: one of them the other's.

    The kernel gives away its lowest free number. Where the NVMe controller, which is found after
    them at boot, is found before them, they move up by one; the next time they move back. Nobody
    may have any of the three open.
    """
    (spare,) = below(topology.PLUGGABLE_PORT)
    (bus,) = (PCI / "devices" / topology.PLUGGABLE_PORT / "pci_bus").iterdir()
    up = spare.group > min(chip.group for chip in chips)
    for function in (*chips, spare):
        function.remove()
    if up:
        (bus / "rescan").write_text("1")
    (PCI / "rescan").write_text("1")
    assert spare.present, f"{spare.address} was not found again"
    for chip in chips:
        assert chip.present, f"{chip.address} was not found again"
        chip.become(topology.TPU_V5E)
        chip.bind()
