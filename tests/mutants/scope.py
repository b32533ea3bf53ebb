"""Which files are changed, and which tests concern each of them."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOMS = ("model", "ledger", "allocation", "reclaim", "inuse", "kubelet")
"""The packages whose every line decides who has a device, or writes it down."""

_BESIDE = ("daemon/holdfast/settings/reloading.py", "daemon/holdfast/app/reload.py")
"""Files of other packages of which the same is so."""

SETTLED = (
    "daemon/holdfast/model/use/free.py",
    "daemon/holdfast/model/gate/gate.py",
    "daemon/holdfast/model/reclaim/ending.py",
    "daemon/holdfast/model/book/proof.py",
    "daemon/holdfast/model/book/queue.py",
    "daemon/holdfast/model/book/pods.py",
    "daemon/holdfast/model/book/standing.py",
    "daemon/holdfast/model/devicerules.py",
    "daemon/holdfast/model/dra/advertised.py",
    "daemon/holdfast/model/dra/claims.py",
    "daemon/holdfast/model/dra/handover.py",
    "daemon/holdfast/model/dra/outcomes.py",
    "daemon/holdfast/model/dra/passage.py",
    "daemon/holdfast/model/dra/resourceslice.py",
    "daemon/holdfast/model/dra/slices.py",
    "daemon/holdfast/model/dra/health.py",
    "daemon/holdfast/model/events.py",
    "daemon/holdfast/model/nvidia/sharing.py",
    "daemon/holdfast/model/cards.py",
    "daemon/holdfast/ledger/readonly.py",
    "daemon/holdfast/ledger/store.py",
    "daemon/holdfast/settings/reloading.py",
)
"""Files of which no change may survive: free means free, one holder, no wrong kill, and what the
scheduler and the cluster are told."""

# Tests that start the parts together, by what they go through; the quickest first.
_BY_ROOM = {
    "model": (
        "tests/integration/test_pods_one_after_another.py",
        "tests/integration/test_signals_hit_nobody_else.py",
    ),
    "ledger": (
        "tests/integration/test_ledger.py",
        "tests/integration/test_ledger_disk.py",
        "tests/integration/test_ledger_place.py",
        "tests/integration/test_ledger_documents.py",
        "tests/integration/test_ledger_on_a_node.py",
        "tests/integration/doctor/test_state.py",
    ),
    "allocation": (
        "tests/integration/test_waiting_in_line.py",
        "tests/integration/test_pods_one_after_another.py",
        "tests/integration/test_bad_input.py",
        "tests/integration/test_crashes_and_reboots.py",
    ),
    "reclaim": (
        "tests/integration/test_pods_one_after_another.py",
        "tests/integration/test_signals_hit_nobody_else.py",
        "tests/integration/test_reset.py",
        "tests/integration/test_hand_release_judged.py",
        "tests/integration/test_ends_judged_last.py",
        "tests/integration/test_leaks_judged_last.py",
        "tests/integration/test_release_by_hand.py",
    ),
    "inuse": (
        "tests/contract/test_one_memory.py",
        "tests/contract/test_device_use.py",
        "tests/contract/test_look.py",
        "tests/contract/test_gate.py",
    ),
    "kubelet": (
        "tests/integration/test_kubelet_side.py",
        "tests/integration/test_kubelet_reader.py",
        "tests/integration/test_plugin_calls.py",
    ),
    "app": ("tests/integration/test_reload.py",),
    "settings": ("tests/integration/test_reload.py",),
}
_KINDS = ("unit", "contract", "integration", "kills", "oneholder")


def files(repository: Path) -> list[str]:
    """Return the files that are changed, relative to *repository*."""
    found = [
        str(file.relative_to(repository))
        for room in ROOMS
        for file in sorted((repository / "daemon/holdfast" / room).rglob("*.py"))
        if file.name != "__init__.py"
    ]
    found += _BESIDE
    unknown = set(SETTLED) - set(found)
    if unknown:
        raise ValueError(f"there is no {', '.join(sorted(unknown))}")
    return found


def concerned_tests(file: str, repository: Path) -> list[str]:
    """Return the test files that concern *file*, the quickest to notice a change of it first.

    Unit tests that import it, the tests of its room, and then whatever else imports it.
    """
    path = Path(file)
    module = ".".join(path.with_suffix("").parts[1:])
    package, name = module.rsplit(".", 1)
    imports = re.compile(
        rf"^\s*(from {re.escape(module)} import|import {re.escape(module)}\b|"
        rf"from {re.escape(package)} import .*\b{name}\b)",
        re.MULTILINE,
    )
    direct = [
        test
        for test, text in _tests(repository).items()
        if package in text and imports.search(text)
    ]
    unit = [test for test in direct if test.startswith("tests/unit/")]
    return list(dict.fromkeys((*unit, *_BY_ROOM[path.parts[2]], *direct)))


@cache
def _tests(repository: Path) -> Mapping[str, str]:
    """Return the text of each test file, by its path relative to *repository*."""
    return {
        str(test.relative_to(repository)): test.read_text()
        for kind in _KINDS
        for test in sorted((repository / "tests" / kind).rglob("test_*.py"))
    }
