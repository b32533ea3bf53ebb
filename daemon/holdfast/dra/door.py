"""What the parts of DRA ask of each other: claims are prepared and unprepared, and looked up."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.model.dra.claims import AllocatedClaim, Prepared
from holdfast.model.ids import ClaimRef, ClaimUid


class Door(Protocol):
    """Answers kubelet's two calls, each with an entry for every claim that it was asked about.

    Neither raises for what claims, devices or the API server do: kubelet shows the texts.
    """

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, Prepared]:
        """Return once each claim may be used, or must wait longer; within 40 s."""
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, str]:
        """Return why each claim is not over yet, empty where it is; within 40 s."""
        ...


class ClaimReader(Protocol):
    """Reads claims from the API server."""

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return the claim of that name, with any uid.

        Raises ObjectGoneError where there is none, ApiServerError where that cannot be found out;
        never waits for longer than 5 s.
        """
        ...
