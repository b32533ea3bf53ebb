"""The time of day may be set: nothing that decides reads it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_FOR_PEOPLE = {
    "app/watches/featurefile.py": "until when node labels are good, which is compared with that clock",
    "app/watches/drift.py": "since when a disagreement is told",
    "app/answers/readiness.py": "how long locks are where they are, in metrics",
    "app/watches/notices.py": "when an Event or the node's condition was written",
    "cli/commands.py": "since when changes of the history are shown",
    "cli/tables.py": "how old something is, in tables for people",
    "dra/healthserver.py": "when kubelet heard of a device, which compares it with its own clock",
    "cli/picture.py": "up to when a picture of the history goes",
    "dra/registration.py": "since when kubelet has registered the DRA driver",
    "kubelet/registration.py": "since when kubelet has registered us",
    "ledger/ledger.py": "when a move was made, in the history",
    "runtime/clock.py": "the clock itself",
    "telemetry/metrics.py": "when the daemon started",
    "vendors/nvidia/gpus.py": "the label nvidia.com/gfd.timestamp",
}


_READS = re.compile(r"wall|time\s*\.\s*time")
"""Found in each source that may read it: to parse all others would be in vain."""


def _reads_it(source: str) -> bool:
    return _READS.search(source) is not None and any(
        isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".wall", "time.time"))
        for node in ast.walk(ast.parse(source))
    )


def _readers(package: Path) -> Iterator[str]:
    for file in package.rglob("*.py"):
        if _reads_it(file.read_text()):
            yield str(file.relative_to(package))


def test_only_what_people_read_is_told_by_the_time_of_day(repository: Path) -> None:
    assert set(_readers(repository / "daemon/holdfast")) == set(_FOR_PEOPLE)
