"""Builds what tells the cluster of waiting pods and held devices; loaded only with events on."""

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.apiserver.access import in_cluster, node_name
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.events import NodeEvents
from holdfast.apiserver.nodecondition import NodeCondition
from holdfast.app.watches.notices import Notices
from holdfast.model.gate.waiting import Waiting

if TYPE_CHECKING:
    from holdfast.app.wiring.parts import Parts


class ClusterEvents:
    """The notices and their own connection to the API server. Nothing runs yet."""

    def __init__(self, parts: "Parts") -> None:
        """Build everything over *parts*; raise ApiServerError outside of a pod."""
        self._parts = parts
        settings = parts.settings
        node = node_name(settings.dra.node_name, os.environ)
        access = in_cluster(os.environ, Path(settings.dra.service_account))
        access.check()
        # Its own: an event that is slow to write keeps no claim waiting.
        self.server = ApiServer(access, name="events on API server", clock=parts.clock)
        self.notices = Notices(
            ledger=parts.ledger,
            waiting=self._waiting,
            obstacle=parts.watcher.obstacle,
            looked=parts.watcher.looked,
            events=NodeEvents(self.server, node=node),
            condition=NodeCondition(self.server, node=node),
            clock=parts.clock,
            patience=parts.live.withhold_after,
            refused=lambda: parts.live.refused,
        )

    def _waiting(self, now: float) -> Iterator[Waiting]:
        dra = self._parts.dra
        claims = () if dra is None else dra.door.preparing.waiting(now)
        return chain(self._parts.gate.starts.waiting(now), claims)
