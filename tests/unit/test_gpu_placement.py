"""Which GPUs are preferred: near by NVLink, then NUMA, and big islands left whole."""

from collections.abc import Iterable, Mapping
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.books import device_of, name
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId, ResourceName
from holdfast.model.nvidia.gpu import GpuLinks, Link
from holdfast.model.nvidia.placement import GpuBoard, GpuTopology

_RESOURCE = ResourceName("nvidia.com/gpu")


def _id(place: int) -> DeviceId:
    return DeviceId(f"GPU-{place:04d}")


def _ids(places: Iterable[int]) -> tuple[DeviceId, ...]:
    return tuple(_id(place) for place in places)


def _preferred(
    board: GpuBoard,
    available: tuple[DeviceId, ...],
    must: tuple[DeviceId, ...],
    size: int,
    avoid: tuple[DeviceId, ...] = (),
) -> tuple[DeviceId, ...]:
    choice = Choice(available=available, must_include=must, size=size, avoid=avoid)
    return board.preferred(choice)


def _devices(*nodes: int | None) -> tuple[Device, ...]:
    return tuple(
        device_of(name(_id(place), _RESOURCE), kind=DeviceKind.DRIVER, numa_node=node)
        for place, node in enumerate(nodes)
    )


def _links(
    nodes: tuple[int | None, ...],
    *,
    nvlinks: Mapping[tuple[int, int], int] | None = None,
    near: Mapping[tuple[int, int], Link] | None = None,
    switched: Iterable[int] = (),
    lost: int | None = None,
) -> GpuLinks:
    """Return links over PCI by NUMA node, unless *near* says better; *lost* is in none of them."""
    pairs = [pair for pair in combinations(range(len(nodes)), 2) if lost not in pair]
    near, nvlinks = near or {}, nvlinks or {}
    across = {
        (one, other): Link.SAME_CPU if nodes[one] == nodes[other] else Link.CROSS_CPU
        for one, other in pairs
    }
    return GpuLinks(
        pci={(_id(a), _id(b)): near.get((a, b), across[a, b]) for a, b in pairs},
        nvlinks={(_id(a), _id(b)): n for (a, b), n in nvlinks.items() if lost not in {a, b}},
        switched=frozenset(_id(place) for place in switched if place != lost),
    )


def _board(nodes: tuple[int | None, ...], links: GpuLinks) -> GpuBoard:
    return GpuBoard.of(_devices(*nodes), GpuTopology(links=links))


_DUAL = (0, 0, 0, 0, 1, 1, 1, 1)
_SIXTEEN = (*[0] * 8, *[1] * 8)

# DGX H100: eight GPUs behind NVSwitches, four at each CPU.
_H100 = _board(_DUAL, _links(_DUAL, switched=range(8)))
_H100_LOST = _board(_DUAL, _links(_DUAL, switched=range(8), lost=2))

# DGX-1 (V100), the hybrid cube mesh: two quads, each GPU with one partner in the other.
_CUBE_LINKS = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}
_CUBE = _board(_DUAL, _links(_DUAL, nvlinks=_CUBE_LINKS))
_CUBE_LOST = _board(_DUAL, _links(_DUAL, nvlinks=_CUBE_LINKS, lost=0))

# Two CPUs, no NVLink, and under each CPU pairs behind one PCI switch.
_SWITCH_PAIRS = {(place, place + 1): Link.SINGLE_SWITCH for place in range(0, 16, 2)}
_PCIE = _board(_DUAL, _links(_DUAL, near=_SWITCH_PAIRS))
_PCIE_16 = _board(_SIXTEEN, _links(_SIXTEEN, near=_SWITCH_PAIRS))
_PLAIN = _board(_DUAL, _links(_DUAL))

# Bridged pairs, as of PCIe cards with an NVLink bridge between neighbours.
_BRIDGED = _board(_DUAL, _links(_DUAL, nvlinks={(0, 5): 12, (1, 4): 12, (2, 3): 12}))
_BLIND = _board(_DUAL, GpuLinks())


