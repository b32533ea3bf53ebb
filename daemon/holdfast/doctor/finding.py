"""What a look at the node found: one line with its level, its reason and what to do."""

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How bad a finding is."""

    OK = "OK"
    WARN = "WARN"
    """Something works less well, or cannot be told from here."""
    FAIL = "FAIL"
    """Something that was asked for cannot work until it is mended."""


class Finding(Struct, frozen=True, kw_only=True):
    """One fact about the node, with what to do where it is not as it should be."""

    area: str
    """What it is about: `kubelet`, `vfio`, `nvidia`, `containerd`, `gvisor`, `memory`, ...."""
    check: str
    """The check's name, the same on every node and in every version: programs filter by it."""
    level: Level
    reason: str
    """What was seen, with the path or value it was seen in."""
    remedy: str = ""
    """What to do; never empty for WARN and FAIL."""
