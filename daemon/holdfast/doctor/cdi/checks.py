"""Checks the folder of CDI specs, where devices are handed over by name, and what lies in it."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.node import Node
from holdfast.errors import HostError
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.files.kernelfile import device_number, list_names, read_bytes
from holdfast.settings import Settings

_AREA = Area("cdi")
_USUAL = frozenset({"/etc/cdi", "/run/cdi", "/var/run/cdi"})
"""The folders that runtimes read unless they are told others."""
_CONTAINERS_OWN = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def cdi_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the CDI specs."""
    wanted = strategies(node.settings)
    if not wanted:
        yield _AREA.ok(check="strategy", reason="no devices are handed over by CDI name")
        return
    yield _AREA.ok(check="strategy", reason=f"by CDI name are handed over: {', '.join(wanted)}")
    folder = node.path(node.settings.cdi.spec_dir)
    problem = _missing(folder)
    if problem:
        yield _AREA.fail(
            check="spec-folder",
            reason=problem,
            remedy="make it on the host, where the container runtime reads it, and mount it where "
            "the daemon runs in a container; or set cdi.specDir",
        )
        return
    yield _folder(node, folder)
    if node.settings.cdi.spec_dir not in _USUAL:
        yield _AREA.warn(
            check="spec-folder",
            reason=f"{node.settings.cdi.spec_dir} is none of the folders that runtimes read by "
            "themselves",
            remedy="name it in the runtime's cdi_spec_dirs, or set cdi.specDir: /var/run/cdi",
        )
    yield from _rivals(node, folder)
    yield from _ours(node, folder)


def strategies(settings: Settings) -> tuple[str, ...]:
    """Return what *settings* want handed over by CDI name."""
    vfio = settings.tpu.enabled or settings.pools
    found = ["TPUs and pools"] if settings.device_list_strategy == "cdi" and vfio else []
    if settings.gpu.enabled and any("cdi" in each for each in settings.gpu.device_list_strategy):
        found.append("GPUs")
    return tuple(found)


def _missing(folder: Path) -> str:
    try:
        found = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{folder} is not there, and holdfast does not make it: no spec is written"
    except PermissionError:
        raise
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror}"
    return "" if stat.S_ISDIR(found.st_mode) else f"{folder} is not a folder"


def _folder(node: Node, folder: Path) -> Finding:
    mount = node.mount(folder)
    if mount is not None and mount.kind in _CONTAINERS_OWN:
        return _AREA.fail(
            check="spec-folder",
            reason=f"{folder} is on {mount.kind}: it is a container's own, which no runtime reads",
            remedy="mount the host's folder there",
        )
    if (mount is not None and not mount.writable) or (
        node.live and os.geteuid() == 0 and not os.access(folder, os.W_OK)
    ):
        return _AREA.fail(
            check="spec-folder",
            reason=f"{folder} cannot be written to",
            remedy="mount it writable",
        )
    if mount is not None and mount.kind not in _IN_MEMORY:
        return _AREA.warn(
            check="spec-folder",
            reason=f"{folder} is on {mount.kind} and outlives a reboot: until the daemon runs "
            "again, names lead to the numbers of the boot before",
            remedy="set cdi.specDir: /var/run/cdi, which is in memory, and remove holdfast's files",
        )
    return _AREA.ok(check="spec-folder", reason=f"{folder} is there")


def _rivals(node: Node, folder: Path) -> Iterator[Finding]:
    kinds = {pool.resource_name for pool in node.settings.pools} | {node.settings.tpu.resource_name}
    try:
        rivals = SpecFolder(folder, prefix=node.settings.kubelet.socket_prefix).rivals(kinds)
    except HostError as error:
        yield _AREA.warn(check="specs", reason=str(error), remedy="run the doctor as root")
        return
    for path in sorted(set(rivals.values())):
        names = ", ".join(sorted(name for name, file in rivals.items() if file == path))
        yield _AREA.fail(
            check="specs",
            reason=f"{path} explains {names} as well as holdfast does: runtimes then take neither",
            remedy=f"remove {path}, and what wrote it",
        )


def _ours(node: Node, folder: Path) -> Iterator[Finding]:
    prefix = f"{node.settings.kubelet.socket_prefix}_"
    ours = [
        folder / name
        for name in list_names(folder)
        if name.startswith(prefix) and name.endswith((".json", ".yaml"))
    ]
    wrong = 0
    for path in ours:
        for problem in _wrong(node, path):
            wrong += 1
            yield _AREA.fail(
                check="own-specs",
                reason=f"{path} {problem}",
                remedy="start the daemon, or restart it: it writes its specs anew",
            )
    if not wrong:
        names = ", ".join(path.name for path in ours) or "none yet"
        yield _AREA.ok(check="own-specs", reason=f"holdfast's specs in {folder}: {names}")


def _wrong(node: Node, path: Path) -> Iterator[str]:
    """Yield each way in which a spec of ours is not true of the node."""
    try:
        spec = json.loads(read_bytes(path) or b"")
        devices = [(each["name"], each["containerEdits"]) for each in spec["devices"]]
        nodes = [(name, each) for name, edits in devices for each in edits.get("deviceNodes") or ()]
        for name, each in nodes:
            if wrong := _moved(node, name, each):
                yield wrong
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield "makes no sense: it was not written whole, or by somebody else"


def _moved(node: Node, name: str, each: dict[str, Any]) -> str:
    if "major" not in each:
        return ""
    said = f"{each['major']}:{each['minor']}"
    path = each.get("hostPath", each["path"])
    rdev = device_number(node.host.node(path)) if path.startswith("/dev/") else None
    if rdev is None:  # a container, or a copy, need not have it
        return ""
    found = f"{os.major(rdev)}:{os.minor(rdev)}"
    return "" if said == found else f"gives {path} of {name} as {said}, but it is {found}"
