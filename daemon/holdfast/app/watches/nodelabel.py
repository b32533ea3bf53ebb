"""Follows the node's label that names its configuration; loaded only where one is followed."""

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog

from holdfast.apiserver.access import Access, in_cluster, node_name
from holdfast.apiserver.client import ApiServer
from holdfast.apiserver.nodes import NodeOnServer, labels_now
from holdfast.errors import ApiServerError, LaneStuckError, SettingsError
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane
from holdfast.settings import Settings
from holdfast.settings.named import label_in, remember_label, remembered_label

log = structlog.get_logger(__name__)

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0
_PATIENCE = 5.0
"""Seconds that the very first start on a node waits for the API server."""


class NodeLabel:
    """Keeps the label's value in the state folder, where the settings are chosen by it.

    While the API server cannot be asked, the value that was read last counts.
    """

    def __init__(
        self, settings: Settings, *, lane: Lane, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """Call *changed* when the label has another value; it is written down on *lane*."""
        self._settings = settings
        self._lane = lane
        self._clock = clock
        self._changed = changed
        self.problem = ""
        """Why the label cannot be read; empty: it is followed."""

    async def run(self) -> None:
        """Follow the label until cancelled."""
        pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
        while True:
            began = self._clock.monotonic()
            try:
                await self._follow()
            except (ApiServerError, LaneStuckError, OSError) as error:
                self._report(str(error))
            if self._clock.monotonic() - began >= _LAST_PAUSE:
                pauses = backoff(_FIRST_PAUSE, _LAST_PAUSE)
            await self._clock.sleep(next(pauses))

    async def _follow(self) -> None:
        """Follow the label until the server ends the watch, which is normal after some minutes."""
        access, name = _place(self._settings)
        server = ApiServer(access, name="node on API server", clock=self._clock)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(server.close)
            node = NodeOnServer(server, access, node=name)
            labels, version = await node.read()
            await self._take(labels)
            async for labels in node.follow(version, begun=lambda: self._report("")):
                await self._take(labels)

    async def _take(self, labels: Mapping[str, str]) -> None:
        state, value = self._settings.state_dir, label_in(self._settings.named, labels)
        if await self._lane.run(partial(_remember_other, state, value)):
            log.info("node label changed", value=value, labels=list(self._settings.named.labels))
            self._changed()

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning(
                "cannot read the node's label",
                reason=problem,
                next="the value that was read last names the configuration",
            )
        elif self.problem and not problem:
            log.info("node label can be read again")
        self.problem = problem


def _remember_other(state_dir: str, value: str) -> bool:
    """Write the label's value down; tell whether it was another before."""
    try:
        if value == remembered_label(state_dir):
            return False
    except SettingsError:  # what cannot be read is written anew
        pass
    remember_label(state_dir, value)
    return True


def first_label(settings: Settings) -> None:
    """Read the label before the first start on a node, so that it begins with the right document.

    Where the server does not answer in time, it begins as a node without the label.
    """
    try:
        labels = labels_now(*_place(settings), timeout=_PATIENCE)
        remember_label(settings.state_dir, label_in(settings.named, labels))
    except (ApiServerError, OSError):  # `NodeLabel` tries again, and tells
        return


def _place(settings: Settings) -> tuple[Access, str]:
    access = in_cluster(os.environ, Path(settings.dra.service_account))
    return access, node_name(settings.dra.node_name, os.environ)
