"""The records that Xids leave on a GPU: what each condemns, and what has to be seen to clear it."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.nvidia.gpu import GpuCondition, GpuEvent
from holdfast.model.nvidia.xids import Cure, rule_of

MOST_XIDS = 32
"""A GPU that sends more different Xids than this is beyond telling; the gravest are kept."""

_EVERY_CI = 0xFFFFFFFF


Place = tuple[int, int] | None
"""A slice as GPU instance and compute instance; None: the whole GPU."""


class XidRecord(Struct, frozen=True, kw_only=True):
    """One Xid that a GPU, or the slice `gi` and `ci` of it, has not been cleared of.

    Times are in seconds since the machine booted. `suspected`: the driver could not say which GPU
    it was, so every one is asked; it condemns the one that turns out to be lost, and the others
    not. `pids` are the processes that were on it and may have to go, None until they were asked
    for; `gone_at` is when the last of them was missed.
    """

    xid: int
    gi: int | None = None
    ci: int | None = None
    first: float
    last: float
    count: int = 1
    suspected: bool = False
    pids: frozenset[int] | None = None
    gone_at: float | None = None

    @property
    def cure(self) -> Cure:
        """What clears it; a suspicion goes with the first probe that is answered."""
        return Cure.QUIET if self.suspected else rule_of(self.xid).cure

    def concerns(self, place: Place) -> bool:
        """Tell whether it condemns *place*; a whole GPU has the records of all its slices too."""
        if place is None or self.gi is None:
            return True
        return self.gi == place[0] and self.ci in {None, place[1]}

    @property
    def text(self) -> str:
        """What happened and what has to, for people."""
        where = "" if self.gi is None else f" on its slice {self.gi}/{self.ci}"
        if self.suspected:
            return f"Xid {self.xid} of a GPU that the driver did not name; it is asked again"
        return f"Xid {self.xid}{where} ({rule_of(self.xid).meaning}): {self.cure.told}"


class GpuObservation(Struct, frozen=True, kw_only=True):
    """What one look at a GPU found.

    `at` is when it began. `users` are the processes on each slice, or on the GPU under None; None
    in either place says that it was not, or could not be, told. `reloaded`: the driver was gone
    since the last look and is back. `mig`: its NVLinks rest while MIG is on.
    """

    at: float
    driver: str
    condition: GpuCondition
    users: Mapping[Place, frozenset[int] | None] | None = None
    reloaded: bool = False
    mig: bool = False

    @property
    def answered(self) -> bool:
        """Tell whether the GPU itself answered."""
        return not self.condition.lost


def with_xid(xids: tuple[XidRecord, ...], event: GpuEvent, now: float) -> tuple[XidRecord, ...]:
    """Return *xids* with that of *event*, an Xid; what was there stays."""
    suspected = not event.uuid
    whole = suspected or event.gi is None or rule_of(event.xid).whole
    gi = None if whole else event.gi
    ci = None if whole or event.ci == _EVERY_CI else event.ci
    known = next(
        (
            record
            for record in xids
            if (record.xid, record.gi, record.ci, record.suspected)
            == (event.xid, gi, ci, suspected)
        ),
        None,
    )
    record = XidRecord(xid=event.xid, gi=gi, ci=ci, first=now, last=now, suspected=suspected)
    if known is not None:
        # Whoever is on it now may have to go as well, so they are asked for anew.
        record = replace(record, first=known.first, count=known.count + 1)
    every = [*(each for each in xids if each != known), record]
    kept = sorted(every, key=lambda each: -each.cure)[:MOST_XIDS]
    return tuple(each for each in every if each in kept)


def xid_after(
    record: XidRecord, observed: GpuObservation, now: float, *, reset: bool, quiet: float
) -> XidRecord | None:
    """Return what is left of *record*; None: it is cleared."""
    if observed.at < record.last:
        return record  # it came while we looked
    if record.suspected or (reset and record.cure <= Cure.RESET):
        return None
    advice = observed.condition.recovery
    if record.cure is Cure.ADVICE and advice is not None:
        return None  # what it asks for condemns by itself
    # Of an Xid that nobody has published the driver knows better whether it needs a reset.
    passes = advice == "" and not rule_of(record.xid).known
    if record.cure > Cure.RESTART and not passes:
        return record
    if record.cure is Cure.RESTART:
        record = _without_users(record, observed)
        if record.gone_at is None:
            return record
    since = max(record.last, record.gone_at or record.last)
    return record if now - since < quiet else None


def _without_users(record: XidRecord, observed: GpuObservation) -> XidRecord:
    """Return *record* with its processes that are still there; as it is if nobody can tell."""
    if observed.users is None:
        return record
    users: frozenset[int] = frozenset()  # of a slice that is no more, too
    for place, pids in observed.users.items():
        if record.concerns(place):
            if pids is None:
                return record
            users |= pids
    pids = users if record.pids is None else record.pids & users
    return replace(record, pids=pids, gone_at=None if pids else record.gone_at or observed.at)
