"""Whether a node label can be one: as Kubernetes checks it, and node-feature-discovery."""

import re

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def told(text: str) -> dict[str, str]:
    """Return the labels that a file of node-feature-discovery has."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def refused(key: str, value: str) -> bool:
    """Tell whether the API server or node-feature-discovery would refuse it."""
    prefix, _, name = key.rpartition("/")
    return (
        _NAME.fullmatch(name) is None
        or _PREFIX.fullmatch(prefix) is None  # without one it gets node-feature-discovery's own
        or f".{prefix}".endswith(".kubernetes.io")
        or (value != "" and _NAME.fullmatch(value) is None)
    )
