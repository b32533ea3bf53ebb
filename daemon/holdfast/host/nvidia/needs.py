"""What a container needs of NVIDIA's driver: its device nodes, and its files on the host."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.nvidia.driver import OPERATOR, MigCaps, NvidiaFiles
from holdfast.host.nvidia.files import files, libraries, library_folders, links, sockets
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.nvidia.cdi import (
    BesideNodes,
    DriverFiles,
    GpuSpecFacts,
    SpecGpu,
    SpecNode,
)
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.mig import GpuPart
from holdfast.model.nvidia.roots import RootFacts, device_root

_MODES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gdrcopy": (("gdrdrv",), ()),
    "gds": (("nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    "mofed": (("infiniband/uverbs*", "infiniband/rdma_cm"), ()),
}
"""For each mode its nodes below /dev, and the paths that are mounted with them."""
_IMEX = "imex-channel"


class NvidiaDriver:
    """Reads the driver's files as a container should get them. It blocks: run it on a lane."""

    def __init__(
        self,
        root: HostRoot,
        files: NvidiaFiles,
        *,
        modes: frozenset[str] = frozenset(),
        more: bool = False,
    ) -> None:
        """Look below the driver's root of *files*, GPU Operator's, and that of the first process.

        *modes* name additional nodes, by `_MODES`. *more*: containers get libraries that are not of
        the driver's version as well.
        """
        self._root = root
        self._files = files
        self._modes = modes
        self._more = more

    def facts(self, gpus: GpuFacts) -> GpuSpecFacts:
        """Return the facts for specs of *gpus*; raise HostError if the driver is not found.

        A GPU or slice without all of its nodes is left out, because a container cannot use it.
        """
        chosen = device_root(self._files.facts())
        if chosen.root is None:
            raise HostError(f"cannot tell which nodes containers need for GPUs: {chosen.reason}")
        nodes = chosen.root
        caps = self._files.mig_caps()
        found = (self._gpu(part, gpus, nodes, caps) for part in gpus.layout.parts)
        beside = {mode: self._mode(mode, nodes) for mode in sorted(self._modes)}
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
                found = tuple(libraries(root, folders, version, more=self._more))
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
        if self._files.driver_root not in {"", "/"}:
            yield Path(self._files.driver_root), self._files.driver_root_on_host
        yield self._root.run / OPERATOR, f"/run/{OPERATOR}"
        # Not our own root: in a container it has other files than the host.
        yield self._root.proc / "1/root", "/"

    def _gpu(
        self, part: GpuPart, gpus: GpuFacts, nodes: RootFacts, caps: MigCaps
    ) -> SpecGpu | None:
        minor = part.gpu.minor
        known = None if minor is None else gpus.nodes.get(minor)
        if minor is None or known is None:
            return None
        own = list(_held(known.path, nodes))
        if part.slice is not None:
            needed = caps.nodes(minor, part.slice.gi, part.slice.ci)
            own += [
                SpecNode(
                    path=each.path,
                    host_path=f"{nodes.host}/{each.path.removeprefix('/dev/')}",
                    major=os.major(each.rdev),
                    minor=os.minor(each.rdev),
                )
                for each in needed
            ]
        if len(own) < (1 if part.slice is None else _OF_A_SLICE):
            return None
        names = tuple(dict.fromkeys((str(part.name.id), part.index)))
        if part.slice is not None:
            return SpecGpu(id=part.name.id, names=names, nodes=tuple(own))
        drm = [node for each in gpus.drm.get(part.gpu.uuid, ()) for node in self._drm(each, nodes)]
        return SpecGpu(
            id=part.name.id, names=names, nodes=tuple(own), drm=tuple(drm), pci=part.gpu.pci or ""
        )

    def _drm(self, wanted: DeviceNode, nodes: RootFacts) -> Iterator[SpecNode]:
        """Yield the node with that number; nothing where others have the name."""
        name = wanted.path.removeprefix("/dev/")
        for node in self._matching((name,), nodes):
            if os.makedev(node.major, node.minor) == wanted.rdev:
                yield node

    def _mode(self, mode: str, nodes: RootFacts) -> BesideNodes:
        patterns, mounts = _MODES[mode]
        places = {
            "/run/udev": self._root.run / "udev",
            "/etc/cufile.json": self._root.etc / "cufile.json",
        }
        return BesideNodes(
            nodes=tuple(self._matching(patterns, nodes)),
            mounts=tuple(path for path in mounts if os.path.exists(places[path])),
        )

    def _matching(self, patterns: tuple[str, ...], nodes: RootFacts) -> Iterator[SpecNode]:
        """Yield the matching nodes, from the driver's folder, or from /dev if it has none."""
        for pattern in patterns:
            for folder, host in ((nodes.folder, nodes.host), (self._root.dev, "/dev")):
                found = [
                    node
                    for path in sorted(folder.glob(pattern))
                    for node in _node(path, f"{host}/{path.relative_to(folder)}")
                ]
                if found:
                    yield from found
                    break


_OF_A_SLICE = 3
"""The GPU's node, and the capabilities of the GPU instance and of the compute instance."""


def _held(host_path: str, nodes: RootFacts) -> Iterator[SpecNode]:
    """Yield the node with *host_path* on the host, which is in the driver's folder of nodes."""
    yield from _node(nodes.folder / host_path.removeprefix(f"{nodes.host}/"), host_path)


def _node(path: Path, host_path: str) -> Iterator[SpecNode]:
    """Yield the character device at *path*; nothing if there is none."""
    try:
        found = path.stat()
    except OSError:
        return
    if stat.S_ISCHR(found.st_mode):
        yield SpecNode(
            path=f"/dev/{host_path.partition('/dev/')[2]}",
            host_path=host_path,
            major=os.major(found.st_rdev),
            minor=os.minor(found.st_rdev),
            mode=stat.S_IMODE(found.st_mode),
            gid=found.st_gid,
        )
