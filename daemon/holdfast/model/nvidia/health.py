"""Which GPUs and MIG slices can be used: what was seen of each, what condemns it, what clears it.

An Xid leaves a record, and records go one by one, each when what clears its class was seen: a later
harmless Xid changes nothing about an earlier fatal one. What NVML tells of a GPU's state condemns
it for as long as it is so. What NVML does not tell condemns nobody.
"""

from collections.abc import Iterable, Mapping
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.devices import Fault, FaultKind
from holdfast.model.ids import BootId, PciAddress
from holdfast.model.nvidia.gpu import Gpu, GpuCondition, GpuEvent, GpuEventKind
from holdfast.model.nvidia.xids import (
    Cure,
    GpuObservation,
    Place,
    XidChecks,
    XidRecord,
    with_xid,
    xid_after,
)

NO_DRIVER = "none"
"""What stands for the driver of a GPU from when the kernel had none until the next look at it."""

COOL = 5
"""Degrees below its shutdown temperature that a GPU that reached it must come down to."""

_LOST = frozenset({"NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED"})
# The whole library is not there, or has never heard of the GPU: the inventory says so, and better.
_NOT_OF_ONE_GPU = frozenset(
    {
        "NVML_ERROR_UNINITIALIZED",
        "NVML_ERROR_DRIVER_NOT_LOADED",
        "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        "NVML_ERROR_NO_PERMISSION",
        "NVML_ERROR_NOT_FOUND",
    }
)


class GpuState(Struct, frozen=True, kw_only=True):
    """All that is remembered of one GPU.

    `pci` is where it was last seen. `boot` and `driver`, its version and load, are those that
    `xids` are of, or `NO_DRIVER` once that one was gone. `awaits` are the signs that it needs
    a reset, each of which goes by a reset alone. `resting` are the NVLinks that were down when this
    daemon first looked at this load of the driver; None: not looked at yet. `peers` are the GPUs at
    the other end of its NVLinks. `condition` is the last that NVML told, and its `lost` why it told
    none the last `unanswered` times, two at most. `unmonitored` says why events cannot be heard.
    """

    uuid: str
    boot: BootId
    pci: PciAddress | None = None
    driver: str = ""
    xids: tuple[XidRecord, ...] = field(name="marks", default=())  # its name in the ledger
    awaits: frozenset[str] = frozenset()
    resting: frozenset[int] | None = None
    peers: Mapping[int, PciAddress] = field(default_factory=dict)
    condition: GpuCondition = field(default_factory=GpuCondition)
    hot: bool = False
    unanswered: int = 0
    unmonitored: str = ""

    @property
    def judged(self) -> "GpuState":
        """Return it without what no verdict goes by: a temperature below its bound changes always.

        So what is the same at two looks need not be judged again.
        """
        if self.hot:
            return self
        condition = replace(self.condition, temperature=None, shutdown_temperature=None)
        return replace(self, condition=condition)

    @property
    def kept(self) -> "GpuState":
        """What outlives a restart of the daemon: all that condemns, also while no look succeeds.

        What was known of its NVLinks does not: that one is down may be its peer's doing. Nor does
        its temperature.
        """
        return GpuState(
            uuid=self.uuid,
            boot=self.boot,
            pci=self.pci,
            driver=self.driver,
            xids=tuple(record.heard for record in self.xids),
            awaits=self.awaits,
            unanswered=self.unanswered,
            condition=replace(
                self.condition, links_down=(), peers={}, temperature=None, shutdown_temperature=None
            ),
        )


class GpuHealth(Struct, frozen=True, kw_only=True):
    """What is wrong with a GPU or a slice; `notes` are reasons to show that condemn nobody."""

    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()


def after_event(state: GpuState, event: GpuEvent, now: float, checks: XidChecks) -> GpuState:
    """Return *state* once *event* was heard, of this GPU or of one that the driver did not name.

    Only Xids condemn, as in NVIDIA's plugin: the same fault sends the ECC events too.
    """
    if event.kind is not GpuEventKind.XID or not checks.watches(event.xid):
        return state
    if event.uuid not in {"", state.uuid}:
        return state
    return replace(state, xids=with_xid(state.xids, event, now))


