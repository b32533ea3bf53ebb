"""Where the ledger and kubelet's own record of claims disagree."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from holdfast.model.book.book import Book, ClaimRecord
from holdfast.model.book.claims import ClaimPhase, phase_of
from holdfast.model.book.drift import Disagreement, Drift
from holdfast.model.cards import whole
from holdfast.model.ids import BootId, ClaimUid, DeviceName
from holdfast.model.kubelet import ClaimEntry, RecordedDevice


class ClaimDriftFacts(Struct, frozen=True, kw_only=True):
    """What the ledger and kubelet say of claims.

    `entries` is kubelet's record as it was read at `read_at`, in seconds since `boot`; None where
    it cannot be read. `devices` are those that the scheduler knows, by their names there; `driver`
    and `pool` are ours.
    """

    book: Book
    boot: BootId
    driver: str
    pool: str
    entries: Sequence[ClaimEntry] | None = None
    read_at: float = 0.0
    devices: Mapping[str, tuple[DeviceName, ...]] = field(default_factory=dict)


_KINDS = frozenset(
    {Drift.CLAIM_NOT_RECORDED.value, Drift.CLAIM_UNKNOWN.value, Drift.CLAIM_OTHER_DEVICES.value}
)


def claim_disagreements(facts: ClaimDriftFacts) -> tuple[Disagreement, ...]:
    """Return every disagreement, in a stable order; none where kubelet's record cannot be read."""
    if facts.entries is None:
        return ()
    recorded = {each.claim.uid: each for each in facts.entries}
    found = [*_not_recorded(facts, recorded), *_unknown(facts), *_other_devices(facts, recorded)]
    return tuple(sorted(found))


def claims_undecided(each: Disagreement, facts: ClaimDriftFacts | None) -> bool:
    """Return whether *facts* neither confirm a disagreement nor show that it has ended."""
    return each.kind in _KINDS and facts is not None and facts.entries is None


def _not_recorded(
    facts: ClaimDriftFacts, recorded: Mapping[ClaimUid, ClaimEntry]
) -> Iterator[Disagreement]:
    """Yield claims that are prepared and that kubelet will never unprepare."""
    for record in _prepared(facts):
        if record.ref.uid not in recorded:
            yield Disagreement(
                kind=Drift.CLAIM_NOT_RECORDED.value,
                subject=f"claim {record.ref}",
                one=f"the ledger has {_names(_had(facts, record))} prepared for it",
                other="kubelet's record of claims does not have it",
                advice=(
                    "kubelet will not unprepare it: delete its pods and the claim; it is over once "
                    "the API server has no such claim and none of its pods has a cgroup"
                ),
            )


def _unknown(facts: ClaimDriftFacts) -> Iterator[Disagreement]:
    for entry in facts.entries or ():
        labels = {each.name for each in _ours(entry, facts)}
        if labels and entry.pods and entry.claim.uid not in facts.book.claims:
            yield Disagreement(
                kind=Drift.CLAIM_UNKNOWN.value,
                subject=f"claim {entry.claim}",
                one=f"kubelet's record has {', '.join(sorted(labels))} prepared for it",
                other="the ledger does not have it",
                advice="its devices may be given to another claim: delete its pods",
            )


def _other_devices(
    facts: ClaimDriftFacts, recorded: Mapping[ClaimUid, ClaimEntry]
) -> Iterator[Disagreement]:
    for record in _prepared(facts):
        entry = recorded.get(record.ref.uid)
        devices = _ours(entry, facts) if entry is not None else frozenset()
        # Of a device that has left the node nothing can be compared.
        if not devices or not all(each.name in facts.devices for each in devices):
            continue
        # Kubelet does not know which replica a share is.
        named = [frozenset(map(whole, facts.devices[each.name])) for each in devices]
        theirs = sorted(name for names in named for name in names)
        ours = sorted(map(whole, _had(facts, record)))
        if theirs != ours:
            yield Disagreement(
                kind=Drift.CLAIM_OTHER_DEVICES.value,
                subject=f"claim {record.ref}",
                one=f"the ledger has {_names(ours)} prepared for it",
                other=f"kubelet's record has {_names(theirs)}",
                advice="delete its pods; it is prepared again for the next ones",
            )


def _prepared(facts: ClaimDriftFacts) -> Iterator[ClaimRecord]:
    """Yield the claims that were prepared before kubelet's record was read."""
    for record in facts.book.claims.values():
        if phase_of(facts.book, record) is ClaimPhase.PREPARED and all(
            each.boot != facts.boot or each.started_at < facts.read_at
            for each in facts.book.holdings.of_claim(record.ref.uid)
        ):
            yield record


def _ours(entry: ClaimEntry, facts: ClaimDriftFacts) -> frozenset[RecordedDevice]:
    """Return our devices that kubelet has recorded for the claim."""
    devices = entry.devices.get(facts.driver, ())
    return frozenset(each for each in devices if each.pool == facts.pool)


def _had(facts: ClaimDriftFacts, record: ClaimRecord) -> frozenset[DeviceName]:
    mine = facts.book.holdings.of_claim(record.ref.uid)
    return frozenset(name for each in mine for name, _ in each.names()) | record.admin.keys()


def _names(devices: Iterable[DeviceName]) -> str:
    return ", ".join(sorted(str(each) for each in devices))
