"""Whose device a VFIO device fd is that the kernel does not attribute."""

import pytest
from msgspec.structs import replace

from fakes.books import X, Y, Z, device_lock, name
from holdfast.model.book.book import DeviceLock
from holdfast.model.book.proof import attribute
from holdfast.model.ids import DeviceName, PodUid, ProcessId
from holdfast.model.use.holders import DeviceAccess, Holder, Scan

_D0, _D1, _D2 = name("d0"), name("d1"), name("d2")


def _holder(pid: int, pod: PodUid | None, access: DeviceAccess = DeviceAccess.DEVICE_FD) -> Holder:
    return Holder(process=ProcessId(pid, 1), command="python", access=frozenset({access}), pod=pod)


def _locks(**pods: PodUid | None) -> dict[DeviceName, DeviceLock]:
    return {
        name(id_): device_lock(name(id_), id_, fence=n, pod=pod)
        for n, (id_, pod) in enumerate(pods.items())
    }


_FD = _holder(1, X)
_STRANGER = _holder(2, None)
_NODE = _holder(3, Y, DeviceAccess.NODE)


@pytest.mark.parametrize(
    ("scan", "enabled", "locks", "expected"),
    [
        (Scan(), {_D0}, _locks(), {}),
        (Scan(holders={_D0: (_NODE,)}), {_D0}, _locks(d0=Y), {_D0: (_NODE,)}),
        (Scan(unattributed=(_FD,)), {_D0, _D1}, _locks(d0=X, d1=Y), {_D0: (_FD,)}),
        (Scan(unattributed=(_FD,)), {_D0, _D1}, _locks(d0=X, d1=X), {_D0: (_FD,), _D1: (_FD,)}),
        (Scan(unattributed=(_FD,)), {_D1}, _locks(d0=X, d1=Y), {_D1: (_FD,)}),
        (Scan(unattributed=(_FD,)), {_D0, _D1}, _locks(), {_D0: (_FD,), _D1: (_FD,)}),
        (
            Scan(holders={_D0: (_NODE,)}, unattributed=(_STRANGER,)),
            {_D0, _D1},
            _locks(d0=Y),
            {_D0: (_NODE,), _D1: (_STRANGER,)},
        ),
        (
            Scan(holders={_D0: (_NODE,)}, unattributed=(_FD,)),
            {_D0, _D1},
            _locks(d0=X, d1=Z),
            {_D0: (_NODE, _FD)},
        ),
        (Scan(unattributed=(_FD,)), set(), _locks(d0=X), {}),
        (Scan(unattributed=(_FD, _STRANGER)), {_D2}, _locks(d2=X), {_D2: (_FD, _STRANGER)}),
        (
            Scan(unattributed=(_STRANGER,)),
            {_D0, _D1},
            _locks(d0=None),
            {_D0: (_STRANGER,), _D1: (_STRANGER,)},
        ),
        (
            Scan(holders={_D0: (_holder(1, X, DeviceAccess.NODE),)}, unattributed=(_FD,)),
            {_D0},
            _locks(d0=X),
            {_D0: (replace(_FD, access=frozenset({DeviceAccess.NODE, DeviceAccess.DEVICE_FD})),)},
        ),
    ],
    ids=[
        "nobody",
        "the kernel tells",
        "to the device of its pod",
        "to all enabled devices of its pod",
        "its pod's device is not enabled: to what is",
        "no pod of ours: to what nothing explains",
        "not to what is explained already",
        "also to what is explained, where it is its pod's",
        "nothing is enabled: it has none of these",
        "both",
        "a stranger's is not that of a lock without a pod: to all that nothing explains",
        "who has the node as well is one holder with both",
    ],
)
def test_a_device_fd_belongs_to_its_pods_enabled_devices_else_to_what_nothing_explains(
    scan: Scan,
    enabled: set[DeviceName],
    locks: dict[DeviceName, DeviceLock],
    expected: dict[DeviceName, tuple[Holder, ...]],
) -> None:
    assert attribute(scan, frozenset(enabled), locks) == expected


def test_a_device_fd_of_any_pod_of_a_claim_is_on_what_the_claim_has() -> None:
    """The lock names one of them, and nothing explains another's device by its own processes."""
    locks = _locks(d0=X, d1=Z)
    scan = Scan(unattributed=(_holder(1, Y), _holder(2, Z)))

    def pods_of(lock: DeviceLock) -> frozenset[PodUid]:
        return frozenset({X, Y}) if lock.device == _D0 else frozenset({Z})

    assert attribute(scan, frozenset({_D0, _D1}), locks, pods_of) == {
        _D0: (_holder(1, Y),),
        _D1: (_holder(2, Z),),
    }
