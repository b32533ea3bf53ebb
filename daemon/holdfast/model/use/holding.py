"""Texts that say who holds a device, and why if the cause is known."""

from collections.abc import Iterable, Sequence

from holdfast.model.ids import PodUid
from holdfast.model.use.sandbox import GVISOR, Sandbox
from holdfast.model.use.use import Grip, Holder

LEAK = "a leaked VFIO device fd (gvisor#11545, fixed in release-20250326.0)"
_MOST_NAMED = 8
"""A program may have a device open in thousands of processes: texts, and the ledger, stay small."""
_REMEDIES = "upgrade runsc, delete the pod, or set reclaim.leakedSandbox: restart"


def leaking_pods(holders: Iterable[Holder]) -> frozenset[PodUid]:
    """Return the pods whose gVisor sandbox keeps a device by a VFIO device fd alone.

    A program that uses a device has its group open too. The sentry of a runsc that leaks closes
    the group with the program, and keeps the device fd, and so the device, for as long as it lives.
    """
    grips: dict[PodUid, set[Grip]] = {}
    others: set[PodUid] = set()
    for holder in holders:
        if holder.pod is None:
            continue
        grips.setdefault(holder.pod, set()).update(holder.grips)
        if holder.sandbox not in GVISOR:
            others.add(holder.pod)
    return frozenset(pod for pod in grips if grips[pod] == {Grip.DEVICE_FD}) - others


def named(holders: Sequence[Holder]) -> str:
    """Return *holders* for people: the first few by name, and how many more there are."""
    first = "; ".join(str(each) for each in holders[:_MOST_NAMED])
    more = len(holders) - _MOST_NAMED
    return f"{first} and {more} more" if more > 0 else first


def held_by(holders: Sequence[Holder]) -> str:
    """Return what to say of a device with these holders, to complete "the device is"."""
    leaking = leaking_pods(holders)
    rest = named([each for each in holders if each.pod not in leaking])
    texts = [_leak(pod, holders) for pod in sorted(leaking)]
    return "; ".join([*([f"held by {rest}"] if rest else []), *texts])


def _leak(pod: PodUid, holders: Sequence[Holder]) -> str:
    mine = [each for each in holders if each.pod == pod]
    first = next((each for each in mine if each.sandbox is Sandbox.SENTRY), mine[0])
    more = f" and {len(mine) - 1} more of its processes" if mine[1:] else ""
    return (
        f"in use: gVisor sandbox of pod {pod} keeps {LEAK}: pid {first.process} "
        f"({first.command}){more}; {_REMEDIES}"
    )


def cause(holder: Holder, holders: Iterable[Holder]) -> str:
    """Return what one of a device's *holders* is, and why it holds; empty for any program."""
    if holder.sandbox is None:
        return ""
    leaks = holder.pod in leaking_pods(holders)
    return f"{holder.sandbox.value}: {LEAK}" if leaks else holder.sandbox.value
