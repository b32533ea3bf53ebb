"""Keeps the CDI spec files true, so that names handed over long ago lead to the right devices."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
from msgspec import Struct, field

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.files.specfolder import SpecFolder
from holdfast.model.devices import Inventory
from holdfast.model.gate.cdi import PublishedSpecs, explained, spec_files
from holdfast.model.gate.promise import names_of_ours
from holdfast.model.kubelet import KubeletView
from holdfast.model.node.readiness import ReadinessCheck, check
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched

log = structlog.get_logger(__name__)


class SpecState(Struct, frozen=True, kw_only=True):
    """What became of spec files.

    `rivals` are names that files of others explain too, each with such a file. `problem` says why
    the files may be old: nobody may count on them then.
    """

    rivals: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


class SpecWriter:
    """Brings spec files to one folder, on a lane. What fails is told, never raised."""

    def __init__(self, folder: Path, prefix: str, joint: str, *, lane: Lane) -> None:
        """Write to *folder* on *lane* files whose names are *prefix*, *joint* and an end."""
        self._folder = SpecFolder(folder, prefix=prefix, joint=joint)
        self._lane = lane

    async def write(
        self, make: Callable[[], Mapping[str, str]], kinds: Collection[str]
    ) -> SpecState:
        """Let our files be what *make* returns on the lane, by the end of their names.

        The rivals of names of *kinds* are looked for. *make* may raise HostError.
        """
        try:
            changed, rivals = await self._lane.run(partial(self._hold, make, kinds))
        except (HostError, LaneStuckError) as error:
            return SpecState(problem=str(error))
        except OSError as error:  # a file system that fails under us
            return SpecState(problem=f"cannot make CDI specs: {error}")
        if changed:
            log.info("CDI specs written", files=changed)
        return SpecState(rivals=rivals)

    async def has_files(self) -> bool:
        """Tell whether our files are there; no where the folder cannot be read."""
        with suppress(HostError, LaneStuckError):
            return bool(await self._lane.run(self._folder.names))
        return False

    def _hold(
        self, make: Callable[[], Mapping[str, str]], kinds: Collection[str]
    ) -> tuple[tuple[str, ...], Mapping[str, str]]:
        changed = self._folder.hold(make())
        return changed, {name: str(path) for name, path in self._folder.rivals(kinds).items()}


class CdiSpecs(Struct, kw_only=True):
    """Writes the specs of an inventory; `published` is what a runtime finds in them.

    A spec that cannot be written stops nothing: `published` says why, new containers are given
    their nodes by path, and those that were promised names wait at the gate.

    They are written by `writer` where containers are given devices `by_name`. Or where pods in
    `view` were promised names of what is in the inventory: they need them also where new ones get
    their nodes by path. Else the folder is not ours.
    """

    writer: SpecWriter
    by_name: bool
    view: Watched[KubeletView]
    published: PublishedSpecs = PublishedSpecs()
    _problem: Problem = field(default_factory=lambda: Problem(log, "cannot publish CDI specs"))

    def checks(self) -> Iterator[ReadinessCheck]:
        """Yield whether the specs are written."""
        yield check("CDI specs", self.published.problem)

    async def publish(self, inventory: Inventory) -> None:
        """Let the files say what *inventory* does. Never raises for what the folder does."""
        if not (self.by_name or self._promised(inventory)):
            self._publish(PublishedSpecs())
            return
        written = await self.writer.write(partial(spec_files, inventory), inventory.resources)
        if written.problem:
            self._publish(PublishedSpecs(problem=written.problem))
        else:
            self._publish(explained(inventory, written.rivals))

    def _promised(self, inventory: Inventory) -> bool:
        return any(
            entry.resource in inventory.resources and names_of_ours(entry)
            for entry in self.view.value.entries
        )

    def _publish(self, found: PublishedSpecs) -> None:
        self._problem.set(found.problem)
        self.published = found