def after_observation(
    state: GpuState, observed: GpuObservation, now: float, *, since: float, quiet: float
) -> GpuState:
    """Return *state* once *observed* was seen. *quiet* is the quiet period, in seconds.

    Where the driver is another one than before, its load clears what was heard up to *since*, and
    not what the present driver itself told before this look.

    Nothing is cleared by a look that the GPU did not answer.
    """
    if not observed.answered:
        return replace(
            state,
            xids=tuple(_attributed(record, observed) for record in state.xids),
            awaits=state.awaits | _awaits(observed.condition),
            condition=replace(state.condition, lost=observed.condition.lost),
            unanswered=min(state.unanswered + 1, 2),
        )
    awaits = _awaits(observed.condition, before=state.awaits)
    again = bool(state.driver and observed.driver != state.driver)
    reset = again or bool(state.awaits - awaits)
    judged = (
        xid_after(
            record, observed, now, reset=reset and not (again and record.last > since), quiet=quiet
        )
        for record in state.xids
    )
    return replace(
        state,
        xids=tuple(left for left in judged if left is not None),
        driver=observed.driver,
        resting=_resting(None if again else state.resting, observed),
        peers={**state.peers, **observed.condition.peers},
        awaits=_awaits(observed.condition) if reset else awaits,
        condition=observed.condition,
        hot=_hot(observed.condition, was=state.hot),
        unanswered=0,
    )


def condemning(state: GpuState, place: Place = None) -> tuple[XidRecord, ...]:
    """Return the records that condemn the GPU, or the slice at *place* of it."""
    return tuple(record for record in state.xids if record.concerns(place) and not record.suspected)


def verdict(
    state: GpuState,
    place: Place = None,
    *,
    conditions: bool = True,
    reachable: frozenset[PciAddress] | None = None,
) -> GpuHealth:
    """Return what is wrong with the GPU, or with the slice at *place* of it.

    *conditions*: whether what NVML tells beside events counts. *reachable* are the GPUs that an
    NVLink could lead to; None: all of them.
    """
    texts = [record.text for record in condemning(state, place)]
    texts += _conditions(state, reachable) if conditions else []
    notes = [state.unmonitored] if state.unmonitored else []
    suspected = [record for record in state.xids if record.suspected and record.concerns(place)]
    notes += [f"{state.uuid}: {record.text}" for record in suspected]
    if state.condition.lost and not _condemns(state):
        notes.append(f"its state cannot be read: {state.condition.lost}")
    return GpuHealth(
        faults=tuple(Fault(kind=FaultKind.ILL, text=f"{state.uuid}: {text}") for text in texts),
        notes=tuple(notes),
    )


def healths(
    states: Mapping[str, GpuState], gpus: Iterable[Gpu], *, conditions: bool = True
) -> Mapping[str, GpuHealth]:
    """Return the health of each GPU and of each of its slices, by UUID."""
    gpus = tuple(gpus)
    judge = partial(verdict, conditions=conditions, reachable=_reachable(states, gpus))
    slices = ((states[gpu.uuid], each) for gpu in gpus if gpu.uuid in states for each in gpu.slices)
    return {uuid: judge(state) for uuid, state in states.items()} | {
        each.uuid: judge(state, (each.gi, each.ci)) for state, each in slices
    }


def placed(event: GpuEvent, gpus: Iterable[Gpu]) -> GpuEvent:
    """Return *event* with the GPU, and the slice of it, that it is about.

    Of a GPU that is not divided NVML may say slice 0/0.
    """
    gpus = tuple(gpus)
    uuid, place = place_of(event.uuid, gpus)
    if place is not None:
        return replace(event, uuid=uuid, gi=place[0], ci=place[1])
    whole = any(gpu.uuid == uuid and not gpu.mig for gpu in gpus)
    return replace(event, gi=None, ci=None) if whole else event


def place_of(uuid: str, gpus: Iterable[Gpu]) -> tuple[str, Place]:
    """Return the GPU that *uuid* is, or is a slice of, and where on it."""
    for gpu in gpus:
        for each in gpu.slices:
            if each.uuid == uuid:
                return gpu.uuid, (each.gi, each.ci)
    return uuid, None


