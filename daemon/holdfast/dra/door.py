"""What the parts of DRA ask of each other and of the daemon, about claims."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.model.dra.claims import AllocatedClaim, PrepareAnswer
from holdfast.model.dra.outcomes import PrepareOutcome, UnprepareOutcome
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid


class Door(Protocol):
    """Answers kubelet's two calls, each with an entry for every claim that it was asked about.

    Neither raises for what claims, devices or the API server do: kubelet shows the texts.
    """

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareAnswer]:
        """Return once each claim may be used, or must wait longer; within 40 s."""

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, str]:
        """Return why each claim is not over yet, empty where it is; within 40 s."""


class ClaimReader(Protocol):
    """Reads claims from the API server."""

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return the claim of that name, with any uid.

        Raises ObjectGoneError where there is none, ApiServerError where that cannot be found out;
        never waits for longer than 5 s.
        """


class KubeletRecord(Protocol):
    """Kubelet's own record of claims, which it writes before it calls."""

    def users(self, claim: ClaimUid) -> frozenset[PodUid]:
        """Return the pods that it had for *claim* when it was last read; empty: not known."""

    def joined_lately(self, claim: ClaimUid) -> bool:
        """Tell whether it has had one of them only for a moment, beside others."""

    async def catch_up(self) -> None:
        """Read it, and take over what it has and the ledger has not; what fails is told."""


class ClaimObserver(Protocol):
    """Hears how kubelet's calls about claims ended."""

    def prepared(self, outcome: PrepareOutcome, seconds: float) -> None:
        """Hear how one claim's Prepare ended, after so many seconds."""

    def unprepared(self, outcome: UnprepareOutcome, seconds: float) -> None:
        """Hear how one claim's Unprepare ended, after so many seconds."""
