"""The CDI specs of NVIDIA GPUs: which files and nodes of the driver are behind a GPU's name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct, field

from holdfast.model.gate.cdi import node_edits, spec_text
from holdfast.model.ids import DeviceId
from holdfast.model.nvidia.grant import CDI_VENDOR
from holdfast.model.nvidia.names import GPU_KIND, NodeSpecs

# Runtimes refuse a file that uses more than its version has, and older ones a newer version: paths
# on the host and names that begin with a digit came with 0.5.0, groups with 0.7.0.
_PLAIN, _PATHS_AND_DIGITS, _GROUPS = "0.3.0", "0.5.0", "0.7.0"

_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_EVERYBODY = 0o006
_BITS = 0o777
_LINKS = "create-symlinks"
"""The hook that makes links in the container."""
_VOID = "NVIDIA_VISIBLE_DEVICES=void"
"""Keeps NVIDIA's own runtime from handing over what the image asks for as well."""

Edits = dict[str, Any]


class SpecNode(Struct, frozen=True, kw_only=True):
    """A device node: `path` in the container, `host_path` where a runtime finds it.

    `mode` are its permission bits, what runc would choose where they are not known; `gid` is its
    group on the host.
    """

    path: str
    host_path: str
    rdev: int
    mode: int = 0o666
    gid: int = 0


class SpecFile(Struct, frozen=True, kw_only=True):
    """A file below the driver's root: called `path` in the container, it lies at `source`.

    Both are absolute and without the root; they differ where `path` is a link.
    """

    path: str
    source: str


class DriverFiles(Struct, frozen=True, kw_only=True):
    """What of the driver every container with a GPU needs; `root` is what the host calls its root.

    `links` are the links that lead to one of `libraries`, such as libcuda.so.1.
    """

    version: str = ""
    root: str = "/"
    libraries: tuple[SpecFile, ...] = ()
    links: tuple[SpecFile, ...] = ()
    files: tuple[SpecFile, ...] = ()
    """Programs, firmware and configuration."""
    sockets: tuple[SpecFile, ...] = ()
    control: tuple[SpecNode, ...] = ()


class SpecGpu(Struct, frozen=True, kw_only=True):
    """A GPU or slice: `names` are its UUID and its index, `nodes` its own.

    `drm` are the nodes in /dev/dri that draw on it, and `pci` is its address, by which programs
    find them there; empty for a slice.
    """

    id: DeviceId
    names: tuple[str, ...]
    nodes: tuple[SpecNode, ...]
    drm: tuple[SpecNode, ...] = ()
    pci: str = ""


class BesideNodes(Struct, frozen=True, kw_only=True):
    """What a mode or the IMEX channel hands over; `mounts` are paths of the host and the same."""

    nodes: tuple[SpecNode, ...] = ()
    mounts: tuple[str, ...] = ()


class Feature(StrEnum):
    """A feature of NVIDIA's CDI specs that means something for ours, by its own name."""

    NO_GROUPS = "no-additional-gids-for-device-nodes"
    """The container's user joins no group of a node, and the spec stays below version 0.7.0."""
    NO_SOCKETS = "disable-ipc-discoverer"
    """The sockets of the driver's daemons are left out."""
    MORE_LIBRARIES = "enable-explicit-driver-libraries"
    """Libraries that the driver ships and that do not have its version, such as libEGL."""


_NEEDLESS: Mapping[str, str] = {
    "disable-nvsandboxutils": "that library is never used",
    "disable-nvsandbox-utils": "that library is never used",
    "enable-coherent-annotations": "no container runtime reads those annotations",
    "disable-multiple-csv-devices": "it is for Tegra",
}
"""The other features of NVIDIA's specs (nvidia-container-toolkit 1.20), and why they change
nothing."""


def no_effect(feature: str) -> str:
    """Return why the *feature* changes nothing in the specs; empty if it does."""
    if feature in tuple(Feature):
        return ""
    return _NEEDLESS.get(feature, "NVIDIA's specs have no such feature either")


class SpecRules(Struct, frozen=True, kw_only=True):
    """What specs are to have, as the settings say.

    `hook` is the host's path of NVIDIA's nvidia-ctk or nvidia-cdi-hook; empty: there is none.
    `disabled_hooks` are the names of hooks that are left out, ``all`` for each of them.
    """

    hook: str = ""
    disabled_hooks: frozenset[str] = frozenset()
    features: frozenset[Feature] = frozenset()


class GpuSpecFacts(Struct, frozen=True, kw_only=True):
    """All that the specs of a node's GPUs are made of. `beside` is by the kind's last part."""

    driver: DriverFiles = field(default_factory=DriverFiles)
    gpus: tuple[SpecGpu, ...] = ()
    beside: Mapping[str, BesideNodes] = field(default_factory=dict)


def described(facts: GpuSpecFacts, rules: SpecRules) -> NodeSpecs:
    """Return the specs of *facts*, and the names that they explain."""
    return NodeSpecs(
        files=gpu_spec_files(facts, rules),
        devices={f"{GPU_KIND}={name}": each.id for each in facts.gpus for name in each.names},
        beside=frozenset(
            f"{CDI_VENDOR}/{kind}={_only(kind)}"
            for kind, each in facts.beside.items()
            if each.nodes
        ),
    )


