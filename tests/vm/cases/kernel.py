"""What the kernel does by itself: the facts that holdfast is built on, proved on real VFIO groups."""

from vm.guest.holding import ALL
from vm.guest.node import GuestNode


def case_second_opener_gets_ebusy(node: GuestNode) -> str:
    chip = node.chips[0]
    before = chip.enable
    holder = node.hold(ALL, chip)
    second, enabled = node.open(chip), chip.enable
    holder.release()
    after = node.open(chip)
    assert (before, second, enabled, after) == (0, "EBUSY", 1, "ok")
    return f"second open: {second}, enable=1; after the first exits: {after}, enable={chip.enable}"