@pytest.mark.parametrize(
    ("case", "board", "available", "must", "size", "avoid", "expected"),
    [
        # Behind NVSwitches all are equally near, so that NUMA decides.
        ("switched: four at one CPU", _H100, range(8), [], 4, [], [0, 1, 2, 3]),
        ("switched: the CPU that has four", _H100, range(1, 8), [], 4, [], [4, 5, 6, 7]),
        ("switched: one from the broken CPU", _H100, range(1, 8), [], 1, [], [1]),
        ("switched: one from the broken CPU", _H100, [0, 1, 2, 3, 5, 6, 7], [], 1, [], [5]),
        ("switched: two of the broken CPU", _H100, [0, 1, 2, 3, 6, 7], [], 2, [], [6, 7]),
        ("switched: all", _H100, range(8), [], 8, [], range(8)),
        # The hybrid cube mesh.
        ("cube: a quad", _CUBE, range(8), [], 4, [], [0, 1, 2, 3]),
        ("cube: the quad that is whole", _CUBE, [0, 1, 3, 4, 5, 6, 7], [], 4, [], [4, 5, 6, 7]),
        ("cube: a pair with two links", _CUBE, [0, 1, 2], [], 2, [], [1, 2]),
        ("cube: the other end of what must be", _CUBE, [0, 4, 5, 6], [0], 2, [], [0, 4]),
        ("cube: one of the broken quad", _CUBE, [0, 1, 2, 3, 5, 6], [], 1, [], [6]),
        ("cube: two of the broken quad", _CUBE, [0, 1, 2, 3, 6, 7], [], 2, [], [6, 7]),
        # PCI alone.
        ("pcie: a switch's pair", _PCIE, [1, 2, 3, 4], [], 2, [], [2, 3]),
        ("pcie: half of a broken pair", _PCIE, [0, 1, 2, 3, 5, 6, 7], [], 1, [], [5]),
        ("pcie: not from a whole CPU", _PLAIN, [0, 1, 2, 3, 4, 5, 6], [], 1, [], [4]),
        ("pcie: two of the broken CPU", _PCIE, [0, 1, 2, 3, 6, 7], [], 2, [], [6, 7]),
        ("pcie: one CPU for three", _PLAIN, [0, 1, 4, 5, 6], [], 3, [], [4, 5, 6]),
        ("pcie: eight of sixteen", _PCIE_16, [*range(7), *range(8, 16)], [], 8, [], range(8, 16)),
        # NVLink outweighs the CPU.
        ("bridge: the linked pair", _BRIDGED, [0, 1, 5, 6], [], 2, [], [0, 5]),
        ("bridge: one that has none", _BRIDGED, [0, 5, 1, 4, 6], [], 1, [], [6]),
        # What cannot be told never fails.
        ("lost: seven go on", _H100_LOST, [0, 1, 3, 4, 5, 6, 7], [], 4, [], [4, 5, 6, 7]),
        (
            "lost: seven of seven",
            _H100_LOST,
            [0, 1, 3, 4, 5, 6, 7],
            [],
            7,
            [],
            [0, 1, 3, 4, 5, 6, 7],
        ),
        ("lost: it alone", _H100_LOST, [2], [], 1, [], [2]),
        ("lost: asked for all the same", _H100_LOST, range(8), [2], 2, [], [0, 2]),
        ("lost: a cube goes on", _CUBE_LOST, range(1, 8), [], 4, [], [4, 5, 6, 7]),
        ("blind: NUMA alone", _BLIND, [0, 1, 2, 4, 5, 6, 7], [], 4, [], [4, 5, 6, 7]),
        ("strangers after what is known", _BLIND, [0, 1, 90], [], 2, [], [0, 1]),
        ("only strangers", _BLIND, [91, 90], [], 1, [], [90]),
        # Free before RELEASING.
        ("free before near", _H100, range(8), [], 4, [0, 5], [1, 2, 3, 4]),
        ("free before near", _CUBE, range(8), [], 4, [0], [4, 5, 6, 7]),
        ("releasing for want of others", _CUBE, range(8), [], 4, [0, 1, 2, 4, 5], [3, 4, 6, 7]),
        ("releasing, and it must be", _CUBE, range(8), [0], 2, [0], [0, 3]),
        ("what is being released is soon whole", _H100, range(8), [], 1, [0, 1, 2], [3]),
        # The edges of the question.
        ("none", _H100, range(8), [], 0, [], []),
        ("less than none", _H100, range(8), [], -1, [], []),
        ("too few", _H100, [3, 5], [], 4, [], [3, 5]),
        ("more must be than were asked for", _H100, range(8), [6, 1], 1, [], [1, 6]),
        ("nobody", GpuBoard.of((), GpuTopology()), [], [], 2, [], []),
    ],
)
def test_the_preferred_gpus(  # noqa: PLR0917 - the columns of the table
    case: str,
    board: GpuBoard,
    available: Iterable[int],
    must: Iterable[int],
    size: int,
    avoid: Iterable[int],
    expected: Iterable[int],
) -> None:
    answer = _preferred(board, _ids(available), _ids(must), size, avoid=_ids(avoid))
    assert answer == _ids(expected), case


