"""What the cluster learns about waiting pods and held devices: Events, and the node's condition."""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field

from holdfast.model.book.book import Book, LockState, Move, PodRecord
from holdfast.model.book.marks import Marks
from holdfast.model.book.messages import Message, sentence
from holdfast.model.book.standing import Standing
from holdfast.model.gate.gate import WaitReport
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.text import printable

REMEMBERED = 600.0
"""Seconds for which an Event about a reclaimed device is tried to be written."""

_RECLAIM = frozenset({LockState.RECLAIMING, LockState.QUARANTINED})
_PATIENCE = 2.0
"""Seconds of waiting that are not worth an event: most devices are free before."""
_LEAST = 60.0
"""Seconds between two events of one reason about the same pod or device."""
_REPEAT = 1800.0
"""Seconds after which an event that says the same is written again; servers keep it an hour."""
_MOST = 30
"""Events in a minute, of all kinds: a node with a hundred devices must not flood the cluster."""
CONDITION = "HoldfastDevicesHeld"
"""The condition's type."""

_MOST_NAMED = 3
_MOST_TEXT = 1000
"""Characters; each reader of the Node object is sent them."""
_LEAST_BETWEEN = 5.0
"""Seconds between two writes: each goes to whatever watches the nodes of the cluster."""
_LEAST_FOR_TEXT = 120.0
"""Seconds between two writes of which the second only changes the message."""
_HEARTBEAT = 1800.0
"""Seconds after which it is written although nothing changed: the Node may have been made again."""


class ReclaimedDevice(Struct, frozen=True, kw_only=True):
    """A device that is free again after a leftover was ended; `at` in monotonic seconds."""

    device: DeviceName
    text: str
    at: float


class Reclaims(Struct, frozen=True, kw_only=True):
    """What is done about each device that is being reclaimed, and what came to an end lately."""

    begun: Mapping[DeviceName, str] = field(default_factory=dict)
    done: Mapping[DeviceName, ReclaimedDevice] = field(default_factory=dict)

    def followed(self, moves: Iterable[Move], book: Book, now: float) -> "Reclaims":
        """Return the same after *moves*, the last of which led to *book*, at *now*."""
        begun, done = dict(self.begun), dict(self.done)
        for move in moves:
            if move.after in _RECLAIM:
                text = f"{move.evidence}, left over from {book.pod(move.pod)}"
                begun.setdefault(move.device, text)
            elif (text := begun.pop(move.device, "")) and move.after is LockState.FREE:
                told = f"{move.device} is free again after {text}: {move.evidence}"
                done[move.device] = ReclaimedDevice(device=move.device, text=told, at=now)
        return Reclaims(begun=begun, done=done)

    def lately(self, now: float) -> "Reclaims":
        """Return the same without what came to an end too long before *now*."""
        kept = {name: each for name, each in self.done.items() if now - each.at < REMEMBERED}
        return Reclaims(begun=self.begun, done=kept)


def reclaims_in(book: Book) -> Reclaims:
    """Return what *book* says is being reclaimed, as a daemon that just started finds it."""
    return Reclaims(
        begun={
            lock.device: f"{lock.evidence}, left over from {book.pod(lock.pod)}"
            for lock in book.locks.values()
            if lock.state in _RECLAIM
        }
    )


class KeptDevice(Struct, frozen=True, kw_only=True):
    """A device that no new pod gets; `text` says who has it, or who asked for that."""

    device: DeviceName
    quarantined: bool
    text: str


def kept_devices(
    standings: Iterable[Standing], marks: Marks, *, patience: float, now: float
) -> tuple[KeptDevice, ...]:
    """Return each device that is quarantined, or has not been free for *patience* seconds.

    *now* is in seconds since the boot. One that was kept when the daemon started has been told.
    """
    found: dict[DeviceName, KeptDevice] = {}
    for name, quarantine in marks.quarantines.items():
        text = sentence(Message.QUARANTINED.filled(name, reason=str(quarantine.mark)))
        found[name] = KeptDevice(device=name, quarantined=True, text=text)
    for each in standings:
        if each.lock is None or each.lock.device != each.name or each.state is LockState.HELD:
            continue
        given_up = each.state is LockState.QUARANTINED
        lasts = each.inherited or now - each.kept_since >= patience
        if given_up or (lasts and each.name not in found):
            found[each.name] = KeptDevice(device=each.name, quarantined=given_up, text=each.kept_by)
    return tuple(found[name] for name in sorted(found))


class Reason(Enum):
    """The reasons of our Events, as ``kubectl describe`` shows them."""

    WAITING = "WaitingForDevice"
    HELD = "DeviceHeld"
    QUARANTINED = "DeviceQuarantined"
    RECLAIMED = "DeviceReclaimed"
    CONFIGURATION = "ConfigurationRefused"


