"""Keeps the node labels up to date: what the adapters know about their hardware, in one file."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from holdfast.discovery.source import Sources
from holdfast.errors import HoldfastError
from holdfast.host.files.specfolder import FeatureFile
from holdfast.model.devices import Inventory
from holdfast.model.node.labels import feature_file
from holdfast.model.node.readiness import ReadinessCheck, check
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane, Lanes
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched
from holdfast.settings.sections import LabelsSettings

T = TypeVar("T")

log = structlog.get_logger(__name__)

_LOOK = 30.0
"""Seconds between looks without cause: somebody may have changed the file, or its disk be full."""
_SETTLES = 30.0
"""Seconds after the daemon's start in which hardware may still be found, such as GPUs. What the
file says of it stays meanwhile: a label that goes for a moment ends pods of DaemonSets."""
_GOOD_FOR = 24 * 3600.0
"""Seconds after which node-feature-discovery drops the labels if no daemon writes them again."""
_WRITTEN, _REMOVED = "node labels written", "node labels removed"
_DEADLINE = 5.0


@dataclass(eq=False)
class LabelWatch:
    """Writes the labels of each inventory, or removes the file where none are wanted.

    Nothing depends on it: what fails is a readiness check, and is tried again. It writes the labels
    that `sources` have for each `inventory`, on a lane of its own.
    """

    settings: Watched[LabelsSettings]
    sources: Sources
    inventory: Watched[Inventory]
    lanes: Lanes
    clock: Clock

    def __post_init__(self) -> None:
        self._file = FeatureFile(Path(self.settings.value.folder))
        self._former: list[FeatureFile] = []
        """Files in folders of former settings, until they are removed."""
        self._lane: Lane | None = None
        self._began = self.clock.monotonic()
        self._settled = False
        self._good_until = 0.0
        self._problem = Problem(log, "cannot write node labels")
        self._concerned = False
        """Whether labels are wanted, or those that were cannot be removed."""

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether the labels are written, where they are wanted."""
        if self._concerned:
            yield check("node labels", self._problem.text)

    async def run(self) -> None:
        """Keep the file until cancelled."""
        while True:
            wanted = self.settings.value.enabled
            changes = Changes([self.settings, self.inventory] if wanted else [self.settings])
            await self.refresh()
            await changes.wait(_LOOK if self._concerned else math.inf)

    async def refresh(self) -> None:
        """Let the file say what is known now. Never raises for what its folder does."""
        settings = self.settings.value
        file = FeatureFile(Path(settings.folder))
        if file.path != self._file.path:
            left = [*self._former, self._file]
            self._file, self._former = file, [each for each in left if each.path != file.path]
        with self._problem.noting(HoldfastError):
            if settings.enabled:
                await self._write()
            else:
                await self._remove(self._file)
            for each in list(self._former):
                await self._remove(each)
                self._former.remove(each)
        self._concerned = settings.enabled or bool(self._problem.text)

    async def _write(self) -> None:
        now, inventory = self.clock.wall(), self.inventory.value
        old = self.clock.monotonic() - self._began >= _SETTLES
        self._settled = self._settled or old or not inventory.unseen
        # Both the time that has passed and a clock that was set make it wrong.
        if abs(now + _GOOD_FOR - self._good_until) > _GOOD_FOR / 2:
            self._good_until = now + _GOOD_FOR
        hold = partial(self._hold, self._file, inventory, self._good_until)
        if changed := await self._on_lane(hold):
            log.info(changed, file=str(self._file.path))

    async def _remove(self, file: FeatureFile) -> None:
        if file.exists and await self._on_lane(file.remove):
            log.info(_REMOVED, file=str(file.path))

    def _hold(self, file: FeatureFile, inventory: Inventory, until: float) -> str:
        """Return what was done to the file, empty for nothing; on the lane."""
        if not self._settled and file.exists:
            return ""
        labels = self.sources.labels(inventory)
        if not labels:
            return _REMOVED if file.remove() else ""
        return _WRITTEN if file.hold(feature_file(labels, until=until)) else ""

    async def _on_lane(self, call: Callable[[], T]) -> T:
        # Its own: a disk that hangs must not hold up what pods depend on.
        if self._lane is None:
            self._lane = self.lanes.open_lane("labels", Watched(_DEADLINE))
        return await self._lane.run(call)
