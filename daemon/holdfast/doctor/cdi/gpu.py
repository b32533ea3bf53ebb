"""Checks what is behind the CDI names of GPUs: NVIDIA's hook, rivals, and the driver's files."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.area import Area
from holdfast.doctor.finding import Finding
from holdfast.doctor.node import Node
from holdfast.host.files.cdi import SpecFolder
from holdfast.host.files.kernelfile import read_bytes
from holdfast.host.files.paths import below
from holdfast.model.nvidia.grant import CDI_VENDOR, DeviceList
from holdfast.model.nvidia.names import GPU_KINDS

_AREA = Area("gpu-cdi")
_FILE = f"{CDI_VENDOR}-gpu.json"
_SHOWN = 3
_PROGRAMS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
)
"""Where NVIDIA's toolkit is: its packages' place, and that of GPU Operator's container."""


def gpu_cdi_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of them; nothing where GPUs are not handed over by name."""
    gpu = node.settings.gpu
    if not gpu.enabled or not any(DeviceList(each).is_cdi for each in gpu.device_list_strategy):
        return
    host = _host(node)
    yield _hook(gpu.cdi_hook_path, host)
    folder = node.path(node.settings.cdi.spec_dir)
    yield _rivals(folder)
    yield _sources(folder / _FILE, host)


def _host(node: Node) -> Path | None:
    """Return the root of the node's own files, None where they cannot be seen from here."""
    if not node.live:
        return node.root
    root = node.host.proc / "1/root"
    return root if os.access(root, os.X_OK) else None


def _hook(path: str, host: Path | None) -> Finding:
    if not path:
        there = next((each for each in _PROGRAMS if _is_program(host, each)), "")
        more = f"; the host has {there}, with which gpu.cdiHookPath does that" if there else ""
        return _AREA.ok(
            check="hook",
            reason="specs call no hook: the driver's libraries are mounted under each of their "
            "names, the image's own cache of libraries stays as it is, and an image's CUDA that is "
            f"newer than the driver is not put before the driver's{more}",
        )
    if host is None:
        return _AREA.warn(
            check="hook",
            reason=f"whether the host has {path} cannot be seen from here",
            remedy="run the doctor where the host's processes can be seen",
        )
    if not _is_program(host, path):
        return _AREA.fail(
            check="hook",
            reason=f"the host has no program {path}, which specs call at each start: no container "
            "with a GPU starts",
            remedy="set gpu.cdiHookPath to where NVIDIA's toolkit is, or leave it empty",
        )
    return _AREA.ok(check="hook", reason=f"specs call {path}, which the host has")


def _is_program(host: Path | None, path: str) -> bool:
    found = None if host is None else below(host, path)
    return found is not None and os.access(found, os.X_OK) and found.is_file()


def _rivals(folder: Path) -> Finding:
    rivals = SpecFolder(folder, prefix=CDI_VENDOR, joint="-").rivals(GPU_KINDS)
    if not rivals:
        return _AREA.ok(check="rivals", reason="no file of others explains names of GPUs")
    files = ", ".join(sorted({str(path) for path in rivals.values()}))
    return _AREA.fail(
        check="rivals",
        reason=f"{files} explains {', '.join(sorted(rivals))} as well: runtimes then take neither, "
        "and those GPUs are given to nobody",
        remedy="remove it, and what wrote it",
    )


def _sources(file: Path, host: Path | None) -> Finding:
    """Tell whether the host has what the spec mounts: a runtime starts nothing else."""
    try:
        spec = json.loads(read_bytes(file) or b"null")
        mounts = [each["hostPath"] for each in (spec or {})["containerEdits"]["mounts"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return _AREA.warn(
            check="files",
            reason=f"{file} is not there, or makes no sense: no GPU can be handed over by name",
            remedy="see /readyz of the daemon, which writes it once the driver is there",
        )
    if host is None:
        return _AREA.warn(
            check="files",
            reason="whether the host has the driver's files cannot be seen from here",
            remedy="run the doctor where the host's processes can be seen",
        )
    places = {path: below(host, path) for path in mounts}
    gone = [path for path, place in places.items() if place is None or not place.exists()]
    if not gone:
        return _AREA.ok(check="files", reason=f"the host has all {len(mounts)} files of {file}")
    more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
    return _AREA.fail(
        check="files",
        reason=f"the host has no {', '.join(gone[:_SHOWN])}{more}, which {file} mounts: no "
        "container with a GPU starts",
        remedy="set gpu.driverRootOnHost to what the host calls gpu.driverRoot; where the driver "
        "was just replaced, wait for the spec to be written anew",
    )