def gpu_spec_files(facts: GpuSpecFacts, rules: SpecRules) -> Mapping[str, str]:
    """Return the content of each spec file by the end of its name: one for each kind.

    The same facts have the same content to the byte. A kind with nothing to hand over has no file,
    because a spec must have a device, and a device something to give.
    """
    files: dict[str, str] = {}
    entries = {
        name: _gpu_edits(each, rules)
        for each in sorted(facts.gpus, key=lambda gpu: gpu.id)
        for name in each.names
    }
    if entries:
        files["gpu.json"] = _spec("gpu", entries, _driver_edits(facts.driver, rules))
    for kind, each in sorted(facts.beside.items()):
        if each.nodes:  # mounts alone would be settings without anything that they are for
            edits = _node_edits(each.nodes, rules)
            if each.mounts:
                edits["mounts"] = [_mount(path, path, _READ_ONLY) for path in each.mounts]
            files[f"{kind}.json"] = _spec(kind, {_only(kind): edits}, {"env": [_VOID]})
    return files


def _only(kind: str) -> str:
    """Return the name of the one device of a kind that is not GPUs."""
    return "0" if kind == "imex-channel" else "all"


def _spec(kind: str, devices: Mapping[str, Edits], common: Edits) -> str:
    version = _version(devices, common)
    return spec_text(f"{CDI_VENDOR}/{kind}", devices, version=version, common=common)


def _version(devices: Mapping[str, Edits], common: Edits) -> str:
    edits = [common, *devices.values()]
    if any("additionalGids" in each for each in edits):
        return _GROUPS
    moved = any("hostPath" in node for each in edits for node in each.get("deviceNodes", ()))
    digit = any(not name[0].isalpha() for name in devices)
    return _PATHS_AND_DIGITS if moved or digit else _PLAIN


def _driver_edits(driver: DriverFiles, rules: SpecRules) -> Edits:
    folders = _folders(driver.libraries)
    cuda = _folders(
        each for each in driver.libraries if PurePosixPath(each.path).name.startswith("libcuda.so")
    )
    edits: Edits = {"env": [_VOID, *([f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(cuda)}"] if cuda else [])]}
    edits |= _node_edits(driver.control, rules)
    called = _driver_hooks(driver, folders, rules)
    if called:
        edits["hooks"] = called
    # Without the hook that makes the links, each is mounted as the file that it leads to.
    linked = any(_LINKS in each["args"] for each in called)
    files = (*driver.libraries, *(() if linked else driver.links), *driver.files)
    sockets = () if Feature.NO_SOCKETS in rules.features else driver.sockets
    root = driver.root.rstrip("/")
    edits["mounts"] = [
        _mount(root + each.source, each.path, options)
        for group, options in ((files, _READ_ONLY), (sockets, _SOCKET))
        for each in group
    ]
    return edits


def _folders(files: Iterable[SpecFile]) -> list[str]:
    return list(dict.fromkeys(str(PurePosixPath(each.path).parent) for each in files))


def _driver_hooks(driver: DriverFiles, folders: Sequence[str], rules: SpecRules) -> list[Edits]:
    """Return the calls of NVIDIA's hook for any GPU, in its plugin's order."""
    wanted: tuple[tuple[str, list[str]], ...] = (
        (_LINKS, [f"{each.source}::{each.path}" for each in driver.links]),
        ("enable-cuda-compat", [f"--host-driver-version={driver.version}"]),
        ("update-ldcache", [word for folder in folders for word in ("--folder", folder)]),
        ("disable-device-node-modification", []),
        ("update-application-profile", []),
    )
    return [call for name, words in wanted for call in _hook(name, words, rules)]


def _hook(name: str, words: Sequence[str], rules: SpecRules) -> Iterator[Edits]:
    """Yield the call of one of NVIDIA's hooks; nothing without the program, or without links."""
    if not rules.hook or rules.disabled_hooks & {name, "all"}:
        return
    arguments = list(words)
    if name == _LINKS:
        if not words:
            return
        arguments = [word for each in words for word in ("--link", each)]
    program = PurePosixPath(rules.hook).name
    yield {
        "hookName": "createContainer",
        "path": rules.hook,
        "args": [program, *(("hook",) if program == "nvidia-ctk" else ()), name, *arguments],
        "env": ["NVIDIA_CTK_DEBUG=false"],
    }


def _gpu_edits(gpu: SpecGpu, rules: SpecRules) -> Edits:
    edits = _node_edits(gpu.nodes, rules)
    # Their groups are not among those that the container's user joins: most nodes in /dev/dri have
    # one, and a runtime older than CDI 0.7.0 takes no spec that names groups.
    edits["deviceNodes"] += [_node(each) for each in gpu.drm]
    if called := list(_hook(_LINKS, [_by_path(each, gpu.pci) for each in gpu.drm], rules)):
        edits["hooks"] = called
    return edits


def _by_path(node: SpecNode, address: str) -> str:
    """Return the link by which udev has a node in /dev/dri, in the words of NVIDIA's hook."""
    name = PurePosixPath(node.path).name
    end = "card" if name.startswith("card") else "render"
    return f"../{name}::/dev/dri/by-path/pci-{address}-{end}"


def _node_edits(nodes: Sequence[SpecNode], rules: SpecRules) -> Edits:
    edits: Edits = {}
    if nodes:
        edits["deviceNodes"] = [_node(each) for each in nodes]
    # The container's user joins the groups of nodes that not everybody may use.
    closed = {each.gid for each in nodes if each.gid and each.mode & _EVERYBODY != _EVERYBODY}
    if closed and Feature.NO_GROUPS not in rules.features:
        edits["additionalGids"] = sorted(closed)
    return edits


def _node(node: SpecNode) -> Edits:
    elsewhere = "" if node.host_path == node.path else node.host_path
    entry = node_edits(
        node.path, host_path=elsewhere, rdev=node.rdev, mode=node.mode & _BITS, permissions="rwm"
    )
    return entry | ({"gid": node.gid} if node.gid else {})


def _mount(host: str, path: str, options: tuple[str, ...]) -> Edits:
    return {"hostPath": host, "containerPath": path, "options": list(options)}
