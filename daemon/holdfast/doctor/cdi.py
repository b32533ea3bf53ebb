"""What the doctor says of CDI: whether names in the specs lead containers to their devices."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from holdfast.doctor.finding import Check, Finding, Node, or_well, unusable
from holdfast.doctor.programs import find_program
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import (
    device_number,
    list_names,
    names_or_empty,
    read_bytes,
    seen,
)
from holdfast.host.files.paths import below
from holdfast.host.files.specfolder import SpecFolder
from holdfast.model.node.filesystems import IN_MEMORY
from holdfast.model.nvidia.grant import CDI_VENDOR, DeviceList
from holdfast.model.nvidia.names import GPU_KINDS
from holdfast.model.text import some
from holdfast.settings import Settings

CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
"""Where containerd looks for CDI specs by default."""
CLAIMS = "claims"
"""The devices of a claim have no other way into a container."""
_FILE = f"{CDI_VENDOR}-gpu.json"
_PROGRAMS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
)
"""Where NVIDIA's packages and GPU Operator's container install the toolkit."""
_SENSELESS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What is raised where a file is no spec and is read as one."""
_USUAL = frozenset({"/etc/cdi", "/run/cdi", "/var/run/cdi"})
"""The folders that runtimes read by default."""


def handed_over_by_name(settings: Settings) -> tuple[str, ...]:
    """Return what *settings* want handed over by CDI name."""
    functions = any(each.enabled for each in settings.functions)
    asked = {
        "TPUs and pools": settings.device_list_strategy == "cdi" and functions,
        "GPUs": gpus_by_name(settings),
        CLAIMS: settings.has_dra(),
    }
    return tuple(what for what, wanted in asked.items() if wanted)


def gpus_by_name(settings: Settings) -> bool:
    """Tell whether *settings* want GPUs handed over by CDI name."""
    gpu = settings.gpu
    return gpu.enabled and any(DeviceList(each).is_cdi for each in gpu.device_list_strategy)


def nodes_without_mode(node: Node, folders: Sequence[str] | None) -> tuple[str, ...]:
    """Return the spec files in *folders* that have a device node without a mode.

    Some releases of gVisor panic on such a node. Files that cannot be read count as having none.
    """
    return tuple(
        f"{folder}/{name}"
        for folder in (CDI_DIRS if folders is None else folders)
        for name in names_or_empty(node.path(folder))
        if name.endswith((".json", ".yaml")) and _has_bare_node(node, f"{folder}/{name}")
    )


def _has_bare_node(node: Node, path: str) -> bool:
    """Tell whether a spec has a device node without a mode; no where it makes no sense."""
    try:
        content = read_bytes(node.path(path)) or b""
        spec = json.loads(content) if path.endswith(".json") else yaml.safe_load(content)
        edits = [part.get("containerEdits") or {} for part in (spec, *spec["devices"])]
        nodes = [each for edit in edits for each in edit.get("deviceNodes") or ()]
        return any(each.get("fileMode") is None for each in nodes)
    except (HostError, yaml.YAMLError, *_SENSELESS):
        return False


