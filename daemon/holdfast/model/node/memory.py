"""How much memory a process may use, and how much it may lock: what the node's numbers mean."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.node.cgroup_names import pod_of

UNSEEN = "/.."
"""The path of an invisible parent cgroup, of which only the limit is known (version 1)."""

NEAR = 0.10
"""Less of its limit than this is left: what a container near its limit is warned of."""

_WARN_AT = 0.85
_CALM_AT = 0.75
"""Shares of its limit at which the daemon warns, and below which it may warn again."""

VFIO_MEMLOCK = 64 << 30
"""What GKE's documentation has TPU pods that are not privileged set by ``ulimit -l``."""


class CgroupMemory(Struct, frozen=True, kw_only=True):
    """One cgroup's memory in bytes; None: no such limit, or unknown.

    `usage` excludes file cache: the kernel frees it before it kills a process, and a program that
    reads a lot of data fills any limit with it. kubelet and ``kubectl top`` exclude only the part
    that was not read twice. Above `high` the kernel throttles the processes, and kills none.
    """

    path: str
    limit: int | None = None
    high: int | None = None
    usage: int | None = None

    @property
    def left(self) -> int | None:
        """How much more it may use; None where there is no limit, or no usage to be seen."""
        if self.limit is None or self.usage is None:
            return None
        return max(0, self.limit - self.usage)

    @property
    def throttled(self) -> bool:
        """Whether it is above its `high`, so that the kernel slows all in it."""
        return self.high is not None and self.usage is not None and self.usage >= self.high

    @property
    def share_left(self) -> float:
        """How much of its limit is left, as a share; 1 where that is not known."""
        return 1.0 if self.left is None or not self.limit else self.left / self.limit


class Memory(Struct, frozen=True, kw_only=True):
    """What a process may use: the node's memory, or the tightest limit of all cgroups around it.

    `cgroups` are those that could be seen, its own first. `total` and `available` are the node's,
    None where they cannot be read. A program that trusts the node's alone is ended by the kernel
    when it comes to a cgroup's.
    """

    total: int | None = None
    available: int | None = None
    cgroups: tuple[CgroupMemory, ...] = ()

    @property
    def limited(self) -> tuple[CgroupMemory, ...]:
        """The cgroups whose limit is one: what is above the node's memory limits nothing."""
        return tuple(
            each
            for each in self.cgroups
            if each.limit is not None and (self.total is None or each.limit < self.total)
        )

    @property
    def tightest(self) -> CgroupMemory | None:
        """The cgroup with the lowest limit, the innermost of equals; None: the node has less."""
        return min(self.limited, key=lambda each: each.limit or 0, default=None)

    @property
    def limit(self) -> int | None:
        """The limit that counts, in bytes; None where nothing could be read."""
        tightest = self.tightest
        return self.total if tightest is None else tightest.limit

    @property
    def usage(self) -> int | None:
        """The use of the process's cgroup with all below it; the innermost that reports it."""
        return next((each.usage for each in self.cgroups if each.usage is not None), None)

    @property
    def headroom(self) -> int | None:
        """How much more can be used before any limit around it, or the node's end, is reached.

        That need not be at the tightest limit: neighbours fill the outer ones.
        """
        lefts = [each.left for each in self.limited if each.left is not None]
        lefts += [] if self.available is None else [self.available]
        return min(lefts, default=None)

    @property
    def near(self) -> CgroupMemory | None:
        """The cgroup that is nearest to its limit, where less than a tenth is left; else None."""
        nearest = min(self.limited, key=lambda each: each.share_left, default=None)
        return nearest if nearest is not None and nearest.share_left < NEAR else None

    @property
    def slowed(self) -> CgroupMemory | None:
        """The innermost cgroup above its `high`, where the kernel slows all in it; else None."""
        return next((each for each in self.cgroups if each.throttled), None)


class OwnMemory(Struct, frozen=True, kw_only=True):
    """The daemon's own memory: `resident` in bytes, None if unknown; see `own_share`."""

    memory: Memory = Memory()
    resident: int | None = None
    share: float = 0.0


def own_share(memory: Memory, resident: int | None) -> float:
    """Return the share of its limit that the daemon uses; 0 if unknown.

    Its own cgroup and its pod's cgroup count, because the kernel kills it there. What other pods
    use of an outer limit does not count. If no cgroup reports its use, *resident* counts: the
    daemon's memory with its mapped files, which is too high rather than too low.
    """
    own = memory.cgroups[:1] + tuple(each for each in memory.cgroups[1:] if pod_of(each.path)[0])
    told = [each for each in own if each in memory.limited and each.left is not None]
    if told:
        return max(1 - each.share_left for each in told)
    return resident / memory.limit if resident is not None and memory.limit else 0.0


def is_tight(share: float, *, before: bool) -> bool:
    """Return whether *share* of its limit is too much, given the last answer.

    Between the two thresholds the last answer stays, so that the warning is not repeated.
    """
    return share >= (_CALM_AT if before else _WARN_AT)


class Memlock(Struct, frozen=True, kw_only=True):
    """How much memory a process may lock, in bytes; `limit` None: without limit.

    `exempt`: it has CAP_IPC_LOCK, and no limit counts. `locked` is what it has locked now, with
    what VFIO pinned for it; None if unknown.
    """

    limit: int | None
    exempt: bool = False
    locked: int | None = None

    @property
    def bounded(self) -> int | None:
        """The limit that counts; None: there is none."""
        return None if self.exempt else self.limit

    @property
    def too_low(self) -> bool:
        """Return whether VFIO may refuse to map a TPU's memory: it counts every pinned page."""
        return self.bounded is not None and self.bounded < VFIO_MEMLOCK


class HolderMemory(Struct, frozen=True, kw_only=True):
    """What a process that holds a device may use and lock; `memlock` None: unknown."""

    memory: Memory = Memory()
    memlock: Memlock | None = None


def least(memories: Iterable[Memory]) -> Memory | None:
    """Return the one with the least headroom; None if it is unknown for all."""
    known = [(each.headroom, each) for each in memories if each.headroom is not None]
    return min(known, key=lambda pair: pair[0], default=(0, None))[1]
