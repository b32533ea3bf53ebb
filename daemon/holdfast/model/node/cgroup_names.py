"""Kubelet's names of cgroups: from a path to the pod and container it is for, and back."""

import re
from collections.abc import Iterator

from holdfast.model.ids import PodUid

_QOS = ("", "burstable", "besteffort")
"""Guaranteed pods have no level of their own."""

_ROOT = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")
_SYSTEMD_POD = re.compile(
    r"(?:.+-)?kubepods(?:-(?:burstable|besteffort))?-pod(?P<uid>[^/]+)\.slice"
)
_CGROUPFS_POD = re.compile(r"pod(?P<uid>[^/]+)")
_RELATIVE_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})"
)
_CONTAINER = re.compile(r"(?:.*-)?(?P<id>[0-9a-f]{12,64})(?:\.scope)?")
_CONTAINER_ALONE = re.compile(r"(?:.*-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")


def pod_of(path: str) -> tuple[PodUid | None, str | None]:
    """Return the pod and the container of the cgroup *path*, each None if unknown.

    The outermost pod counts: a cluster inside a pod has pods of its own. A path outside kubelet's
    tree names no pod, though it may name a container. *path* may begin with ``/../..``, as seen
    from a private cgroup namespace; there only what looks like a UID is taken for one.
    """
    parts = [part for part in path.split("/") if part]
    for index, part in enumerate(parts):
        uid = _uid(parts[:index], part)
        if uid is not None:
            below = parts[index + 1 :]
            match = _CONTAINER.fullmatch(below[0]) if below else None
            return uid, match["id"] if match else None
    for part in reversed(parts):
        match = _CONTAINER_ALONE.fullmatch(part)
        if match:
            return None, match["id"]
    return None, None


def is_root(name: str) -> bool:
    """Return whether *name* is one of kubelet's names for the cgroup above all pods."""
    return _ROOT.fullmatch(name) is not None


def pod_paths(root: str, uid: PodUid) -> Iterator[str]:
    """Yield where the cgroup of pod *uid* can be, relative to the folder above *root*.

    *root* is the name of kubelet's cgroup above all pods: ``kubepods``, or for systemd
    ``kubepods.slice``, which nested clusters prefix.
    """
    if not root.endswith(".slice"):
        for qos in _QOS:
            yield "/".join(part for part in (root, qos, f"pod{uid}") if part)
        return
    stem = root.removesuffix(".slice")
    for qos in _QOS:
        level = f"{stem}-{qos}" if qos else stem
        pod = f"{level}-pod{uid.replace('-', '_')}.slice"
        yield f"{root}/{level}.slice/{pod}" if qos else f"{root}/{pod}"


def _uid(above: list[str], part: str) -> PodUid | None:
    match = _SYSTEMD_POD.fullmatch(part)
    if match:
        return PodUid(match["uid"].replace("_", "-"))
    match = _CGROUPFS_POD.fullmatch(part)
    if match and _in_cgroupfs_tree(above):
        return PodUid(match["uid"])
    match = _RELATIVE_POD.fullmatch(part)
    if match and ".." in above and all(name in {"..", *_QOS} for name in above):
        return PodUid(match["uid"])
    return None


def _in_cgroupfs_tree(above: list[str]) -> bool:
    if above and above[-1] in _QOS:
        above = above[:-1]
    return bool(above) and above[-1].endswith("kubepods") and is_root(above[-1])