def gpu_cdi_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the specs of GPUs; nothing if GPUs are not handed over by name."""
    gpu = node.settings.gpu
    if not gpus_by_name(node.settings):
        return
    host = _host(node)
    yield _hook(gpu.cdi_hook_path, host)
    folder = node.path(node.settings.cdi.spec_dir)
    yield _gpu_rivals(folder)
    yield _sources(folder / _FILE, host)


def _host(node: Node) -> Node | None:
    """Return the node by its own files; None if they cannot be seen from here."""
    if not node.live:
        return node
    root = node.host.proc / "1/root"
    return replace(node, root=root) if os.access(root, os.X_OK) else None


def _hook(path: str, host: Node | None) -> Finding:
    if not path:
        found = (host and find_program(host, each, ()) for each in _PROGRAMS)
        there = next(filter(None, found), "")
        more = f"; the host has {there}, which gpu.cdiHookPath can name" if there else ""
        return Check("hook").ok(
            "specs call no hook: the driver's libraries are mounted under each of their names. The "
            "image's cache of libraries is not updated, and an image's CUDA that is newer than the "
            f"driver is not put first{more}"
        )
    if host is None:
        return Check("hook").warn(
            f"cannot tell from here whether the host has {path}",
            remedy="run the doctor where the host's processes can be seen",
        )
    if not find_program(host, path, ()):
        return Check("hook").fail(
            f"the host has no program {path}, which specs call at each start: no container with a "
            "GPU starts",
            remedy="set gpu.cdiHookPath to where NVIDIA's toolkit is, or leave it empty",
        )
    return Check("hook").ok(f"specs call {path}, which the host has")


def _gpu_rivals(folder: Path) -> Finding:
    rivals = SpecFolder(folder, prefix=CDI_VENDOR, joint="-").rivals(GPU_KINDS)
    if not rivals:
        return Check("rivals").ok("no other file defines names of GPUs")
    files = ", ".join(sorted({str(path) for path in rivals.values()}))
    return Check("rivals").fail(
        f"{files} also defines {', '.join(sorted(rivals))}: runtimes then use neither, and no "
        "container gets those GPUs",
        remedy="remove it, and the program that wrote it",
    )


def _sources(file: Path, host: Node | None) -> Finding:
    """Return whether the host has what the spec mounts: without it, no container starts."""
    try:
        spec = json.loads(read_bytes(file) or b"null")
        mounts = [each["hostPath"] for each in (spec or {})["containerEdits"]["mounts"]]
        places = {path: None if host is None else below(host.root, path) for path in mounts}
    except _SENSELESS:
        return Check("files").warn(
            f"{file} is not there, or makes no sense: no GPU can be handed over by name",
            remedy="see /readyz of the daemon, which writes it when the driver is there",
        )
    if host is None:
        return Check("files").warn(
            "cannot tell from here whether the host has the driver's files",
            remedy="run the doctor where the host's processes can be seen",
        )
    gone = [path for path, place in places.items() if place is None or not seen(place)]
    if not gone:
        return Check("files").ok(f"the host has all {len(mounts)} files of {file}")
    return Check("files").fail(
        f"the host has no {some(gone)}, which {file} mounts: no container with a GPU starts",
        remedy="set gpu.driverRootOnHost to the path of gpu.driverRoot on the host; if the driver "
        "was just replaced, wait until the spec is written again",
    )


def cdi_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the CDI specs."""
    wanted = handed_over_by_name(node.settings)
    if not wanted:
        yield Check("strategy").ok("no devices are handed over by CDI name")
        return
    yield Check("strategy").ok(f"handed over by CDI name: {', '.join(wanted)}")
    folder = node.path(node.settings.cdi.spec_dir)
    yield _folder(node, folder)
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir can raise
        return
    if node.settings.cdi.spec_dir not in _USUAL:
        yield Check("spec-folder").warn(
            f"{node.settings.cdi.spec_dir} is not a folder that runtimes read by default",
            remedy="name it in the runtime's cdi_spec_dirs, or set cdi.specDir: /var/run/cdi",
        )
    yield from _rivals(node, folder)
    yield from _ours(node, folder)


def _folder(node: Node, folder: Path) -> Finding:
    missing = Check("spec-folder").fail(
        f"{folder} is not there, and holdfast does not make it: it writes no spec",
        remedy="make it on the host, where the container runtime reads it; if the daemon runs "
        "in a container, mount it there; or set cdi.specDir",
    )
    if problem := unusable(node, folder, missing):
        return problem
    mount = node.mount(folder)
    if mount is not None and mount.kind not in IN_MEMORY:
        return Check("spec-folder").warn(
            f"{folder} is on {mount.kind} and keeps its files over a reboot: until the daemon runs "
            "again, names lead to device numbers of the boot before",
            remedy="set cdi.specDir: /var/run/cdi, which is in memory, and remove holdfast's files",
        )
    return Check("spec-folder").ok(f"{folder} is there")


def _rivals(node: Node, folder: Path) -> Iterator[Finding]:
    kinds = {name for each in node.settings.functions for name in each.names}
    rivals = SpecFolder(folder, prefix=node.settings.kubelet.socket_prefix).rivals(kinds)
    for path in sorted(set(rivals.values())):
        names = ", ".join(sorted(name for name, file in rivals.items() if file == path))
        yield Check("specs").fail(
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
    remedy = "start the daemon, or restart it: it then writes its specs again"
    check = Check("own-specs")
    wrong = (
        check.fail(f"{path} {problem}", remedy=remedy)
        for path in ours
        for problem in _wrong(node, path)
    )
    names = ", ".join(path.name for path in ours) or "none yet"
    yield from or_well(wrong, check.ok(f"holdfast's specs in {folder}: {names}"))


def _wrong(node: Node, path: Path) -> Iterator[str]:
    """Yield each way in which one of our specs differs from the node."""
    try:
        spec = json.loads(read_bytes(path) or b"")
        devices = [(each["name"], each["containerEdits"]) for each in spec["devices"]]
        nodes = [(name, each) for name, edits in devices for each in edits.get("deviceNodes") or ()]
        for name, each in nodes:
            if wrong := _moved(node, name, each):
                yield wrong
    except _SENSELESS:
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
