"""Memory: what the tightest limit, the headroom and a warning are, by cases and by law."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.model.node.memory import CgroupMemory, Memory, is_tight, least, own_share

UID = "6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b"
NUMBERS = st.none() | st.integers(min_value=1, max_value=1 << 63)
CGROUPS = st.builds(CgroupMemory, path=st.just("/a"), limit=NUMBERS, high=NUMBERS, usage=NUMBERS)
MEMORIES = st.builds(
    Memory,
    total=NUMBERS,
    available=NUMBERS,
    cgroups=st.lists(CGROUPS, max_size=4).map(tuple),
)


def cgroup(
    path: str = "/a", limit: int | None = None, usage: int | None = None, high: int | None = None
) -> CgroupMemory:
    return CgroupMemory(path=path, limit=limit, usage=usage, high=high)


@given(MEMORIES, CGROUPS)
def test_one_more_ancestor_never_raises_the_limit_or_the_headroom(
    memory: Memory, ancestor: CgroupMemory
) -> None:
    more = replace(memory, cgroups=(*memory.cgroups, ancestor))
    if memory.limit is not None:
        assert more.limit is not None
        assert more.limit <= memory.limit
    if memory.headroom is not None:
        assert more.headroom is not None
        assert more.headroom <= memory.headroom


@given(MEMORIES)
def test_no_limit_is_above_the_nodes_memory(memory: Memory) -> None:
    assert memory.total is None or (memory.limit or 0) <= memory.total


@pytest.mark.parametrize(
    ("memory", "limit", "headroom"),
    [
        (Memory(), None, None),
        (Memory(total=100, available=40), 100, 40),
        (Memory(total=100, available=40, cgroups=(cgroup(limit=50, usage=5),)), 50, 40),
        (Memory(total=100, available=90, cgroups=(cgroup(limit=50, usage=5),)), 50, 45),
        (Memory(total=100, available=90, cgroups=(cgroup(limit=50, usage=60),)), 50, 0),
        (Memory(total=100, available=90, cgroups=(cgroup(limit=100, usage=99),)), 100, 90),
        (Memory(cgroups=(cgroup(limit=50, usage=5), cgroup("/", limit=80, usage=70))), 50, 10),
        (Memory(cgroups=(cgroup(limit=50),)), 50, None),
    ],
)
def test_the_limit_is_the_tightest_and_the_headroom_the_least(
    memory: Memory, limit: int | None, headroom: int | None
) -> None:
    assert (memory.limit, memory.headroom) == (limit, headroom)


@pytest.mark.parametrize(
    ("cgroups", "path"),
    [
        ((), None),
        ((cgroup(limit=100, usage=90),), None),
        ((cgroup(limit=100, usage=91),), "/a"),
        ((cgroup(limit=100, usage=200),), "/a"),
        ((cgroup(limit=100, usage=91), cgroup("/b", limit=1000, usage=999)), "/b"),
        ((cgroup(limit=100),), None),
        ((cgroup(limit=20_000, usage=19_999),), None),
    ],
)
def test_near_is_less_than_a_tenth_left_of_a_limit_that_is_one(
    cgroups: tuple[CgroupMemory, ...], path: str | None
) -> None:
    near = Memory(total=10_000, cgroups=cgroups).near
    assert (near.path if near is not None else None) == path


def test_above_high_a_cgroup_is_slowed() -> None:
    assert Memory(cgroups=(cgroup(usage=9, high=10),)).slowed is None
    slowed = Memory(cgroups=(cgroup(usage=9), cgroup("/b", usage=10, high=10))).slowed
    assert slowed is not None
    assert slowed.path == "/b"


@pytest.mark.parametrize(
    ("memory", "resident", "share"),
    [
        (Memory(), None, 0.0),
        (Memory(), 50, 0.0),
        (Memory(total=1000), 50, 0.05),
        (Memory(total=1000, cgroups=(cgroup(limit=100, usage=60),)), 50, 0.6),
        # Files that it has mapped are resident, and no reason to end it.
        (Memory(total=1000, cgroups=(cgroup(limit=100, usage=60),)), 90, 0.6),
        (Memory(total=1000, cgroups=(cgroup(limit=100),)), 70, 0.7),
        # Neighbours have filled what is shared: that is not ours to mend.
        (Memory(cgroups=(cgroup(limit=100, usage=6), cgroup("/", limit=200, usage=200))), 5, 0.06),
        (
            Memory(
                cgroups=(
                    cgroup(f"/kubepods/pod{UID}/c"),
                    cgroup(f"/kubepods/pod{UID}", limit=100, usage=95),
                    cgroup("/kubepods", limit=1000, usage=999),
                )
            ),
            5,
            0.95,
        ),
    ],
)
def test_the_daemons_share_is_of_its_own_cgroup_and_its_pods(
    memory: Memory, resident: int | None, share: float
) -> None:
    assert own_share(memory, resident) == pytest.approx(share)


@pytest.mark.parametrize(
    ("shares", "answers"),
    [
        ([0.5, 0.84, 0.85, 0.84, 0.75, 0.74, 0.84, 0.9], "nnyyynny"),
    ],
)
def test_a_warning_stands_until_there_is_clearly_room_again(
    shares: list[float], answers: str
) -> None:
    said, before = "", False
    for share in shares:
        before = is_tight(share, before=before)
        said += "y" if before else "n"
    assert said == answers


def test_the_least_is_the_one_with_the_least_headroom() -> None:
    roomy, tight = Memory(available=9), Memory(available=3)
    assert least([roomy, tight, Memory()]) == tight
    assert least([Memory()]) is None
