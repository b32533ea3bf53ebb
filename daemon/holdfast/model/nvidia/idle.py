"""What a GPU shows of itself while nobody uses it: how much memory it needs, and that it rests.

The driver needs some memory of each GPU, and may come to need a little more. A leak looks the same
but for its size, so small rises are taken for need, up to a bound for all of them together.
"""

from msgspec import Struct
from msgspec.structs import replace

MOST_RISE = 4
"""By how many times the slack the idle level may rise above the least that was ever seen."""
LONG = 10
"""After how many deadlines a small rise on a GPU that a pod had counts as need."""
BUSY = 50
"""From how many percent of use a GPU on which NVML names nobody counts as busy."""


class IdleMemory(Struct, frozen=True, kw_only=True):
    """The memory of one GPU that is in use while nobody uses it, in bytes; the ledger keeps it.

    `now` is what counts, `least` the least that was seen since the driver was loaded, which `load`
    tells from any other load and boot: each gives all memory back, and may need more or less.
    """

    load: str
    least: int
    now: int


class IdleLevel(Struct, frozen=True, kw_only=True):
    """What is known of one GPU that nobody uses; bytes, and times in monotonic seconds.

    `idle` is its memory then, None until it was seen while the GPU was granted to nobody; `least`
    is the least that `idle` has been. `above_since` is since when more is in use although nobody
    uses it, `busy_since` since when it works for nobody.
    """

    idle: int | None = None
    least: int | None = None
    above_since: float | None = None
    busy_since: float | None = None

    def kept(self, load: str) -> IdleMemory | None:
        """Return what the ledger keeps of it; None: nothing is known yet."""
        if self.idle is None or self.least is None:
            return None
        return IdleMemory(load=load, least=self.least, now=self.idle)


class IdleRules(Struct, frozen=True, kw_only=True):
    """What can be set: the slack in bytes, and how many seconds memory may take to come back."""

    slack: int
    deadline: float


class Unused(Struct, frozen=True, kw_only=True):
    """One look at a GPU on which nobody is; `memory` in bytes, `utilization` in percent.

    None where NVML does not tell, as of the use of a MIG slice. `unowned`: it is granted to nobody.
    """

    memory: int | None = None
    utilization: int | None = None
    unowned: bool = True


def restored(kept: IdleMemory | None, load: str) -> IdleLevel:
    """Return what is known at the start of a daemon, of the load of the driver that runs now."""
    if kept is None or kept.load != load:
        return IdleLevel()
    return IdleLevel(idle=kept.now, least=kept.least)


def follow(level: IdleLevel, look: Unused | None, *, now: float, rules: IdleRules) -> IdleLevel:
    """Return what is known after one more look; None: somebody is on it, or nobody can tell.

    The idle level is the least that was seen while the GPU was granted to nobody. A small rise that
    stands is taken for what the driver has come to need: nobody is there to give it back. What is
    more than that is a leak, however long it stands.
    """
    if look is None:
        return replace(level, above_since=None, busy_since=None)
    level = replace(level, busy_since=_since(level.busy_since, now, so=is_busy(look.utilization)))
    memory, idle = look.memory, level.idle
    if memory is None:
        return replace(level, above_since=None)
    if idle is None or level.least is None:
        return replace(level, idle=memory, least=memory) if look.unowned else level
    above = _since(level.above_since, now, so=memory > idle + rules.slack)
    if look.unowned and memory < idle:
        return replace(level, idle=memory, least=min(level.least, memory), above_since=None)
    stand = rules.deadline * (1 if look.unowned else LONG)
    stands = above is not None and now - above >= stand
    if stands and memory <= level.least + MOST_RISE * rules.slack:
        return replace(level, idle=memory, above_since=None)
    return replace(level, above_since=above)


def is_busy(utilization: int | None) -> bool:
    """Tell whether a GPU works, where it tells how much."""
    return utilization is not None and utilization >= BUSY


def _since(before: float | None, now: float, *, so: bool) -> float | None:
    if not so:
        return None
    return now if before is None else before
