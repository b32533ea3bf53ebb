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