class Notice(Struct, frozen=True, kw_only=True):
    """One Event to be: about `pod`, or about the node, for its `device` or its configuration."""

    reason: Reason
    text: str
    pod: PodRecord | None = None
    device: DeviceName | None = None

    @property
    def about(self) -> "About":
        """Return what the limit of one event a minute counts by."""
        return (self.reason, self.device if self.pod is None else self.pod.uid)

    @property
    def is_warning(self) -> bool:
        """Tell whether it is of the type Warning, else Normal."""
        return self.reason is not Reason.RECLAIMED


About = tuple[Reason, PodUid | DeviceName | None]


class EventAttempt(Struct, frozen=True, kw_only=True):
    """The last try to write an Event: its text, when (monotonic seconds), and whether it failed."""

    text: str
    at: float
    failed: bool = False


History = Mapping[About, EventAttempt]


def notices(
    book: Book,
    waiting: Iterable[WaitReport],
    kept: Iterable[KeptDevice],
    reclaimed: Iterable[ReclaimedDevice],
    refused: str = "",
) -> tuple[Notice, ...]:
    """Return what may be told now, waiting pods first, without pods whose name is not known.

    *refused* says why the configuration as it is now is not in use, empty where it is.
    """
    told = [
        Notice(reason=Reason.WAITING, text=each.why, pod=pod)
        for each in waiting
        if each.seconds >= _PATIENCE
        for uid in sorted(each.pods)
        if (pod := book.pods.get(uid)) is not None and pod.name
    ]
    told += [
        Notice(
            reason=Reason.QUARANTINED if each.quarantined else Reason.HELD,
            text=each.text,
            device=each.device,
        )
        for each in kept
    ]
    told += [
        Notice(reason=Reason.RECLAIMED, text=each.text, device=each.device) for each in reclaimed
    ]
    if refused:
        text = f"the changed configuration is not used, and the former one stays in use: {refused}"
        told.append(Notice(reason=Reason.CONFIGURATION, text=text))
    first: dict[About, Notice] = {}
    for each in told:  # a pod may wait at two doors
        first.setdefault(each.about, each)
    return tuple(first.values())


def due(found: Iterable[Notice], history: History, now: float) -> tuple[Notice, ...]:
    """Return which of *found* are to be written at *now*, in monotonic seconds.

    What was never tried comes first, then what was tried longest ago: some may never be taken, as
    those about a pod whose namespace is being deleted, and must not keep the others from their try.
    """
    lately = sum(now - each.at < _LEAST for each in history.values())
    wanted = [each for each in found if _is_due(each, history.get(each.about), now)]
    wanted.sort(key=lambda each: history[each.about].at if each.about in history else -math.inf)
    return tuple(wanted[: max(0, _MOST - lately)])


def noted(history: History, notice: Notice, now: float, *, failed: bool) -> History:
    """Return *history* with a try to write *notice* at *now*, without what is too old to count."""
    kept = {about: told for about, told in history.items() if now - told.at < _REPEAT}
    return kept | {notice.about: EventAttempt(text=notice.text, at=now, failed=failed)}


def _is_due(notice: Notice, told: EventAttempt | None, now: float) -> bool:
    if told is None:
        return True
    pause = _LEAST if told.failed or told.text != notice.text else _REPEAT
    return now - told.at >= pause


class Condition(Struct, frozen=True, kw_only=True):
    """The condition: whether any device is kept from its next pod, and why."""

    status: bool
    reason: str
    message: str


class StoredCondition(Struct, frozen=True, kw_only=True):
    """What the server has of the condition, and since when it has this `status`.

    `condition` is None and `since` empty where the Node has none; `since` is in the server's words.
    """

    condition: Condition | None = None
    since: str = ""


def condition_of(kept: Sequence[KeptDevice]) -> Condition:
    """Return the condition of a node that keeps these devices from their next pods."""
    if not kept:
        return Condition(
            status=False, reason="NoDeviceHeld", message="no device is kept from its next pod"
        )
    more = len(kept) - _MOST_NAMED
    text = "; ".join(each.text for each in kept[:_MOST_NAMED])
    quarantined = any(each.quarantined for each in kept)
    return Condition(
        status=True,
        reason="DeviceQuarantined" if quarantined else "DeviceHeld",
        message=printable(text, _MOST_TEXT) + (f"; and {more} more" if more > 0 else ""),
    )


def is_due(wanted: Condition, stored: Condition | None, seconds: float) -> bool:
    """Tell whether *wanted* is to be written, *seconds* after the last write.

    *stored* is what the server has, None where it has nothing.
    """
    if stored == wanted:
        return seconds >= _HEARTBEAT
    only_text = stored is not None and (wanted.status, wanted.reason) == (
        stored.status,
        stored.reason,
    )
    return seconds >= (_LEAST_FOR_TEXT if only_text else _LEAST_BETWEEN)
