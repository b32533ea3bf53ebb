"""Follows the node's label that names its configuration; loaded only where one is followed."""

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct

from holdfast.apiserver.client import ApiServer, RequestObserver
from holdfast.apiserver.nodes import NodeOnServer, labels_now
from holdfast.apiserver.wire import Access, in_cluster, node_name
from holdfast.errors import ApiServerError
from holdfast.runtime.clock import Clock, SystemClock, backoff
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings
from holdfast.settings.named import label_in

log = structlog.get_logger(__name__)

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0
_PATIENCE = 5.0
"""Seconds that a start waits for the API server, where it does not know the label."""


class NodeLabel(Struct, frozen=True, kw_only=True):
    """Publishes in `label` what the API server says of the node's label.

    While it cannot be asked, the value that was read last counts. `read` is called when it has
    another value. `problem` is why it cannot be read, `observer` hears of requests to the server.
    """

    settings: Settings
    label: Watched[str | None]
    clock: Clock
    read: Callable[[], None]
    problem: Problem
    observer: RequestObserver

    async def run(self) -> None:
        """Follow the label until cancelled."""
        pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
        while True:
            began = self.clock.monotonic()
            try:
                await self._follow()
            except ApiServerError as error:
                self.problem.set(
                    str(error), next="the value that was read last names the configuration"
                )
            if self.clock.monotonic() - began >= _LAST_PAUSE:
                pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
            await self.clock.sleep(next(pauses))

    async def _follow(self) -> None:
        """Follow the label until the server ends the watch, which is normal after some minutes."""
        access, name = _place(self.settings)
        server = ApiServer(
            access, name="node on API server", clock=self.clock, observer=self.observer
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(server.close)
            node = NodeOnServer(server, node=name)
            labels, version = await node.read()
            self._take(labels)
            begun = partial(self.problem.set, "")
            async for labels in node.follow(version, begun=begun):
                self._take(labels)

    def _take(self, labels: Mapping[str, str]) -> None:
        named = self.settings.named
        value = label_in(named, labels)
        if value != self.label.value:
            self.label.set(value)
            log.info("node label changed", value=value, labels=list(named.labels))
            self.read()


def label_now(settings: Settings) -> str | None:
    """Return the label's value before a start; None where the server does not tell it in time."""
    try:
        labels = labels_now(*_place(settings), SystemClock(), timeout=_PATIENCE)
    except ApiServerError:  # `NodeLabel` tries again, and tells
        return None
    return label_in(settings.named, labels)


def _place(settings: Settings) -> tuple[Access, str]:
    access = in_cluster(os.environ, Path(settings.dra.service_account))
    return access, node_name(settings.dra.node_name, os.environ)
