"""Who is told what by an Event, and how often at most."""

import math
from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct

from holdfast.model.book.book import Book, PodRecord
from holdfast.model.events.kept import KeptDevice
from holdfast.model.events.reclaims import Reclaimed
from holdfast.model.gate.waiting import Waiting
from holdfast.model.ids import DeviceName, PodUid

_PATIENCE = 2.0
"""Seconds of waiting that are not worth an event: most devices are free before."""
_LEAST = 60.0
"""Seconds between two events of one reason about the same pod or device."""
_REPEAT = 1800.0
"""Seconds after which an event that says the same is written again; servers keep it an hour."""
_MOST = 30
"""Events in a minute, of all kinds: a node with a hundred devices must not flood the cluster."""


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


class Told(Struct, frozen=True, kw_only=True):
    """The last try to write an Event: its text, when (monotonic seconds), and whether it failed."""

    text: str
    at: float
    failed: bool = False


History = Mapping[About, Told]


def notices(
    book: Book,
    waiting: Iterable[Waiting],
    kept: Iterable[KeptDevice],
    reclaimed: Iterable[Reclaimed],
    refused: str = "",
) -> tuple[Notice, ...]:
    """Return what may be told now, waiting pods first, without pods whose name is not known.

    *refused* says why the configuration as it is now is not in use, empty where it is.
    """
    told = [
        Notice(reason=Reason.WAITING, text=f"{each.what} waits: {each.why}", pod=pod)
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
    return kept | {notice.about: Told(text=notice.text, at=now, failed=failed)}


def _is_due(notice: Notice, told: Told | None, now: float) -> bool:
    if told is None:
        return True
    pause = _LEAST if told.failed or told.text != notice.text else _REPEAT
    return now - told.at >= pause
