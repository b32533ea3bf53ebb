"""Two pods of which each asks for what the other has, and a disk that comes and goes meanwhile."""

from itertools import product

import pytest

from fakes.books import HALF, WHOLE
from holdfast.model.ids import DeviceId
from oneholder.world import CROSSING, Crossing, Disk, Look, OneHolder

_DISKS = (Disk.ROOM, Disk.NOTHING)


@pytest.mark.parametrize("killed", [None, *_DISKS])
@pytest.mark.parametrize("wishes", CROSSING)
def test_two_pods_never_wait_for_each_other_because_an_allocate_could_not_be_recorded(
    wishes: Crossing, killed: Disk | None
) -> None:
    for disks in product(_DISKS, repeat=4):
        world = OneHolder()
        world.start()
        try:
            containers = world.cross(wishes, disks, killed=killed, look=Look.READ)
            for place in (2, 0, 3, 1):  # first what each pod asked for first
                world._start(*containers[place], None)
        finally:
            world.teardown()  # where everybody who waits can start in the end


@pytest.mark.parametrize("killed", [None, Disk.ROOM, Disk.FULL])
@pytest.mark.parametrize("wishes", CROSSING)
def test_two_pods_never_wait_for_each_other_because_of_allocations_of_pods_that_never_came(
    wishes: Crossing, killed: Disk | None
) -> None:
    """Kubelet admitted no former pod, the disk fills before one of the Allocates of the next ones.

    They start from the first on, with a beat before each, or the second pod first with none.
    """
    for taken, (order, beats) in product(range(4), [((0, 1, 2, 3), True), ((2, 0, 3, 1), False)]):
        world = OneHolder()
        world.start()
        try:
            world.writes_checkpoint = False
            world.cross(wishes, [Disk.ROOM] * 4, killed=None, look=Look.READ)
            world.disk, world.writes_checkpoint = Disk.FULL, True
            disks = [Disk.ROOM] * taken + [Disk.FULL] * (4 - taken)
            containers = world.cross(wishes, disks, killed=killed, look=Look.READ)
            for place in order:
                if beats:
                    world.the_watcher_beats(None)
                world._start(*containers[place], None)
        finally:
            world.teardown()  # where everybody who waits can start in the end


def test_a_start_is_not_kept_from_its_hardware_by_its_own_name_that_is_not_recorded_yet() -> None:
    """Kubelet's checkpoint named its pod when the daemon came back, and cannot be read since."""
    world = OneHolder()
    world.start()
    world._admit([(WHOLE, frozenset({DeviceId("w0")}))], None)
    world._admit([(HALF, frozenset({DeviceId("h2")}))], None, disks=[Disk.FULL])
    world._restart()
    world.look = Look.UNREADABLE
    try:
        first, (container,) = world.pods[0], world.pods[0].containers
        world._start(first, container, None)
        assert container.passed
    finally:
        world.teardown()


def test_who_never_came_is_over_on_a_full_disk_though_the_next_record_of_its_devices_is_not_there() -> (
    None
):
    world = OneHolder()
    world.start()
    wishes = [(WHOLE, frozenset({DeviceId("w0")}))]
    try:
        for _ in range(2):
            world._admit(wishes, None, admitted=False)
        world._admit(wishes, None, disks=[Disk.FULL])
        world.the_watcher_beats(None)
        assert [*world.book.allocations] == [2]
    finally:
        world.teardown()


def test_a_start_is_not_kept_from_its_hardware_by_who_ended_since_the_daemon_came_back() -> None:
    """The disk is full, so what kubelet had then is not taken in yet."""
    world = OneHolder()
    world.start()
    try:
        for resource, id_ in ((WHOLE, "w0"), (HALF, "h0")):
            world._admit([(resource, frozenset({DeviceId(id_)}))], None)
        former, following = world.pods
        world._start(former, former.containers[0], None)
        world._admit([(WHOLE, frozenset({DeviceId("w2")}))], None, disks=[Disk.FULL])
        world._restart()
        former.counted = False
        world._write_checkpoint()
        world._all_exit(former)
        for _ in range(2):
            world.the_watcher_beats(None)
        world._start(following, following.containers[0], None)
        assert following.containers[0].passed
    finally:
        world.teardown()
