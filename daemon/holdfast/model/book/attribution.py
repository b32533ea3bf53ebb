"""Whose device is it: VFIO device fds that the kernel does not name the function of."""

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.model.book.locks import DeviceLock
from holdfast.model.ids import DeviceName
from holdfast.model.use.holders import Holder, Scan


def attribute(
    scan: Scan, enabled: frozenset[DeviceName], locks: Mapping[DeviceName, DeviceLock]
) -> dict[DeviceName, tuple[Holder, ...]]:
    """Return the holders of each device, also those that the kernel did not attribute.

    Before Linux 6.18 fdinfo does not say which function a VFIO device fd belongs to. Such a holder
    counts for the enabled devices that the ledger gave its pod; if there are none, for every
    enabled device without another explanation. A device that is not enabled has no device fd.
    """
    found = {
        device: {holder.process: holder for holder in holders}
        for device, holders in scan.holders.items()
    }
    for holder in scan.unattributed:
        granted = [
            device
            for device in enabled
            if holder.pod is not None and device in locks and locks[device].pod == holder.pod
        ]
        unexplained = [device for device in enabled if not scan.holders.get(device)]
        for device in granted or unexplained:
            known = found.setdefault(device, {})
            same = known.get(holder.process, holder)
            known[holder.process] = replace(same, grips=same.grips | holder.grips)
    return {device: tuple(holders.values()) for device, holders in found.items()}
