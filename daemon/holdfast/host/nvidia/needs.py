"""What a container needs of NVIDIA's driver: its device nodes, and its files on the host."""

import fnmatch
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from msgspec import Struct

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import names_or_empty, stat_or_none
from holdfast.host.files.paths import below
from holdfast.host.nvidia.driver import LIBRARY_FOLDERS, OPERATOR, NvidiaFiles
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.nvidia.cdi import (
    BesideNodes,
    DriverFiles,
    GpuSpecFacts,
    SpecFile,
    SpecGpu,
    SpecNode,
)
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.grant import MODES
from holdfast.model.nvidia.mig import GpuPart
from holdfast.model.nvidia.roots import RootFacts, device_root

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
_MODES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gdrcopy": (("gdrdrv",), ()),
    "gds": (("nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    "mofed": (("infiniband/uverbs*", "infiniband/rdma_cm"), ()),
}
"""For each mode its nodes below /dev, and the paths that are mounted with them."""
_IMEX = "imex-channel"


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
    return [f"{part}{name}" for part in _LIBRARY_PARTS for name in names_or_empty(folder / part)]


class NvidiaDriver(Struct, frozen=True, kw_only=True):
    """Reads the driver's files as a container should get them. It blocks: run it on a lane.

    It looks below the driver's root of `files`, GPU Operator's, and that of the first process.
    """

    root: HostRoot
    files: NvidiaFiles
    more: bool
    """Whether containers get libraries that are not of the driver's version as well."""

    def facts(self, gpus: GpuFacts) -> GpuSpecFacts:
        """Return the facts for specs of *gpus*; raise HostError if the driver is not found.

        A GPU or slice without all of its nodes is left out, because a container cannot use it.
        """
        chosen = device_root(self.files.facts())
        if chosen.root is None:
            raise HostError(f"cannot tell which nodes containers need for GPUs: {chosen.reason}")
        nodes = chosen.root
        found = (self._gpu(part, gpus, nodes) for part in gpus.layout.known)
        beside = {mode: self._mode(mode, nodes) for mode in MODES}
        if gpus.imex:
            beside[_IMEX] = BesideNodes(nodes=tuple(_held(gpus.imex, nodes)))
        return GpuSpecFacts(
            driver=self._driver(gpus, nodes),
            gpus=tuple(each for each in found if each is not None),
            beside=beside,
        )

    def _driver(self, gpus: GpuFacts, nodes: RootFacts) -> DriverFiles:
        version = gpus.version
        roots = tuple(self._roots())
        for root, host in roots:
            folders = tuple(library_folders(root, version)) if version else ()
            if folders:
                found = tuple(libraries(root, folders, version, more=self.more))
                return DriverFiles(
                    version=version,
                    root=host,
                    libraries=found,
                    links=tuple(links(root, folders, found)),
                    files=tuple(files(root, version)),
                    sockets=tuple(sockets(root)),
                    control=tuple(node for path in gpus.control for node in _held(path, nodes)),
                )
        places = ", ".join(str(root) for root, _ in roots)
        raise HostError(
            f"cannot find the libraries of NVIDIA's driver {version or 'of unknown version'}: "
            f"no libcuda.so.{version} below {places}; set gpu.driverRoot"
        )

    def _roots(self) -> Iterator[tuple[Path, str]]:
        if self.files.driver_root not in {"", "/"}:
            yield Path(self.files.driver_root), self.files.driver_root_on_host
        yield self.root.run / OPERATOR, f"/run/{OPERATOR}"
        # Not our own root: in a container it has other files than the host.
        yield self.root.proc / "1/root", "/"

    def _gpu(self, part: GpuPart, gpus: GpuFacts, nodes: RootFacts) -> SpecGpu | None:
        known = None if part.gpu.minor is None else gpus.nodes.get(part.gpu.minor)
        own = () if known is None else tuple(_held(known.path, nodes))
        names = tuple(dict.fromkeys((str(part.name.id), part.index)))
        if part.slice is not None:
            caps = tuple(
                SpecNode(path=_in_container(each.path), host_path=each.path, rdev=each.rdev)
                for each in gpus.caps.get(part.name.id, ())
            )
            found = SpecGpu(id=part.name.id, names=names, nodes=(*own, *caps))
            return found if own and caps else None
        drm = (node for each in gpus.drm.get(part.gpu.uuid, ()) for node in self._drm(each, nodes))
        found = SpecGpu(
            id=part.name.id, names=names, nodes=own, drm=tuple(drm), pci=part.gpu.pci or ""
        )
        return found if own else None

    def _drm(self, wanted: DeviceNode, nodes: RootFacts) -> Iterator[SpecNode]:
        """Yield the node with that number; nothing where others have the name."""
        name = wanted.path.removeprefix("/dev/")
        for node in self._matching((name,), nodes):
            if node.rdev == wanted.rdev:
                yield node

    def _mode(self, mode: str, nodes: RootFacts) -> BesideNodes:
        patterns, mounts = _MODES[mode]
        places = {
            "/run/udev": self.root.run / "udev",
            "/etc/cufile.json": self.root.etc / "cufile.json",
        }
        return BesideNodes(
            nodes=tuple(self._matching(patterns, nodes)),
            mounts=tuple(path for path in mounts if os.path.exists(places[path])),
        )

    def _matching(self, patterns: tuple[str, ...], nodes: RootFacts) -> Iterator[SpecNode]:
        """Yield the matching nodes, from the driver's folder, or from /dev if it has none."""
        for pattern in patterns:
            for folder, host in ((nodes.folder, nodes.host), (self.root.dev, "/dev")):
                found = [
                    node
                    for path in sorted(folder.glob(pattern))
                    for node in _node(path, f"{host}/{path.relative_to(folder)}")
                ]
                if found:
                    yield from found
                    break


def _held(host_path: str, nodes: RootFacts) -> Iterator[SpecNode]:
    """Yield the node with *host_path* on the host, which is in the driver's folder of nodes."""
    yield from _node(nodes.folder / host_path.removeprefix(f"{nodes.host}/"), host_path)


def _node(path: Path, host_path: str) -> Iterator[SpecNode]:
    """Yield the character device at *path*; nothing if there is none."""
    found = stat_or_none(path)
    if found is not None and stat.S_ISCHR(found.st_mode):
        yield SpecNode(
            path=_in_container(host_path),
            host_path=host_path,
            rdev=found.st_rdev,
            mode=stat.S_IMODE(found.st_mode),
            gid=found.st_gid,
        )


def _in_container(host_path: str) -> str:
    """Return what a node is called in a container, which has it in /dev itself."""
    return f"/dev/{host_path.partition('/dev/')[2]}"
