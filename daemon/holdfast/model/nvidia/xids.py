"""Xids: what each error of NVIDIA's driver means for a GPU, and the record that it leaves on it."""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.nvidia.gpu import GpuCondition, GpuEvent, GpuEventKind
from holdfast.model.text import is_number

IGNORED = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of applications, as NVIDIA's plugin ignores them unless DP_ENABLE_HEALTHCHECKS names them.

The catalogue asks for a reset after 109; the plugin ignores it all the same, and so do we: a node
that moves over must not lose GPUs. Where a GPU does need a reset afterwards, drivers from R565 ask
for it, and that condemns it whatever Xid it was.
"""
MOST_XIDS = 32
"""A GPU that sends more different Xids than this is beyond telling; the gravest are kept."""

_EVERY_CI = 0xFFFFFFFF


Place = tuple[int, int] | None
"""A slice as GPU instance and compute instance; None: the whole GPU."""


class Cure(IntEnum):
    """What proves that a GPU is over an Xid, from the weakest to the strongest."""

    ADVICE = 0
    """The driver tells what it asks for (R565), which decides from then on; else as for QUIET."""
    QUIET = 1
    """No such Xid for the quiet period, and then the GPU answers a probe."""
    RESTART = 2
    """All processes that were on the GPU at the time are gone, then as for QUIET."""
    RESET = 3
    """A reset of the GPU was seen; a reload of the driver or a boot resets it too."""
    REBOOT = 4
    """A boot of the node."""
    OPERATOR = 5
    """Nothing that can be seen from here: a person has to say so, by telling holdfast to ignore
    this Xid or to forget it."""

    @property
    def told(self) -> str:
        """What has to happen, for people."""
        return _TOLD[self]


_TOLD: Mapping[Cure, str] = {
    Cure.ADVICE: "clears as soon as the driver says what it needs, or after a quiet period",
    Cure.QUIET: "clears by itself after a quiet period",
    Cure.RESTART: "clears a quiet period after the processes on it have ended",
    Cure.RESET: "needs a reset of the GPU, a reload of the driver or a reboot",
    Cure.REBOOT: "needs a reboot of the node",
    Cure.OPERATOR: "needs a repair by a person, then `holdfast unquarantine`",
}


class XidRule(Struct, frozen=True, kw_only=True):
    """What one Xid means. Every rule is fatal: whatever is watched makes the device Unhealthy."""

    meaning: str
    cure: Cure
    known: bool = True

    @property
    def whole(self) -> bool:
        """Tell whether it condemns the whole GPU even where it names one MIG slice.

        What only a reset can clear takes the other slices with it: nothing new may start there.
        """
        return self.cure >= Cure.RESET


def rule_of(xid: int) -> XidRule:
    """Return what *xid* means.

    NVIDIA's plugin takes every Xid that it does not ignore as fatal for good. One that the table
    does not know is fatal here too, and needs a reset, unless the driver says that it does not.
    """
    known = _RULES.get(xid)
    meaning = "not in the table of known Xids"
    return known or XidRule(meaning=meaning, cure=Cure.RESET, known=False)


# From NVIDIA's public Xid catalogue (docs.nvidia.com/deploy/xid-errors, Ampere and newer), by its
# immediate action: IGNORE is QUIET, RESTART_APP is RESTART, RESET_GPU and the workflows that end in
# one are RESET, RESTART_VM is REBOOT, CHECK_MECHANICALS and UPDATE_SWFW are OPERATOR. What it calls
# unused on these GPUs is left out, and so needs a reset: older GPUs send some of it.
# It ends at 172, and gives no action for 162 to 172: what is about worn out or disabled parts is
# QUIET, what is about a part that stopped or data that was lost is RESET.
# 79 is RESTART_BM there. A GPU that fell off the bus answers again only after the driver has begun
# again with it, which is the reset that we look for.
_TABLE: Mapping[Cure, Mapping[int, str]] = {
    Cure.ADVICE: {154: "the driver's advice on another Xid changed"},
    Cure.QUIET: {
        14: "injected error",
        37: "firmware was given a method it does not have",
        38: "watchdog of the context switch firmware",
        43: "the driver stopped a faulty channel",
        44: "fault during a context switch",
        45: "channels were torn down after another error",
        63: "a bad memory row or page was set aside",
        66: "illegal register access by the driver",
        67: "illegal access by the driver",
        92: "many corrected memory errors",
        93: "wear limit of the InfoROM reached",
        106: "test message",
        107: "test message",
        108: "NVLink translation error at the other end",
        121: "corrected errors on the link to the CPU",
        137: "illegal access over NVLink",
        141: "CUDA fast path error",
        152: "DLA memory fault",
        153: "DLA timeout",
        157: "nothing left to replace a failed resource with",
        160: "a memory channel was retired",
        161: "a memory channel could not be retired",
        162: "power smoothing is on again",
        163: "power smoothing is off",
        164: "power smoothing hardware nears its end",
        165: "power smoothing hardware is worn out",
    },
    Cure.RESTART: {
        8: "a channel made no progress",
        11: "bad push buffer",
        13: "graphics or compute exception",
        25: "bad push buffer",
        31: "memory page fault",
        32: "bad push buffer, seen by its DMA engine",
        **dict.fromkeys((39, 40, 41), "copy engine exception"),
        60: "video processor exception",
        **dict.fromkeys((68, 83, 84, 88, 89, 96, 97, 98), "video decoder exception"),
        69: "graphics class error",
        **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine exception"),
        80: "corrupted data sent to the GPU",
        **dict.fromkeys((82, *range(99, 106)), "JPEG engine exception"),
        86: "optical flow exception",
        94: "memory error, contained to one application",
        139: "optical flow exception",
        142: "video encoder exception",
        159: "error on the link to the CPU",
    },
    Cure.RESET: {
        46: "the GPU stopped processing",
        48: "uncorrectable memory error",
        62: "the power management controller halted",
        64: "a bad memory row or page could not be set aside",
        74: "NVLink error",
        79: "the GPU fell off the bus",
        95: "memory error, not contained: any application may have bad data",
        109: "context switch timed out",
        110: "security fault",
        119: "the GPU's system processor does not answer",
        120: "error of the GPU's system processor",
        136: "link training failed",
        140: "uncorrectable memory error that could not be recorded",
        143: "the GPU could not be initialised",
        **dict.fromkeys(range(144, 151), "NVLink error"),
        155: "an NVLink went down",
        156: "a failed resource is replaced at the next reset",
        158: "the GPU timed out for good",
        166: "NVLink traffic before its encryption was set up",
        167: "PCIe timed out for good",
        169: "the security controller halted",
        170: "unexpected NVLink interrupt in confidential computing",
        171: "uncorrectable error in DRAM",
        172: "uncorrectable error in SRAM",
    },
    Cure.REBOOT: {151: "keys could not be rotated"},
    Cure.OPERATOR: {
        54: "auxiliary power is not connected",
        78: "a vGPU could not start: software or firmware has to be updated",
        168: "memory was lost to errors: turn ECC on",
    },
}

_RULES: Mapping[int, XidRule] = {
    xid: XidRule(meaning=meaning, cure=cure)
    for cure, meanings in _TABLE.items()
    for xid, meaning in meanings.items()
}


class XidChecks(Struct, frozen=True, kw_only=True):
    """Which Xids make a GPU Unhealthy, by the two variables of NVIDIA's plugin.

    `conditions`: whether what NVML tells beside events counts too; `DP_DISABLE_HEALTHCHECKS=all`
    turns that off as well, `xids` does not. `malformed`: what meant nothing and was left out, as
    NVIDIA's plugin does; to be logged.
    """

    ignored: frozenset[int] = IGNORED
    forced: frozenset[int] = frozenset()
    none: bool = False
    all: bool = False
    conditions: bool = True
    malformed: tuple[str, ...] = ()

    @property
    def listening(self) -> bool:
        """Tell whether any event can matter."""
        return self.all or not self.none or bool(self.forced)

    def watches(self, xid: int) -> bool:
        """Tell whether *xid* counts; what is forced on wins over everything else."""
        if self.all or xid in self.forced:
            return True
        return not self.none and xid not in self.ignored


def xid_checks(disable: str = "", enable: str = "") -> XidChecks:
    """Return what DP_DISABLE_HEALTHCHECKS (*disable*) and DP_ENABLE_HEALTHCHECKS (*enable*) mean.

    Each is a list of Xids, or ``all`` or ``xids``; commas separate, case does not matter.
    """
    off, on = _words(disable), _words(enable)
    return XidChecks(
        ignored=IGNORED | _numbers(off),
        forced=_numbers(on),
        none=bool(_EVERY & {*off}),
        all=bool(_EVERY & {*on}),
        conditions="all" not in off or bool(_EVERY & {*on}),
        malformed=tuple(word for word in (*off, *on) if word not in _EVERY and not is_number(word)),
    )


_EVERY = frozenset({"all", "xids"})


def _words(text: str) -> list[str]:
    return [word for each in text.lower().split(",") if (word := each.strip())]


def _numbers(words: Iterable[str]) -> frozenset[int]:
    return frozenset(int(word) for word in words if is_number(word))


def labels_of(event: GpuEvent, *, condemns: bool) -> tuple[str, str, str]:
    """Return an event's kind, its Xid and what clears it, as it is counted.

    Xids that nobody knows are one, for they may be garbage.
    """
    if event.kind is not GpuEventKind.XID:
        return event.kind.value, "", "ignored"
    rule = rule_of(event.xid)
    xid = str(event.xid) if rule.known else "unknown"
    return event.kind.value, xid, rule.cure.name.lower() if condemns else "ignored"


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

    @property
    def heard(self) -> "XidRecord":
        """Return it as it was heard, without what looks found out since."""
        return replace(self, pids=None, gone_at=None)

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

    `at` is when it began, and `driver` the driver's version and load. `users` are the processes on
    each slice, or on the GPU under None; None in either place says that it was not, or could not
    be, told. `mig`: its NVLinks rest while MIG is on.
    """

    at: float
    driver: str
    condition: GpuCondition
    users: Mapping[Place, frozenset[int] | None] | None = None
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
        # Whoever is on it now may have to go as well, so they are asked for again.
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
