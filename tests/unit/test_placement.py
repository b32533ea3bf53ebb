"""Which devices are preferred."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.books import device_of, name
from holdfast.model.devices import Device
from holdfast.model.gate.placement import Choice, preferred
from holdfast.model.ids import DeviceId, ResourceName

_RESOURCE = ResourceName("google.com/tpu")


def _preferred(
    host: tuple[Device, ...],
    available: tuple[DeviceId, ...],
    must: tuple[DeviceId, ...],
    size: int,
    avoid: tuple[DeviceId, ...] = (),
) -> tuple[DeviceId, ...]:
    choice = Choice(available=available, must_include=must, size=size, avoid=avoid)
    return preferred(host, choice)


def _host(*nodes: int | None) -> tuple[Device, ...]:
    return tuple(
        device_of(name(_id(place), _RESOURCE), numa_node=node) for place, node in enumerate(nodes)
    )


def _id(place: int) -> DeviceId:
    return DeviceId(f"{place:04d}")


def _ids(places: Iterable[int]) -> tuple[DeviceId, ...]:
    return tuple(_id(place) for place in places)


_EIGHT = _host(0, 0, 0, 0, 1, 1, 1, 1)
_ONE_NODE = _host(*[0] * 8)


@pytest.mark.parametrize(
    ("case", "host", "available", "must", "size", "avoid", "expected"),
    [
        ("all of all", _EIGHT, range(8), [], 8, [], range(8)),
        ("the first half", _EIGHT, range(8), [], 4, [], [0, 1, 2, 3]),
        ("half on one node", _EIGHT, [1, 2, 3, 4, 5, 6, 7], [], 4, [], [4, 5, 6, 7]),
        ("free before releasing", _EIGHT, range(8), [], 4, [0], [4, 5, 6, 7]),
        (
            "releasing only for want of others",
            _EIGHT,
            range(8),
            [],
            4,
            [0, 1, 2, 4, 5, 6],
            [2, 3, 6, 7],
        ),
        ("free before the same node", _EIGHT, [0, 1, 4, 5], [], 2, [1, 5], [0, 4]),
        ("node before shape", _EIGHT, [2, 4, 5, 6], [], 3, [], [4, 5, 6]),
        ("an aligned pair", _ONE_NODE, [1, 2, 3, 4, 6], [], 2, [], [2, 3]),
        ("an aligned block", _ONE_NODE, [1, 2, 3, 4, 5, 6, 7], [], 4, [], [4, 5, 6, 7]),
        ("a broken pair before an intact block", _ONE_NODE, [0, 1, 2, 3, 5], [], 1, [], [5]),
        ("the pair that breaks no block", _ONE_NODE, [0, 1, 2, 3, 6, 7], [], 2, [], [6, 7]),
        ("the node that breaks no pair", _host(0, 1, 2, 3), [0, 1, 3], [], 1, [], [3]),
        ("three of a block", _ONE_NODE, range(8), [], 3, [], [0, 1, 2]),
        ("around what must be", _EIGHT, range(8), [6], 2, [], [6, 7]),
        (
            "around what must be, though it is releasing",
            _EIGHT,
            range(8),
            [6],
            4,
            [6],
            [4, 5, 6, 7],
        ),
        ("what must be on two nodes", _EIGHT, range(8), [0, 4], 4, [], [0, 1, 4, 5]),
        ("too few", _EIGHT, [3, 5], [], 4, [], [3, 5]),
        ("none", _EIGHT, range(8), [], 0, [], []),
        ("less than none", _EIGHT, range(8), [], -3, [], []),
        ("nobody there", (), [], [], 2, [], []),
        ("unknown ids after known ones", _EIGHT[:2], [0, 1, 7], [], 2, [], [0, 1]),
        ("only unknown ids", (), [7, 3], [], 1, [], [3]),
        (
            "unknown NUMA nodes are one node",
            _host(None, None, 0, None),
            range(4),
            [],
            3,
            [],
            [0, 1, 3],
        ),
    ],
)
def test_the_preferred_devices(  # noqa: PLR0917 - the columns of the table
    case: str,
    host: tuple[Device, ...],
    available: Iterable[int],
    must: Iterable[int],
    size: int,
    avoid: Iterable[int],
    expected: Iterable[int],
) -> None:
    assert _preferred(host, _ids(available), _ids(must), size, avoid=_ids(avoid)) == _ids(
        expected
    ), case


_PLACES = st.sets(st.integers(0, 17))


@pytest.mark.slow
@settings(max_examples=300)
@given(
    nodes=st.lists(st.sampled_from([None, 0, 1, 2]), max_size=16),
    available=_PLACES,
    data=st.data(),
    avoid=_PLACES,
    size=st.integers(-1, 20),
)
def test_any_question_gets_as_many_available_ids_as_there_are_and_what_must_be_included(
    nodes: list[int | None], available: set[int], data: st.DataObject, avoid: set[int], size: int
) -> None:
    must = set(data.draw(st.sets(st.sampled_from(sorted(available))))) if available else set()
    answer = _preferred(_host(*nodes), _ids(available), _ids(must), size, avoid=_ids(avoid))
    again = _preferred(
        _host(*nodes), _ids(sorted(available, reverse=True)), _ids(must), size, avoid=_ids(avoid)
    )
    assert answer == again
    assert set(_ids(must)) <= set(answer) <= set(_ids(available))
    assert len(answer) == len(set(answer)) == max(len(must), min(max(size, 0), len(available)))
    taken = set(answer) & set(_ids(avoid - must))
    free = set(_ids(available - avoid - must))
    assert not taken or free <= set(answer)


@given(available=st.sets(st.integers(0, 7)), size=st.sampled_from([1, 2, 4, 8]))
def test_an_aligned_block_of_the_size_is_found_whenever_there_is_one(
    available: set[int], size: int
) -> None:
    blocks = [set(range(start, start + size)) for start in range(0, 8, size)]
    possible = [block for block in blocks if block <= available]
    answer = {int(name) for name in _preferred(_ONE_NODE, _ids(available), (), size)}
    assert not possible or answer in possible