def restored(state: GpuState, boot: BootId, now: float, checks: XidChecks) -> GpuState:
    """Return what counts of a state that was kept over a restart, or judged by other *checks*.

    *boot* is this boot, and *now* the seconds since it. A moment of another boot, or of the time of
    day, which older ledgers have, counts as now: its quiet period begins again.

    What a boot clears is dropped at once when this is another boot, and an Xid that is ignored
    now is dropped too: so a person can overrule an Xid. Whether the driver was loaded again since
    shows at the first look.
    """
    xids = tuple(record for record in state.xids if checks.watches(record.xid))
    if boot == state.boot:
        xids = tuple(_moved(record, now) if record.last > now else record for record in xids)
        return replace(state, xids=xids)
    xids = tuple(_moved(record, now) for record in xids if record.cure is Cure.OPERATOR)
    return GpuState(uuid=state.uuid, boot=boot, pci=state.pci, xids=xids)


def _moved(record: XidRecord, now: float) -> XidRecord:
    return replace(record, first=now, last=now)


def _attributed(record: XidRecord, observed: GpuObservation) -> XidRecord:
    """Return *record* as this GPU's own, if it is of an unnamed GPU and this one is lost."""
    return replace(record, suspected=False) if observed.condition.lost in _LOST else record


def _awaits(condition: GpuCondition, *, before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the signs that a reset is due; of what is not told, those of *before* stand.

    Lost: the driver speaks with such a GPU again only once it has begun again with it. Bad rows and
    pages are replaced at a reset and at no other time; of a GPU with MIG devices NVML tells no
    rows. And the driver may say so itself.
    """
    asked = condition.recovery
    signs = {
        "lost": condition.lost in _LOST,
        "rows": condition.remap_pending,
        "pages": condition.retired_pending,
        "driver": None if asked is None else "reset" in asked or "reboot" in asked,
    }
    return frozenset(
        sign for sign, shown in signs.items() if (sign in before if shown is None else shown)
    )


def _resting(known: frozenset[int] | None, observed: GpuObservation) -> frozenset[int] | None:
    """Return the links that have been down ever since the first look: nothing is at their end.

    A card without its bridge shows its links as down, and so does a GPU in MIG mode. What MIG mode
    shows is no first look: afterwards its links are learned again.
    """
    down = frozenset(observed.condition.links_down)
    if observed.mig:
        return None
    return down if known is None else known & down


def _hot(condition: GpuCondition, *, was: bool) -> bool:
    now, most = condition.temperature, condition.shutdown_temperature
    if now is None or most is None:
        return False
    return now >= (most - COOL if was else most)


def _condemns(state: GpuState) -> bool:
    """Tell whether a GPU that does not answer is out of order; one odd answer may pass."""
    error = state.condition.lost
    if not error or error in _NOT_OF_ONE_GPU:
        return False
    suspected = any(record.suspected for record in state.xids)
    return error in _LOST or suspected or state.unanswered > 1


def _reachable(states: Mapping[str, GpuState], gpus: Iterable[Gpu]) -> frozenset[PciAddress]:
    """Return the GPUs that NVLinks can lead to: MIG mode turns them off, and so does being lost."""
    lost = {uuid for uuid, state in states.items() if state.condition.lost in _LOST}
    return frozenset(
        gpu.pci
        for gpu in gpus
        if gpu.pci is not None
        and not gpu.mig
        and gpu.uuid not in lost
        and not any(problem.lost for problem in gpu.problems)
    )


def _conditions(state: GpuState, reachable: frozenset[PciAddress] | None) -> list[str]:
    condition = state.condition
    if _condemns(state):
        if condition.lost in _LOST:
            return [f"it is lost ({condition.lost}): it needs a reset or a reboot"]
        return [f"it does not answer: {condition.lost}"]
    found = []
    if condition.remap_failed:
        found.append("a bad memory row could not be replaced: replace the GPU")
    if condition.remap_pending:
        found.append("a bad memory row waits for a reset of the GPU to be replaced")
    if condition.retired_pending:
        found.append("bad memory pages wait for a reset of the GPU to be retired")
    if condition.recovery:
        found.append(f"the driver asks to {condition.recovery}")
    if state.hot:
        found.append(
            f"it is at {condition.temperature} degrees and shuts down at "
            f"{condition.shutdown_temperature}"
        )
    if state.resting is not None:
        found += [
            f"its NVLink {link} went down"
            for link in condition.links_down
            if link not in state.resting
            and (reachable is None or link not in state.peers or state.peers[link] in reachable)
        ]
    return found
