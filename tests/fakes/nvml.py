"""A GPU node as NVML shows it: a stub library, without which a test is skipped."""

import os
from pathlib import Path

import pytest

from holdfast.errors import HostError
from simulated import nvml
from simulated.nvml import (
    ALL_EVENTS,
    CONTROL,
    GIB,
    XID,
    Card,
    Event,
    Node,
    Slice,
    cards,
    uuid,
    write,
)

__all__ = [
    "ALL_EVENTS",
    "CONTROL",
    "GIB",
    "XID",
    "Card",
    "Event",
    "Node",
    "Slice",
    "build",
    "cards",
    "uuid",
    "write",
]


def build(folder: Path, *, version: str = "") -> Path:
    """Build the stub, of the driver's *version* alone if one is given, and return the library."""
    try:
        nvml.compiler()
    except HostError as error:
        # On CI a machine is known to have all it takes: there a skip would hide a failure.
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return nvml.build(folder, version=version)
