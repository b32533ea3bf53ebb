"""Checks the folder of CDI specs, by which devices are handed over by name, and the specs in it."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.doctor.cdi.specs import handed_over_by_name
from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.node import IN_MEMORY, Node, unusable
from holdfast.errors import HostError
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.files.kernelfile import device_number, list_names, read_bytes

_STRATEGY = Check("cdi", "strategy")
_SPEC_FOLDER = Check("cdi", "spec-folder")
_SPECS = Check("cdi", "specs")
_OWN_SPECS = Check("cdi", "own-specs")
_USUAL = frozenset({"/etc/cdi", "/run/cdi", "/var/run/cdi"})
"""The folders that runtimes read by default."""


def cdi_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the CDI specs."""
    wanted = handed_over_by_name(node.settings)
    if not wanted:
        yield _STRATEGY.ok("no devices are handed over by CDI name")
        return
    yield _STRATEGY.ok(f"handed over by CDI name: {', '.join(wanted)}")
    folder = node.path(node.settings.cdi.spec_dir)
    problem = _missing(folder)
    if problem:
        yield _SPEC_FOLDER.fail(
            problem,
            remedy="make it on the host, where the container runtime reads it; if the daemon runs "
            "in a container, mount it there; or set cdi.specDir",
        )
        return
    yield _folder(node, folder)
    if node.settings.cdi.spec_dir not in _USUAL:
        yield _SPEC_FOLDER.warn(
            f"{node.settings.cdi.spec_dir} is not a folder that runtimes read by default",
            remedy="name it in the runtime's cdi_spec_dirs, or set cdi.specDir: /var/run/cdi",
        )
    yield from _rivals(node, folder)
    yield from _ours(node, folder)


def _missing(folder: Path) -> str:
    try:
        found = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{folder} is not there, and holdfast does not make it: it writes no spec"
    except PermissionError:
        raise
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror}"
    return "" if stat.S_ISDIR(found.st_mode) else f"{folder} is not a folder"


def _folder(node: Node, folder: Path) -> Finding:
    mount = node.mount(folder)
    if problem := unusable(mount):
        return _SPEC_FOLDER.fail(f"{folder} {problem[0]}", remedy=problem[1])
    if node.live and os.geteuid() == 0 and not os.access(folder, os.W_OK):
        return _SPEC_FOLDER.fail(f"{folder} cannot be written to", remedy="mount it writable")
    if mount is not None and mount.kind not in IN_MEMORY:
        return _SPEC_FOLDER.warn(
            f"{folder} is on {mount.kind} and keeps its files over a reboot: until the daemon runs "
            "again, names lead to device numbers of the boot before",
            remedy="set cdi.specDir: /var/run/cdi, which is in memory, and remove holdfast's files",
        )
    return _SPEC_FOLDER.ok(f"{folder} is there")


def _rivals(node: Node, folder: Path) -> Iterator[Finding]:
    kinds = {pool.resource_name for pool in node.settings.pools} | {node.settings.tpu.resource_name}
    try:
        rivals = SpecFolder(folder, prefix=node.settings.kubelet.socket_prefix).rivals(kinds)
    except HostError as error:
        yield _SPECS.warn(str(error), remedy="run the doctor as root")
        return
    for path in sorted(set(rivals.values())):
        names = ", ".join(sorted(name for name, file in rivals.items() if file == path))
        yield _SPECS.fail(
            f"{path} also defines {names}, which holdfast defines: runtimes then use neither",
            remedy=f"remove {path}, and the program that wrote it",
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
            yield _OWN_SPECS.fail(
                f"{path} {problem}",
                remedy="start the daemon, or restart it: it then writes its specs again",
            )
    if not wrong:
        names = ", ".join(path.name for path in ours) or "none yet"
        yield _OWN_SPECS.ok(f"holdfast's specs in {folder}: {names}")


def _wrong(node: Node, path: Path) -> Iterator[str]:
    """Yield each way in which one of our specs differs from the node."""
    try:
        spec = json.loads(read_bytes(path) or b"")
        devices = [(each["name"], each["containerEdits"]) for each in spec["devices"]]
        nodes = [(name, each) for name, edits in devices for each in edits.get("deviceNodes") or ()]
        for name, each in nodes:
            if wrong := _moved(node, name, each):
                yield wrong
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield "makes no sense: it is incomplete, or another program wrote it"


def _moved(node: Node, name: str, each: dict[str, Any]) -> str:
    if "major" not in each:
        return ""
    said = f"{each['major']}:{each['minor']}"
    path = each.get("hostPath", each["path"])
    rdev = device_number(node.host.node(path)) if path.startswith("/dev/") else None
    if rdev is None:  # it may be missing in a container or a copy
        return ""
    found = f"{os.major(rdev)}:{os.minor(rdev)}"
    return "" if said == found else f"gives {path} of {name} as {said}, but it is {found}"
