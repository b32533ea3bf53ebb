"""Finds the parts of NVIDIA's driver below a root: libraries, programs, sockets.

Nothing here raises: what cannot be read is not there for a container either. So this uses os.path,
because Path.exists and its like raise some errors.
"""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from holdfast.host.files.paths import below
from holdfast.host.nvidia.driver import LIBRARY_FOLDERS
from holdfast.model.nvidia.cdi import SpecFile

_CUDA = "libcuda.so"
_CORE = (_CUDA, "libnvidia-ml.so")
"""A root without either of them in the driver's version does not have the driver."""
_LIBRARY_PARTS = ("", "vdpau/", "gbm/")
_OTHER_LIBRARIES = ("libnvidia-nvvm70.so.*",)
_MORE_LIBRARIES = (
    "libEGL",
    "libGL",
    "libGLESv1_CM",
    "libGLESv2",
    "libGLX",
    "libGLdispatch",
    "libOpenCL",
    "libOpenGL",
    "libnvidia-api",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
)
"""What drivers ship with it and others may have installed as well; handed over where wanted."""
_OTHER_LINKS = ("libGLX_indirect.so.0", "nvidia-drm_gbm.so")
_PROGRAM_FOLDERS = ("usr/bin", "usr/sbin", "usr/local/bin", "bin", "sbin")
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_FIRMWARE_FOLDERS = ("lib/firmware/nvidia", "usr/lib/firmware/nvidia")
_SETTINGS_FOLDERS = ("etc", "usr/share")
_SETTINGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "OpenCL/vendors/nvidia.icd",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
_SOCKETS = (
    "run/nvidia-persistenced/socket",
    "run/nvidia-fabricmanager/socket",
    "tmp/nvidia-mps",
)


def library_folders(root: Path, version: str) -> Iterator[Path]:
    """Yield the folders with the driver's libraries, each once: some are links to others."""
    seen: set[Path] = set()
    for name in LIBRARY_FOLDERS:
        folder = below(root, name)
        if folder is None or folder in seen:
            continue
        seen.add(folder)
        if any(os.path.isfile(folder / f"{core}.{version}") for core in _CORE):
            yield folder


def libraries(
    root: Path, folders: tuple[Path, ...], version: str, *, more: bool = False
) -> Iterator[SpecFile]:
    """Yield the libraries of *version*, and those that belong to it with their own versions.

    *more*: those too that programs find by other names than the driver's, such as libEGL.
    """
    patterns = (f"*.so.{version}", *_OTHER_LIBRARIES)
    for folder in folders:
        for name in _names(folder):
            if any(fnmatch.fnmatchcase(PurePosixPath(name).name, each) for each in patterns):
                yield from _file(root, folder, name)
        if more:
            yield from _more_libraries(root, folder, version)


def _more_libraries(root: Path, folder: Path, version: str) -> Iterator[SpecFile]:
    """Yield the files of those libraries that are not of *version*, each once."""
    wanted = [name for name in _names(folder) if name.partition(".so")[0] in _MORE_LIBRARIES]
    sources = dict.fromkeys(each.source for name in wanted for each in _file(root, folder, name))
    for source in sources:
        if not source.endswith(f".so.{version}"):
            yield SpecFile(path=source, source=source)


def links(root: Path, folders: tuple[Path, ...], found: tuple[SpecFile, ...]) -> Iterator[SpecFile]:
    """Yield the links to the *found* libraries, which programs open by the links' names.

    The link libcuda.so is always among them: some programs open it, and a driver that was
    installed without its development files does not have it.
    """
    known = {each.source for each in found}
    stems = {PurePosixPath(each.path).name.partition(".so")[0] for each in found}
    cuda = {
        str(path.with_name(_CUDA)): each.source
        for each in found
        if (path := PurePosixPath(each.path)).name.startswith(f"{_CUDA}.")
    }
    for folder in folders:
        for name in _names(folder):
            last = PurePosixPath(name).name
            if last.partition(".so")[0] not in stems and last not in _OTHER_LINKS:
                continue
            for file in _file(root, folder, name):
                if file.source in known and file.path != file.source:
                    cuda.pop(file.path, None)
                    yield file
    yield from (SpecFile(path=path, source=source) for path, source in cuda.items())


def files(root: Path, version: str) -> Iterator[SpecFile]:
    """Yield programs, firmware and configuration files, each once."""
    seen: set[str] = set()
    firmware = (f"{folder}/{version}" for folder in _FIRMWARE_FOLDERS)
    wanted = (
        *((folder, _PROGRAMS) for folder in _PROGRAM_FOLDERS),
        *((folder, ("gsp*.bin",)) for folder in firmware),
        *((folder, _SETTINGS) for folder in _SETTINGS_FOLDERS),
    )
    for place, patterns in wanted:
        folder = below(root, place)
        if folder is None:
            continue
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                for file in _file(root, folder, str(path.relative_to(folder))):
                    if file.path not in seen:
                        seen.add(file.path)
                        yield file


def sockets(root: Path) -> Iterator[SpecFile]:
    """Yield the sockets by which programs reach the driver's daemons."""
    for name in _SOCKETS:
        path = below(root, name)
        if path is not None and os.path.exists(path):
            yield SpecFile(path=f"/{name}", source=_inside(root, path))


def _file(root: Path, folder: Path, name: str) -> Iterator[SpecFile]:
    """Yield the file *name* in *folder*, which is below *root* and not a link itself."""
    path = _inside(root, folder / name)
    source = below(root, path)
    if source is not None and os.path.isfile(source):
        yield SpecFile(path=path, source=_inside(root, source))


def _inside(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}"


def _names(folder: Path) -> list[str]:
    """Return the sorted names in a folder of libraries and in its folders for drivers."""
    names: list[str] = []
    for part in _LIBRARY_PARTS:
        try:
            names += sorted(f"{part}{name}" for name in os.listdir(folder / part))
        except OSError:
            continue
    return names
