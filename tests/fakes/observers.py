"""Observers of what happens: one that does nothing, and one that notes what it hears."""

from holdfast.allocation.entry import EntryOutcome
from holdfast.model.dra.outcomes import ApiOutcome, PrepareOutcome, UnprepareOutcome


class Unobserved:
    """Hears of everything, and does nothing."""

    def reclaimed(self, step: str, outcome: str) -> None: ...

    def happened(self, kind: str, code: str, clears: str) -> None: ...

    def called(self, resource: str, call: str, code: str, seconds: float) -> None: ...

    def passed_gate(self, outcome: EntryOutcome, seconds: float) -> None: ...

    def prepared(self, outcome: PrepareOutcome, seconds: float) -> None: ...

    def unprepared(self, outcome: UnprepareOutcome, seconds: float) -> None: ...

    def asked_server(self, outcome: ApiOutcome) -> None: ...

    def wrote_slice(self, written: bool) -> None: ...

    def wrote_notice(self, about: str, written: bool) -> None: ...


class Observed(Unobserved):
    """Notes how requests to the API server ended, and what notices were tried."""

    def __init__(self) -> None:
        self.ends: list[ApiOutcome] = []
        self.notices: list[tuple[str, bool]] = []

    def asked_server(self, outcome: ApiOutcome) -> None:
        self.ends.append(outcome)

    def wrote_notice(self, about: str, written: bool) -> None:
        self.notices.append((about, written))