_PLACES = st.sets(st.integers(0, 11))


@pytest.mark.slow
@settings(max_examples=200)
@given(
    nodes=st.lists(st.sampled_from([None, 0, 1]), max_size=10),
    nvlinks=st.dictionaries(
        st.tuples(st.integers(0, 9), st.integers(0, 9)), st.integers(0, 18), max_size=20
    ),
    switched=_PLACES,
    lost=st.none() | st.integers(0, 9),
    available=_PLACES,
    data=st.data(),
    avoid=_PLACES,
    size=st.integers(-1, 13),
)
def test_any_question_gets_as_many_available_ids_as_there_are_and_what_must_be_included(  # noqa: PLR0917
    nodes: list[int | None],
    nvlinks: dict[tuple[int, int], int],
    switched: set[int],
    lost: int | None,
    available: set[int],
    data: st.DataObject,
    avoid: set[int],
    size: int,
) -> None:
    must = set(data.draw(st.sets(st.sampled_from(sorted(available))))) if available else set()
    links = _links(tuple(nodes), nvlinks=nvlinks, switched=switched, lost=lost)
    board = _board(tuple(nodes), links)
    answer = _preferred(board, _ids(available), _ids(must), size, avoid=_ids(avoid))
    again = _preferred(
        board, _ids(sorted(available, reverse=True)), _ids(must), size, avoid=_ids(avoid)
    )
    assert answer == again
    assert set(_ids(must)) <= set(answer) <= set(_ids(available))
    assert len(answer) == len(set(answer)) == max(len(must), min(max(size, 0), len(available)))
    taken = set(answer) & set(_ids(avoid - must))
    assert not taken or set(_ids(available - avoid - must)) <= set(answer)


@settings(max_examples=60)
@given(available=st.sets(st.integers(0, 7), min_size=1), size=st.integers(1, 8))
def test_no_other_choice_in_a_hybrid_cube_mesh_has_more_nvlinks(
    available: set[int], size: int
) -> None:
    def links(chosen: Iterable[int]) -> int:
        return sum(_CUBE_LINKS.get(pair, 0) for pair in combinations(sorted(chosen), 2))

    size = min(size, len(available))
    chosen = [
        int(name.removeprefix("GPU-")) for name in _preferred(_CUBE, _ids(available), (), size)
    ]
    assert links(chosen) == max(links(each) for each in combinations(available, size))


def test_where_there_are_too_many_ways_to_compare_gpus_are_chosen_as_other_devices_are() -> None:
    """Eight of eight pairs can be chosen in 1107 ways; the blocks of the box are neighbours."""
    nodes = (0,) * 8 + (1,) * 8
    bridges = {(gpu, gpu + 1): 4 for gpu in range(0, 16, 2)}
    board = _board(nodes, _links(nodes, nvlinks=bridges))
    assert _preferred(board, _ids(range(16)), (), 8) == _ids(range(8))
    # Of the first four pairs one GPU each is taken, so that only whole pairs of the others do.
    free = (0, 2, 4, 6, *range(8, 16))
    assert _preferred(board, _ids(free), (), 8) == _ids(range(8, 16))
    assert _preferred(board, _ids(range(16)), _ids((3,)), 8) == _ids(range(8))
    # No two of these are alike, and comparing all 12,870 ways would find the odd ones.
    ring = {pair: 1 + pair[0] % 3 for pair in pairwise(range(16))}
    odd = dict.fromkeys(combinations(range(1, 16, 2), 2), 4)
    board = _board(nodes, _links(nodes, nvlinks={**ring, **odd}))
    assert _preferred(board, _ids(range(16)), (), 8) == _ids(range(8))
