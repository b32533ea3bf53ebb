"""The CDI spec files of claims: there while a claim is prepared, unless they would mislead."""

from collections.abc import Mapping, Sequence
from functools import partial

import structlog
from msgspec import Struct, field

from holdfast.allocation.allocator import moved_nodes
from holdfast.errors import HostError, LaneStuckError
from holdfast.host.files.kernelfile import device_number
from holdfast.host.files.specfolder import SpecFolder
from holdfast.host.root import HostRoot
from holdfast.model.devices import Device, DeviceKind
from holdfast.model.dra.handover import Grants, Nodes, file_name, leads_to_others, nodes_in, spec
from holdfast.model.ids import ClaimUid, HardwareKey
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem

log = structlog.get_logger(__name__)


class SpecFacts(Struct, frozen=True):
    """What decides on the spec of a claim: the keys of what it has, none if that is not known.

    And what the spec has to have: `grants`, empty where none is to be written, of `devices`.
    """

    keys: frozenset[HardwareKey]
    grants: Grants = {}
    devices: Sequence[Device] = ()


class ClaimSpecs(Struct, frozen=True):
    """One file for each claim, written and removed in order on a lane.

    They are in `folder`, which is for claims alone; the nodes are below `root`.
    """

    folder: SpecFolder
    driver: str
    root: HostRoot
    lane: Lane
    _problem: Problem = field(
        default_factory=lambda: Problem(log, "cannot keep CDI specs of claims up to date")
    )

    async def write(self, claim: ClaimUid, grants: Grants, devices: Sequence[Device]) -> None:
        """Let the file of *claim* be on disk, as it is to be for *grants*.

        Raises LaneStuckError, or HostError, also where a node is not that of *devices* any more.
        """
        changed = await self.lane.run(partial(self._write, claim, grants, devices))
        if changed:
            log.info("CDI spec of a claim written", claim=claim, files=changed)

    async def remove(self, claim: ClaimUid) -> None:
        """Remove the file of *claim*; what fails is tried again by `tidy`."""
        with self._problem.noting(HostError, LaneStuckError):
            await self.lane.run(partial(self.folder.drop, file_name(claim)))

    async def tidy(self, claims: Mapping[ClaimUid, SpecFacts], nodes: Nodes) -> None:
        """Remove the files of all claims but *claims*; what fails is told, never raised.

        And each that has one of *nodes* which is hardware that its claim has nothing of. Write what
        has to be written where there is no file, or one with other nodes than it is to have now.
        """
        with self._problem.noting(HostError, LaneStuckError):
            written, failure = await self.lane.run(partial(self._tidy, claims, nodes))
            if written:
                log.info("CDI specs of claims written again", files=written)
            if failure is not None:
                raise failure

    def _write(
        self, claim: ClaimUid, grants: Grants, devices: Sequence[Device], *, again: bool = False
    ) -> list[str]:
        paths = {path for grant in grants.values() for path in grant.nodes}
        found = {path: device_number(self.root.node(path)) for path in paths}
        numbers = {path: number for path, number in found.items() if number is not None}
        text = spec(self.driver, claim, grants, numbers)
        had = self.folder.content(file_name(claim)) if again else b""
        if had and nodes_in(had) == nodes_in(text.encode()):
            return []
        for device, node, number in moved_nodes(devices, self.root):
            # Not every node of a driver can be seen from here.
            seen = number is not None or device.kind is DeviceKind.VFIO
            if seen and node.path in paths:
                raise HostError(
                    f"cannot write the CDI spec of claim {claim}: {node.path} is not {device.name} "
                    "any more; holdfast looks for it again"
                )
        try:
            return self.folder.add({file_name(claim): text})
        except OSError as error:  # a file system that fails under us
            raise HostError(f"cannot write the CDI spec of claim {claim}: {error}") from error

    def _tidy(
        self, claims: Mapping[ClaimUid, SpecFacts], nodes: Nodes
    ) -> tuple[list[str], HostError | None]:
        """Do so, on the lane; return what was written, and why something could not be."""
        wanted = {file_name(claim): each.keys for claim, each in claims.items()}
        names = self.folder.names()
        misleading = [
            name
            for name in names
            if (keys := wanted.get(name))
            and leads_to_others(nodes_in(self.folder.content(name)), keys, nodes)
        ]
        for name in (*misleading, *(each for each in names if each not in wanted)):
            self.folder.drop(name)
        if misleading:
            log.warning(
                "CDI specs of claims removed",
                files=misleading,
                reason="their nodes are other devices now",
                next="they are written again when the claims' own devices are found; if they are "
                "not, delete the pods",
            )
        written: list[str] = []
        failure: HostError | None = None
        for claim, each in claims.items():
            if each.grants:
                try:
                    written += self._write(claim, each.grants, each.devices, again=True)
                except HostError as error:  # that says nothing of other claims
                    failure = error
        return written, failure
