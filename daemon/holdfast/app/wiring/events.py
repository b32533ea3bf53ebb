"""Builds what tells the cluster of waiting pods and held devices; loaded only with events on."""

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.allocation.entry import Entry
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.events import ClusterNotices
from holdfast.apiserver.wire import in_cluster, node_name
from holdfast.app.watches.notices import Notices
from holdfast.app.wiring.core import Core
from holdfast.reclaim.watcher import Watcher


class ClusterEvents:
    """The notices and their own connection to the API server. Nothing runs yet."""

    def __init__(self, core: Core, watcher: Watcher, entries: Sequence[Entry]) -> None:
        """Build everything; raise ApiServerError outside of a pod.

        Pods wait at *entries*, and nothing is told before *watcher* has looked.
        """
        settings = core.settings
        node = node_name(settings.dra.node_name, os.environ)
        access = in_cluster(os.environ, Path(settings.dra.service_account))
        access.check()
        # Its own: an event that is slow to write keeps no claim waiting.
        claims = core.metrics.claims
        self.server = ApiServer(
            access, name="events on API server", clock=core.clock, observer=claims
        )
        self.notices = Notices(
            ledger=core.ledger,
            entries=entries,
            standings=core.standings,
            looked=watcher.looked,
            cluster=ClusterNotices(self.server, node=node),
            clock=core.clock,
            patience=core.live.withhold_after,
            refused=lambda: core.live.refused,
            wrote=claims.wrote_notice,
        )
        core.ledger.observe(self.notices)
