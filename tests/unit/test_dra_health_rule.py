"""What a pod's status says of the health of its devices: each state of a lock, and each fault."""

import pytest
from msgspec.structs import replace

from fakes.books import NOW, WHOLE, X, device_lock, inventory, name, silicon
from fakes.standings import standings_of
from holdfast.model.book.book import Book, DeviceLock, LockState
from holdfast.model.book.marks import Asker, Mark, Marks
from holdfast.model.book.messages import LONGEST, BlockReason
from holdfast.model.devices import Device, Fault, FaultKind, Inventory
from holdfast.model.dra.advertised import AdvertisedDevice
from holdfast.model.dra.health import DeviceHealth, healths
from holdfast.model.ids import ResourceName

NODE = inventory({WHOLE: silicon(d0="a", d1="b")})
SHOWN = (
    AdvertisedDevice(name="tpu-d0", devices=(name("d0"),)),
    AdvertisedDevice(name="tpu-d1", devices=(name("d1"),)),
    AdvertisedDevice(name="tpu-2x1", devices=(name("d0"), name("d1"))),
)


_MOST_OF_KUBELETS = 1024
"""Bytes of a message; kubelet cuts what is longer."""
SHARED = AdvertisedDevice(name="gpu", devices=(name("d0"), name("d1")), whole=name("d"))


def lock(state: LockState, device: str = "d0", letter: str = "a") -> DeviceLock:
    return device_lock(
        name(device), letter, state=state, pod=X, evidence="pid 7 (python) has it open"
    )


def told(
    *locks: DeviceLock,
    node: Inventory = NODE,
    marks: Marks | None = None,
    obstacle: str = "",
    resource: ResourceName = WHOLE,
) -> dict[str, DeviceHealth]:
    book = Book(locks={each.device: each for each in locks}, marks=marks or Marks())
    advertised = [each for each in SHOWN if all(node.get(part) for part in each.devices)]
    obstacles = {each: BlockReason(device=each, reason=obstacle) for each in book.locks if obstacle}
    found = healths(
        advertised,
        standings_of(book, node, obstacles=obstacles, by_claims=frozenset({resource})),
    )
    assert [each.name for each in found] == sorted(each.name for each in found)
    return {each.name: each for each in found}


def with_fault(kind: FaultKind, text: str) -> Inventory:
    def of(device: Device) -> Device:
        ill = device.name == name("d0")
        return replace(device, faults=(Fault(kind=kind, text=text),)) if ill else device

    return replace(NODE, devices=tuple(map(of, NODE.devices)))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (LockState.RELEASING, "is not free of pod pod-x yet: it is being reset; "),
        (LockState.RECLAIMING, "is not free of pod pod-x yet: it is being reset; "),
        (LockState.QUARANTINED, "could not be freed of pod pod-x: it is being reset; "),
        (LockState.FOREIGN, "is used by a program that it was not given to; "),
    ],
)
def test_a_device_that_somebody_has_not_let_go_of_is_unhealthy_and_the_holder_is_named(
    state: LockState, text: str
) -> None:
    found = told(lock(state), obstacle="it is being reset")

    assert not found["tpu-d0"].healthy
    assert found["tpu-d0"].message.startswith(f"google.com/tpu/d0 {text}")


@pytest.mark.parametrize(
    "state", [None, *[each for each in LockState if each is not LockState.FREE]]
)
def test_a_device_with_a_fault_is_unhealthy_for_that_whoever_has_it(
    state: LockState | None,
) -> None:
    locks = () if state is None else (lock(state),)

    found = told(*locks, node=with_fault(FaultKind.ILL, "Xid 79"))

    text = "google.com/tpu/d0: Xid 79 (holdfast devices)"
    assert found["tpu-d0"] == DeviceHealth(name="tpu-d0", healthy=False, message=text)


def test_devices_that_are_given_together_are_as_healthy_as_the_worst_of_them() -> None:
    found = told(lock(LockState.RELEASING), lock(LockState.HELD, "d1", "b"))

    assert not found["tpu-2x1"].healthy
    assert "d0 is not free of pod pod-x" in found["tpu-2x1"].message
    assert found["tpu-2x1"].message.endswith("(holdfast locks); and 1 more")


def test_hardware_that_is_gone_and_that_nobody_had_is_told_as_gone() -> None:
    """Something advertises it still: the scheduler may have given it to a claim just now."""
    rest = replace(NODE, devices=NODE.devices[1:])

    (found,) = healths(SHOWN[:1], standings_of(Book(), rest))

    assert found == DeviceHealth(
        name="tpu-d0", healthy=False, message="google.com/tpu/d0 is not there any more"
    )


def test_hardware_that_is_gone_is_told_for_as_long_as_somebody_had_it() -> None:
    rest = replace(NODE, devices=NODE.devices[1:])

    assert "tpu-d0" not in told(node=rest)
    assert told(lock(LockState.HELD), node=rest)["tpu-d0"] == DeviceHealth(
        name="tpu-d0",
        healthy=False,
        message="google.com/tpu/d0 is not there any more, and pod pod-x has it",
    )


def test_what_is_there_and_not_advertised_has_no_health() -> None:
    assert healths(SHOWN[:1], standings_of(Book(), NODE, by_claims=frozenset({WHOLE}))) == (
        DeviceHealth(name="tpu-d0", healthy=True),
    )


def test_what_is_gone_and_another_drivers_is_left_out() -> None:
    rest = replace(NODE, devices=NODE.devices[1:])

    found = told(lock(LockState.HELD), node=rest, resource=ResourceName("nvidia.com/gpu"))

    assert "tpu-d0" not in found


def test_a_drain_makes_nothing_ill_and_is_told() -> None:
    marks = Marks(drain=Mark(reason="kernel update", asker=Asker(uid=0, pid=1), at=NOW))

    found = told(marks=marks)

    assert found["tpu-d0"].healthy
    assert "draining" in found["tpu-d0"].message


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "\x1b" * 5000])
def test_a_message_is_never_longer_than_kubelet_takes(text: str) -> None:
    message = told(node=with_fault(FaultKind.ILL, text))["tpu-d0"].message

    assert 200 < len(message) <= LONGEST
    assert len(message.encode()) <= _MOST_OF_KUBELETS
    assert message.isprintable()


def test_a_device_that_is_shared_is_as_healthy_as_its_best_share() -> None:
    def of(*locks: DeviceLock) -> DeviceHealth:
        book = Book(locks={each.device: each for each in locks})
        (found,) = healths([SHARED], standings_of(book, NODE))
        return found

    left = lock(LockState.RELEASING)
    assert of() == DeviceHealth(name="gpu", healthy=True)
    one = of(left)
    assert one.healthy
    assert "is not free of" in one.message
    assert not of(left, lock(LockState.RELEASING, "d1", "b")).healthy
