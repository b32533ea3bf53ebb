"""How a start at the gate can end: a closed set, for the gate and for metrics."""

from enum import Enum


class Outcome(Enum):
    """How a start at the gate ended."""

    PASSED = "passed"
    UNVERIFIED = "unverified"
    HELD = "held"
    IN_USE = "in-use"
    SEVERAL_PODS = "several-pods"
    GONE = "gone"
    HARDWARE = "hardware"
    PROMISE = "promise"
    SPEC = "spec"
    LEDGER = "ledger"
    STARTING = "starting"
    WITHHELD = "withheld"


PASSES = frozenset({Outcome.PASSED, Outcome.UNVERIFIED})
"""The outcomes that are no refusal."""
