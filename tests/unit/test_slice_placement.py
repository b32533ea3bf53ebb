"""Which MIG slices are preferred: spread over the GPUs as NVIDIA's plugin does it, or packed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId
from holdfast.model.nvidia.placement import SlicePolicy, preferred_slices

SPREAD, PACKED = SlicePolicy.DISTRIBUTED, SlicePolicy.PACKED


def _id(gpu: int, piece: int) -> DeviceId:
    return DeviceId(f"MIG-{gpu}-{piece}")


def _node(*slices: int) -> tuple[list[DeviceId], dict[DeviceId, str]]:
    """Return all slices of GPUs that have so many each, and their GPUs."""
    order = [_id(gpu, piece) for gpu, count in enumerate(slices) for piece in range(count)]
    return order, {name: name.split("-")[1] for name in order}


@pytest.mark.parametrize(
    ("case", "policy", "taken", "size", "must", "avoid", "by_gpu"),
    [
        ("an empty node", SPREAD, (0, 0), 1, [], [], {0: 1}),
        ("the GPU that has none in use", SPREAD, (2, 0), 1, [], [], {1: 1}),
        ("until they are even, and then by turns", SPREAD, (2, 0), 4, [], [], {0: 1, 1: 3}),
        ("by turns from the first", SPREAD, (0, 0), 4, [], [], {0: 2, 1: 2}),
        ("what must be counts as in use", SPREAD, (0, 0), 2, [_id(0, 0)], [], {0: 1, 1: 1}),
        ("a GPU that is full", SPREAD, (7, 3), 2, [], [], {1: 2}),
        ("released ones last", SPREAD, (6, 0), 1, [], [_id(1, 5)], {1: 1}),
        ("released ones count as in use", SPREAD, (1, 0), 1, [], [_id(1, 5), _id(1, 6)], {0: 1}),
        ("packed: the GPU that has most in use", PACKED, (0, 2), 1, [], [], {1: 1}),
        ("packed: the rest of it, then the next", PACKED, (0, 5), 4, [], [], {0: 2, 1: 2}),
        ("packed: an empty node", PACKED, (0, 0), 3, [], [], {0: 3}),
    ],
)
def test_the_preferred_slices(  # noqa: PLR0917 - the columns of the table
    case: str,
    policy: SlicePolicy,
    taken: tuple[int, ...],
    size: int,
    must: list[DeviceId],
    avoid: list[DeviceId],
    by_gpu: dict[int, int],
) -> None:
    order, parents = _node(7, 7)
    gone = {_id(gpu, piece) for gpu, count in enumerate(taken) for piece in range(count)}
    answer = preferred_slices(
        order,
        parents,
        policy,
        Choice(
            available=[name for name in order if name not in gone or name in must],
            must_include=must,
            size=size,
            avoid=avoid,
        ),
    )

    assert Counter(int(parents[name]) for name in answer) == by_gpu, case
    assert not gone - set(must) & set(answer)


def test_a_slice_that_is_still_released_is_taken_only_for_want_of_others() -> None:
    order, parents = _node(2, 2)
    released = [_id(0, 0), _id(1, 0), _id(1, 1)]
    for size, expected in ((1, [_id(0, 1)]), (2, [_id(0, 1), _id(1, 0)])):
        choice = Choice(available=order, size=size, avoid=released)
        answer = preferred_slices(order, parents, SPREAD, choice)
        assert answer == tuple(expected)


@given(
    slices=st.lists(st.integers(0, 4), max_size=4),
    policy=st.sampled_from(SlicePolicy),
    size=st.integers(-1, 12),
    data=st.data(),
)
def test_any_question_gets_as_many_available_slices_as_there_are(
    slices: list[int], policy: SlicePolicy, size: int, data: st.DataObject
) -> None:
    order, parents = _node(*slices)
    some = st.sets(st.sampled_from([*order, DeviceId("MIG-stranger")]))
    available, avoid = data.draw(some), data.draw(some)
    must = data.draw(st.sets(st.sampled_from(sorted(available)))) if available else set()

    def ask(given: list[DeviceId]) -> tuple[DeviceId, ...]:
        choice = Choice(available=given, must_include=must, size=size, avoid=avoid)
        return preferred_slices(order, parents, policy, choice)

    answer = ask(sorted(available))
    assert answer == ask(sorted(available, reverse=True))
    assert must <= set(answer) <= available
    assert len(answer) == len(set(answer)) == max(len(must), min(max(size, 0), len(available)))
    assert not set(answer) & avoid - must or available - avoid <= set(answer)
