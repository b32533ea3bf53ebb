"""Checks the CDI specs of GPUs: NVIDIA's hook, other specs, and the driver's files."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.cdi.specs import gpus_by_name
from holdfast.doctor.finding import Check, Finding, some
from holdfast.doctor.node import Node
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.files.kernelfile import read_bytes
from holdfast.host.files.paths import below
from holdfast.model.nvidia.grant import CDI_VENDOR
from holdfast.model.nvidia.names import GPU_KINDS

_HOOK = Check("gpu-cdi", "hook")
_RIVALS = Check("gpu-cdi", "rivals")
_FILES = Check("gpu-cdi", "files")
_FILE = f"{CDI_VENDOR}-gpu.json"
_PROGRAMS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
)
"""Where NVIDIA's packages and GPU Operator's container install the toolkit."""


def gpu_cdi_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of the specs of GPUs; nothing if GPUs are not handed over by name."""
    gpu = node.settings.gpu
    if not gpus_by_name(node.settings):
        return
    host = _host(node)
    yield _hook(gpu.cdi_hook_path, host)
    folder = node.path(node.settings.cdi.spec_dir)
    yield _rivals(folder)
    yield _sources(folder / _FILE, host)


def _host(node: Node) -> Path | None:
    """Return the root of the node's own files; None if they cannot be seen from here."""
    if not node.live:
        return node.root
    root = node.host.proc / "1/root"
    return root if os.access(root, os.X_OK) else None


def _hook(path: str, host: Path | None) -> Finding:
    if not path:
        there = next((each for each in _PROGRAMS if _is_program(host, each)), "")
        more = f"; the host has {there}, which gpu.cdiHookPath can name" if there else ""
        return _HOOK.ok(
            "specs call no hook: the driver's libraries are mounted under each of their names. The "
            "image's cache of libraries is not updated, and an image's CUDA that is newer than the "
            f"driver is not put first{more}"
        )
    if host is None:
        return _HOOK.warn(
            f"cannot tell from here whether the host has {path}",
            remedy="run the doctor where the host's processes can be seen",
        )
    if not _is_program(host, path):
        return _HOOK.fail(
            f"the host has no program {path}, which specs call at each start: no container with a "
            "GPU starts",
            remedy="set gpu.cdiHookPath to where NVIDIA's toolkit is, or leave it empty",
        )
    return _HOOK.ok(f"specs call {path}, which the host has")


def _is_program(host: Path | None, path: str) -> bool:
    found = None if host is None else below(host, path)
    return found is not None and os.access(found, os.X_OK) and found.is_file()


def _rivals(folder: Path) -> Finding:
    rivals = SpecFolder(folder, prefix=CDI_VENDOR, joint="-").rivals(GPU_KINDS)
    if not rivals:
        return _RIVALS.ok("no other file defines names of GPUs")
    files = ", ".join(sorted({str(path) for path in rivals.values()}))
    return _RIVALS.fail(
        f"{files} also defines {', '.join(sorted(rivals))}: runtimes then use neither, and no "
        "container gets those GPUs",
        remedy="remove it, and the program that wrote it",
    )


def _sources(file: Path, host: Path | None) -> Finding:
    """Return whether the host has what the spec mounts: without it, no container starts."""
    try:
        spec = json.loads(read_bytes(file) or b"null")
        mounts = [each["hostPath"] for each in (spec or {})["containerEdits"]["mounts"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _FILES.warn(
            f"{file} is not there, or makes no sense: no GPU can be handed over by name",
            remedy="see /readyz of the daemon, which writes it when the driver is there",
        )
    if host is None:
        return _FILES.warn(
            "cannot tell from here whether the host has the driver's files",
            remedy="run the doctor where the host's processes can be seen",
        )
    places = {path: below(host, path) for path in mounts}
    gone = [path for path, place in places.items() if place is None or not place.exists()]
    if not gone:
        return _FILES.ok(f"the host has all {len(mounts)} files of {file}")
    return _FILES.fail(
        f"the host has no {some(gone)}, which {file} mounts: no container with a GPU starts",
        remedy="set gpu.driverRootOnHost to the path of gpu.driverRoot on the host; if the driver "
        "was just replaced, wait until the spec is written again",
    )
