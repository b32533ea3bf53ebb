"""Which API this daemon serves, the device plugin or DRA or both, and whether it writes Events."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from holdfast.errors import ApiServerError
from holdfast.kubelet.offering import Offering
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book
from holdfast.model.book.offers import Offers
from holdfast.runtime.changes import Changes
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.app.wiring.dra import Dra
    from holdfast.app.wiring.events import ClusterEvents
    from holdfast.app.wiring.parts import Parts

log = structlog.get_logger(__name__)

_LONG = 3600.0


def second_door(parts: "Parts") -> "Dra | None":
    """Build DRA's part over *parts*; nothing of it is loaded where no hardware is behind it.

    Or where it was, and claims have still to end: kubelet cannot end their pods without us. A
    token that is missing stops no daemon: claims are prepared once it is there.
    """
    wanted = parts.settings.has_dra()
    if not (wanted or parts.ledger.book.value.claims):
        return None
    from holdfast.apiserver.access import in_cluster  # noqa: PLC0415 - see above
    from holdfast.app.wiring.dra import Dra  # noqa: PLC0415 - see above

    access = in_cluster(os.environ, Path(parts.settings.dra.service_account))
    try:
        access.check()
    except ApiServerError as error:
        if not wanted:
            log.warning("cannot serve the claims that are left", reason=str(error))
            return None
        log.warning("cannot prepare claims yet", reason=str(error))
    return Dra(parts, access)


def cluster_events(parts: "Parts") -> "ClusterEvents | None":
    """Build what writes Events and the node's condition; nothing of it is loaded with events off.

    Outside of a pod the daemon does all the rest.
    """
    if not parts.settings.events.enabled:
        return None
    from holdfast.app.wiring.events import ClusterEvents  # noqa: PLC0415 - see above

    try:
        return ClusterEvents(parts)
    except ApiServerError as error:
        log.warning("cannot notify the cluster", what="Events", reason=str(error))
        return None


async def something_offered(
    offering: Offering, ledger: Ledger, silent: Callable[[], bool]
) -> Offers:
    """Return what kubelet is offered, once there is something, or nothing is to come (*silent*)."""
    while not (offering.offers.value.devices or silent()):
        await Changes([offering.offers, ledger.book]).wait(_LONG)
    return offering.offers.value


def is_silent(settings: Settings, offers: Offers, book: Book) -> bool:
    """Tell whether no device comes by the device plugin: all of them come by claims."""
    if not settings.has_dra() or offers.devices:
        return False
    plugins = [each.claim is None for each in book.allocations.values()]
    plugins += [lock.claim is None and lock.pod is not None for lock in book.locks.values()]
    return not any(plugins)
