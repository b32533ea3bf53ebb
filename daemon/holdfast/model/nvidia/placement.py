"""Which GPUs kubelet should pick, when it may choose: near each other; and which MIG slices."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from operator import itemgetter
from typing import Self

from msgspec import Struct, field

from holdfast.model.devices import Device
from holdfast.model.gate.placement import Choice, HostPlaces, Ids
from holdfast.model.ids import DeviceId
from holdfast.model.nvidia.gpu import GpuLinks, Link

_PCI = {
    Link.SAME_BOARD: 60,
    Link.SINGLE_SWITCH: 50,
    Link.MULTI_SWITCH: 40,
    Link.HOST_BRIDGE: 30,
    Link.SAME_CPU: 20,
    Link.CROSS_CPU: 10,
}
_NVLINK = 100
"""One NVLink outweighs every way over PCI."""
_SWITCHED = 20 * _NVLINK
"""More than the 18 NVLinks that two GPUs can have at most; all pairs behind switches are equal."""
_STEP = 1 << 16
"""What one point of nearness is worth in NUMA pairs, so that NUMA only decides between equals."""
_FIRST = 1 << 48
"""What the chosen ones' nearness is worth in that of the rest, for the same reason."""
_MOST_WAYS = 600
"""So many ways to choose are compared one by one; with more, GPUs are chosen as other devices."""


class GpuTopology(Struct, frozen=True, kw_only=True):
    """How the node's GPUs reach each other, and the GPU that each MIG slice (by id) is part of."""

    links: GpuLinks = field(default_factory=GpuLinks)
    parents: Mapping[DeviceId, str] = field(default_factory=dict)


class GpuBoard(Struct, frozen=True, kw_only=True):
    """The devices of a resource by how near they are; made once for an inventory and a topology.

    `kinds` are sets of devices, in inventory order, that nothing distinguishes: all are equally
    near to each other, and to every other device. `near` is the nearness of two devices by their
    kinds' places.
    """

    devices: Sequence[Device]
    order: Mapping[DeviceId, int]
    kinds: tuple[tuple[DeviceId, ...], ...]
    near: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, devices: Sequence[Device], topology: GpuTopology) -> Self:
        """Compare all *devices*; one that *topology* does not know is near by NUMA node alone."""
        table = [[_near(one, other, topology) for other in devices] for one in devices]
        kinds: list[list[int]] = []
        for place, row in enumerate(table):
            for kind in kinds:
                if _alike(row, table[kind[0]], place, kind[0]):
                    kind.append(place)
                    break
            else:
                kinds.append([place])
        return cls(
            devices=devices,
            order={device.name.id: place for place, device in enumerate(devices)},
            kinds=tuple(tuple(devices[place].name.id for place in kind) for kind in kinds),
            # Within a kind any two differ in nothing, so its first and last stand for all.
            near=tuple(tuple(table[one[0]][other[-1]] for other in kinds) for one in kinds),
        )

    def preferred(self, choice: Choice) -> tuple[DeviceId, ...]:
        """Return the ids to pick.

        Ids to avoid count when it is weighed what is left for others. The same question has the
        same answer. Never raises; ids that the board does not know come last.
        """
        return tuple(sorted(choice.decide(self._choose), key=self._place))

    def _choose(self, everything: Ids, items: Ids, fixed: Ids, size: int) -> Ids:
        strangers = sorted(everything - self.order.keys())
        kinds = (*self.kinds, tuple(strangers)) if strangers else self.kinds
        open_ = [[name for name in kind if name in items and name not in fixed] for kind in kinds]
        places = [place for place, names in enumerate(open_) if names]
        near = self.near
        if strangers:
            near = (*((*row, 0) for row in near), (0,) * len(kinds))
        present = [sum(name in everything for name in kind) for kind in kinds]
        held = [sum(name in fixed for name in kind) for kind in kinds]
        gains = []
        for place in places:
            row = near[place]
            rest = sum(a * b for a, b in zip(row, present, strict=True)) - row[place]
            gains.append(sum(a * b for a, b in zip(row, held, strict=True)) * _FIRST - rest)
        ways = _ways(
            room=[len(open_[place]) for place in places],
            gains=gains,
            near=[[near[a][b] * _FIRST for b in places] for a in places],
            size=size - len(fixed),
        )
        found = list(islice(ways, _MOST_WAYS + 1))
        if len(found) > _MOST_WAYS:
            return HostPlaces.of(self.devices, everything, fixed).choose(
                everything, items, fixed, size
            )
        _, taken = max(found, key=itemgetter(0))  # of equals the first
        picked = (open_[places[kind]][:count] for kind, count in Counter(taken).items())
        return fixed.union(*picked)

    def _place(self, name: DeviceId) -> tuple[int, DeviceId]:
        return self.order.get(name, len(self.order)), name


