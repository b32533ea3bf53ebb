"""Two pods of which each asks for what the other has, and a disk that comes and goes meanwhile."""

from itertools import product

import pytest

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
