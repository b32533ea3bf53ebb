"""Which MIG slices kubelet should pick, when it may choose: spread over the GPUs, or packed."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from holdfast.model.gate.placement import Choice
from holdfast.model.ids import DeviceId


class SlicePolicy(Enum):
    """From which GPU the next slice is taken; the values are those of NVIDIA's plugin."""

    DISTRIBUTED = "distributed"
    """The one with the fewest slices in use."""
    PACKED = "packed"
    """The one with the most."""


def preferred_slices(
    order: Sequence[DeviceId],
    parents: Mapping[DeviceId, str],
    policy: SlicePolicy,
    choice: Choice,
) -> tuple[DeviceId, ...]:
    """Return the ids to pick, in *order*.

    *order* has every device of the resource, *parents* the GPU of each slice. A slice counts as in
    use when it is not available, was picked, or is one to avoid. Between GPUs that are equal by
    *policy* the one that this request has fewer slices of wins, then the earlier one.

    The same question has the same answer. Never raises; ids that are not in *order* come last.
    """
    must, avoided = frozenset(choice.must_include), frozenset(choice.avoid)
    place = {name: at for at, name in enumerate(order)}

    def listed(name: DeviceId) -> tuple[int, DeviceId]:
        return place.get(name, len(place)), name

    candidates = sorted(frozenset(choice.available) - must, key=listed)
    chosen = set(must)
    for names in (
        [name for name in candidates if name not in avoided],
        [name for name in candidates if name in avoided],
    ):
        chosen |= _pick(
            names, order, parents, policy, picked=chosen, more=choice.size - len(chosen)
        )
    return tuple(sorted(chosen, key=listed))


def _pick(
    names: Sequence[DeviceId],
    order: Sequence[DeviceId],
    parents: Mapping[DeviceId, str],
    policy: SlicePolicy,
    *,
    picked: Collection[DeviceId],
    more: int,
) -> set[DeviceId]:
    """Return *more* of *names*, or all of them when there are not as many."""
    left: dict[str, list[DeviceId]] = {}
    for name in names:
        left.setdefault(parents.get(name, name), []).append(name)
    free = frozenset(names)
    in_use = Counter(parents.get(name, name) for name in order if name not in free)
    ours = Counter(parents.get(name, name) for name in picked)
    found: set[DeviceId] = set()
    sign = 1 if policy is SlicePolicy.DISTRIBUTED else -1
    while left and len(found) < more:
        gpu = min(left, key=lambda each: (sign * in_use[each], ours[each]))
        found.add(left[gpu].pop(0))
        in_use[gpu] += 1
        ours[gpu] += 1
        if not left[gpu]:
            del left[gpu]
    return found
