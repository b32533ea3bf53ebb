"""Facts of an orphan that may be ended, for tests that change one of them."""

from typing import Any

from msgspec.structs import replace

from fakes.books import BOOT, INIT, KUBELET, NOW, X
from holdfast.model.book.book import PodRecord
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import EndFacts, Member, RuntimeEvidence

ORPHAN = Member(
    process=ProcessId(4242, 99),
    command="python",
    parent=INIT,
    started_at=NOW - 1000,
    in_pod=X,
    inode=7,
)
LET_GO = PodRecord(
    uid=X, boot=BOOT, cgroup="/kubepods/podx", inode=7, counted_by=KUBELET, let_go_at=NOW - 60
)
SATISFIED = EndFacts(
    terminate=True,
    scan_complete=True,
    member=ORPHAN,
    granted_to=X,
    pod=LET_GO,
    let_go_at=NOW - 60,
    kubelet=KUBELET,
    members=(ORPHAN,),
    runtime=RuntimeEvidence(gone_at=NOW - 60),
    now=NOW,
    own_pid=999,
    let_go_grace=30.0,
    orphan_grace=30.0,
    sandbox_grace=900.0,
)
"""What every guard is satisfied with."""


def otherwise(facts: EndFacts, **changes: Any) -> EndFacts:
    """Return *facts* with *changes*, also of what the process and the runtime's evidence have."""
    for part in ("member", "runtime"):
        before = getattr(facts, part)
        own = {name: changes.pop(name) for name in before.__struct_fields__ if name in changes}
        changes[part] = replace(before, **own)
    return replace(facts, **changes)