def _ways(
    room: Sequence[int], gains: Sequence[int], near: Sequence[Sequence[int]], size: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield every way to take *size*: its worth, and the kinds, each as often as it is taken from.

    *room*: how many there are of each kind; *gains*: what one is worth alone; *near*: what a pair
    adds. Ways with more of the earlier kinds come first.
    """
    after = [sum(room[place:]) for place in range(len(room))]
    stack: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while stack:
        worth, taken = stack.pop()
        left = size - len(taken)
        if not left:
            yield worth, taken
            continue
        first = taken[-1] if taken else 0
        again = taken.count(first)  # of the kind that the last one was
        more = []
        for place in range(first, len(room)):
            if after[place] - again < left:
                break
            if again < room[place]:
                gain = gains[place] + sum(near[place][other] for other in taken)
                more.append((worth + gain, (*taken, place)))
            again = 0
        stack += reversed(more)


def _near(one: Device, other: Device, topology: GpuTopology) -> int:
    """Return how near two devices are: NVLinks, then PCI, then NUMA."""
    together = one.numa_node == other.numa_node
    near = _reach(one.name.id, other.name.id, topology.links, together=together)
    return near * _STEP + together


def _reach(one: str, other: str, links: GpuLinks, *, together: bool) -> int:
    if one in links.switched and other in links.switched:
        return _SWITCHED
    pair = (one, other) if one < other else (other, one)
    # Where NVML tells nothing, the kernel's NUMA node is the best guess.
    guess = Link.SAME_CPU if together else Link.CROSS_CPU
    pci = _PCI.get(links.pci.get(pair, guess), _PCI[guess])
    return links.nvlinks.get(pair, 0) * _NVLINK + pci


def _alike(row: Sequence[int], other: Sequence[int], place: int, there: int) -> bool:
    return all(
        a == b for at, (a, b) in enumerate(zip(row, other, strict=True)) if at not in {place, there}
    )


class SlicePolicy(Enum):
    """From where the next slice or replica is taken; the values are those of NVIDIA's plugin.

    Of replicas of slices, first the slice counts, and then its GPU.
    """

    DISTRIBUTED = "distributed"
    """From the one of which the least is in use."""
    PACKED = "packed"
    """From the one of which the most is."""


def preferred_slices(
    order: Sequence[DeviceId],
    parents: Mapping[DeviceId, str],
    policy: SlicePolicy,
    choice: Choice,
) -> tuple[DeviceId, ...]:
    """Return the ids to pick, in *order*.

    *order* has every device of the resource, *parents* what each is part of: of a slice its GPU, of
    a replica the GPU or the slice. One counts as in use when it is not available, was picked, or is
    one to avoid. Between parents that are equal by *policy* the one that this request has less of
    wins, then the one whose own parent has less in use, or more, and then the earlier one.

    The same question has the same answer. Never raises; ids that are not in *order* come last.
    """
    place = {name: at for at, name in enumerate(order)}

    def listed(name: DeviceId) -> tuple[int, DeviceId]:
        return place.get(name, len(place)), name

    def choose(_everything: Ids, items: Ids, fixed: Ids, size: int) -> Ids:
        names = sorted(items - fixed, key=listed)
        return fixed | _pick(names, order, parents, policy, picked=fixed, more=size - len(fixed))

    return tuple(sorted(choice.decide(choose), key=listed))


def _pick(
    names: Sequence[DeviceId],
    order: Sequence[DeviceId],
    parents: Mapping[DeviceId, str],
    policy: SlicePolicy,
    *,
    picked: Collection[DeviceId],
    more: int,
) -> set[DeviceId]:
    """Return *more* of *names*."""
    left: dict[str, list[DeviceId]] = {}
    for name in names:
        left.setdefault(parents.get(name, name), []).append(name)
    free = frozenset(names)
    in_use = Counter(parents.get(name, name) for name in order if name not in free)
    beside: Counter[str] = Counter()
    for parent, count in in_use.items():
        beside[_above(parent, parents)] += count
    ours = Counter(parents.get(name, name) for name in picked)
    found: set[DeviceId] = set()
    sign = 1 if policy is SlicePolicy.DISTRIBUTED else -1

    def rank(parent: str) -> tuple[int, int, int]:
        return sign * in_use[parent], ours[parent], sign * beside[_above(parent, parents)]

    while len(found) < more:
        parent = min(left, key=rank)
        found.add(left[parent].pop(0))
        in_use[parent] += 1
        ours[parent] += 1
        beside[_above(parent, parents)] += 1
        if not left[parent]:
            del left[parent]
    return found


def _above(parent: str, parents: Mapping[DeviceId, str]) -> str:
    """Return the GPU of a slice; of a GPU itself."""
    return parents.get(DeviceId(parent), parent)
