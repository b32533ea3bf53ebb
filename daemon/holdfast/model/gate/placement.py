"""Which devices kubelet should pick, when it may choose: free ones, close together, in a box."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations, islice

from msgspec import Struct

from holdfast.model.devices import Device
from holdfast.model.ids import DeviceId

HOST_SHAPES: tuple[int, ...] = (1, 2, 4, 8)
"""How many chips a part of a host may have so that it is a box of chips, as libtpu wants it."""
_MOST_NODE_SETS = 64
_MOST_SHAPED = 32
"""No host has a box of more chips; larger pools are only kept together, which is cheaper."""
_UNKNOWN_NODE = -1

Ids = frozenset[DeviceId]


class Choice(Struct, frozen=True, kw_only=True):
    """What kubelet asks with GetPreferredAllocation: `size` of `available`, all of `must_include`.

    Ids of `avoid` (still being released) are taken only when there are too few others. Fewer than
    `size` ids are chosen when there are not enough; more only when `must_include` has more.
    """

    available: Collection[DeviceId]
    must_include: Collection[DeviceId] = ()
    size: int
    avoid: Collection[DeviceId] = frozenset()

    def decide(self, choose: "Choose") -> Ids:
        """Return the ids to pick; *choose* decides where some of more can be taken."""
        must, size = frozenset(self.must_include), self.size
        everything = must.union(self.available)
        free = (everything - frozenset(self.avoid)) | must
        if size <= len(must):
            return must
        if size <= len(free):
            return choose(everything, free, must, size)
        if size < len(everything):
            return choose(everything, everything, free, size)
        return everything


Choose = Callable[[Ids, Ids, Ids, int], Ids]
"""Returns so many of the second ids, with all of the third; all of them are among the first."""


def preferred(host: Sequence[Device], choice: Choice) -> tuple[DeviceId, ...]:
    """Return the ids to pick.

    *host* are all devices of the resource in inventory order, which is the order of the chips in
    the host's box. Taken are as few NUMA nodes as possible, then host shapes: aligned blocks of 1,
    2, 4 and 8, where they leave the largest blocks to others. The same question has the same
    answer. Never raises.
    """
    places = HostPlaces.of(host, choice.available, choice.must_include)
    return tuple(sorted(choice.decide(places.choose), key=places.place.__getitem__))


class HostPlaces(Struct, frozen=True, kw_only=True):
    """The devices at their places; sets of places are the bits of an int."""

    ids: tuple[DeviceId, ...]
    nodes: tuple[int, ...]
    place: dict[DeviceId, int]
    pairs: tuple[tuple[int, int], ...]
    """For each step from a block to one of double size: its shift, and where blocks may start."""

    @classmethod
    def of(
        cls, host: Sequence[Device], available: Collection[DeviceId], must: Collection[DeviceId]
    ) -> "HostPlaces":
        """Place the host's devices in their order, and after them ids that it does not know."""
        numa = {device.name.id: device.numa_node for device in host}
        strangers = sorted({*available, *must} - numa.keys())
        ids = (*numa, *strangers)
        nodes = tuple(_UNKNOWN_NODE if (node := numa.get(name)) is None else node for name in ids)
        return cls(
            ids=ids,
            nodes=nodes,
            place={name: place for place, name in enumerate(ids)},
            pairs=tuple(
                (block // 2, sum(1 << start for start in range(0, len(ids), block)))
                for block in HOST_SHAPES[1:]
            ),
        )

    def choose(self, everything: Ids, items: Ids, fixed: Ids, size: int) -> Ids:
        """Return the best *size* of *items* with all of *fixed*; both are possible."""
        every, some, sure = map(self._mask, (everything, items, fixed))
        node_sets = self._node_sets(some, sure, size)
        picks = [self._pick(some & nodes, sure, size) for nodes in node_sets]
        return frozenset(self.ids[place] for place in _places(self.neatest(picks, every)))

    def _mask(self, names: Ids) -> int:
        """Return the places of *names*."""
        return sum(1 << self.place[name] for name in names)

    def blocks(self, mask: int) -> int:
        """Return how many aligned blocks, each as large as can be, make up *mask*."""
        count = mask.bit_count()
        for shift, starts in self.pairs:
            mask &= (mask >> shift) & starts
            if not mask:
                break
            count -= mask.bit_count()
        return count

    def neatest(self, picks: Iterable[int], here: int) -> int:
        """Return which of *picks* is of the fewest blocks, then leaves the fewest of *here*."""
        return min(picks, key=lambda mask: (self.blocks(mask), self.blocks(here & ~mask), mask))

    def _pick(self, items: int, fixed: int, size: int) -> int:
        """Return the best *size* of *items*: the host's box is halved again and again."""

        @cache  # each half's question is answered once
        def pick(low: int, high: int, size: int) -> int:
            here = items & _span(low, high)
            sure = fixed & here
            if size == here.bit_count():
                return here
            if size == sure.bit_count():
                return sure
            middle = (low + high) // 2
            left, right = here & _span(low, middle), here & _span(middle, high)
            # The lower half may give its least, its most, and shapes.
            least = max((fixed & left).bit_count(), size - right.bit_count())
            most = min(left.bit_count(), size - (fixed & right).bit_count())
            gives = {least, most}
            if len(self.ids) <= _MOST_SHAPED:
                gives.update(shape for shape in HOST_SHAPES if least < shape < most)
            options = [pick(low, middle, give) | pick(middle, high, size - give) for give in gives]
            return self.neatest(options, here)

        return pick(0, 1 << max(len(self.ids) - 1, 0).bit_length(), size)

    def _node_sets(self, items: int, fixed: int, size: int) -> list[int]:
        """Return the places of each smallest set of NUMA nodes that has *size* of *items*."""
        room: dict[int, int] = {}
        for place in _places(items):
            room[self.nodes[place]] = room.get(self.nodes[place], 0) | 1 << place
        needed = {node for node, places in room.items() if places & fixed}
        others = sorted(room.keys() - needed, key=lambda node: (-room[node].bit_count(), node))
        for more in range(len(others) + 1):
            # The first set tried is always the roomiest one, so the limit never leaves us without.
            tried = islice(combinations(others, more), _MOST_NODE_SETS)
            every = (sum(room[node] for node in (*needed, *nodes)) for nodes in tried)
            if found := [places for places in every if places.bit_count() >= size]:
                return found
        return []


def _span(low: int, high: int) -> int:
    return (1 << high) - (1 << low)


def _places(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
