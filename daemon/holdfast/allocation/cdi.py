"""Keeps the CDI spec files true, so that names handed over long ago lead to the right devices."""

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.cdi import SpecFolder
from holdfast.model.cdi import Published, explained, spec_files
from holdfast.model.devices import Inventory
from holdfast.runtime.lane import Lane

log = structlog.get_logger(__name__)


class CdiSpecs:
    """Writes the specs of an inventory; `published` is what a runtime finds in them.

    A spec that cannot be written stops nothing: `published` says why, new containers are given
    their nodes by path, and those that were promised names wait at the gate.
    """

    def __init__(self, folder: SpecFolder, *, lane: Lane, wanted: Callable[[], bool]) -> None:
        """Write to *folder* on *lane*, and only while *wanted*: else the folder is not ours."""
        self._folder = folder
        self._lane = lane
        self._wanted = wanted
        self.published = Published()

    async def publish(self, inventory: Inventory) -> None:
        """Let the files say what *inventory* does. Never raises for what the folder does."""
        if not self._wanted():
            self.published = Published()
            return
        try:
            changed, rivals = await self._lane.run(partial(self._write, inventory))
        except (HostError, LaneStuckError) as error:
            # What is on disk may be old: nobody may count on it.
            self._publish(Published(problem=str(error)))
            return
        if changed:
            log.info("CDI specs written", files=changed)
        self._publish(explained(inventory, rivals))

    def _write(self, inventory: Inventory) -> tuple[tuple[str, ...], Mapping[str, str]]:
        changed = self._folder.hold(spec_files(inventory))
        rivals = self._folder.rivals(inventory.resources)
        return changed, {name: str(path) for name, path in rivals.items()}

    def _publish(self, found: Published) -> None:
        if found.problem and found.problem != self.published.problem:
            log.warning("devices cannot be handed over by name", reason=found.problem)
        self.published = found
