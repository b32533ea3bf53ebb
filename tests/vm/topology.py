"""The PCI hardware of the test machine: what QEMU is asked for, and what the guest makes of it."""

from collections.abc import Mapping

TPU_CHIPS = ("0000:00:05.0", "0000:00:06.0", "0000:00:07.0", "0000:00:08.0")
"""Four TPU v5e chips, each alone in its IOMMU group and without any reset."""

TWIN_CHIP = ("0000:00:0a.0", "0000:00:0a.1")
"""A tpu7x chip whose two functions share one IOMMU group."""

MIXED_GROUP = ("0000:00:0b.0", "0000:00:0b.1")
"""Two plain functions in one group, of which the second can be given to a native driver."""

PLUGGABLE_PORT = "0000:00:10.0"
"""A root port with one NVMe controller (it has FLR), which QMP can unplug and plug."""

BRIDGE_PORT = "0000:00:11.0"
"""A root port with a PCIe-to-PCI bridge and one function behind it: a group with bridges in it."""

SPLIT_PORT = "0000:00:12.0"
"""A root port with an SR-IOV controller: its two virtual functions share a slot, not a group."""

PLUGGABLE_ID = "plug"
"""What QMP calls the NVMe controller behind PLUGGABLE_PORT."""

PLUGGABLE_DEVICE: Mapping[str, str] = {
    "driver": "nvme",
    "id": PLUGGABLE_ID,
    "bus": "plug-port",
    "serial": "plug",
}
"""The arguments of QMP device_add that plug the controller in again."""

TPU_V5E = "1ae0:0063"
TPU_7X = "1ae0:0076"
EDU = "1234:11e8"
NVME = "1b36:0010"

_TWO_VIRTUAL_FUNCTIONS = (
    "sriov_max_vfs=2,sriov_vq_flexible=4,sriov_vi_flexible=2,max_ioqpairs=6,msix_qsize=5"
)

IDENTITIES: Mapping[str, str] = {
    **dict.fromkeys(TPU_CHIPS, TPU_V5E),
    **dict.fromkeys(TWIN_CHIP, TPU_7X),
}
"""The identities that faketpu gives at boot; everything else keeps QEMU's."""


def _place(address: str) -> str:
    """Return QEMU's `addr=` for a function on the root bus."""
    return address.removeprefix("0000:00:")


def qemu_devices() -> tuple[str, ...]:
    """Return the values of QEMU's -device options, in the order in which they must be given."""
    single = [f"edu,addr={_place(address)}" for address in TPU_CHIPS]
    pairs = [
        f"edu,addr={_place(address)}" + (",multifunction=on" if address.endswith(".0") else "")
        for address in (*TWIN_CHIP, *MIXED_GROUP)
    ]
    plug = ",".join(f"{key}={value}" for key, value in PLUGGABLE_DEVICE.items() if key != "driver")
    ports = [
        f"pcie-root-port,id=plug-port,chassis=1,addr={_place(PLUGGABLE_PORT)}",
        f"nvme,{plug}",
        f"pcie-root-port,id=bridge-port,chassis=2,addr={_place(BRIDGE_PORT)}",
        "pcie-pci-bridge,id=bridge,bus=bridge-port",
        "edu,bus=bridge,addr=1",
        f"pcie-root-port,id=split-port,chassis=3,addr={_place(SPLIT_PORT)}",
        "nvme-subsys,id=split-nvm",
        f"nvme,serial=split,bus=split-port,subsys=split-nvm,{_TWO_VIRTUAL_FUNCTIONS}",
    ]
    return (*single, *pairs, *ports)
