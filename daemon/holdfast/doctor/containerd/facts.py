"""What containerd's configuration says, with the files that it imports, of its runtimes."""

import os
import re
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec import Struct

from holdfast.doctor.finding import Node, ProgramOutput
from holdfast.doctor.programs import FOLDERS, find_program, flag_of, running
from holdfast.errors import HostError
from holdfast.host.files.kernelfile import field_of, read_bytes, read_link, text_or_empty
from holdfast.host.proc.procfs import Procfs

Table = Mapping[str, object]

OLD = "io.containerd.grpc.v1.cri"
"""The table for Kubernetes in version 2 of the configuration."""
OLD_VERSION = 2
"""The newest file version that containerd 1.x reads."""
NEW = "io.containerd.cri.v1.runtime"
"""The table for Kubernetes in version 3."""
_FIRST = "cri"
"""The table for Kubernetes in a file of version 1, or without a version."""
_EMPTY: Table = {}
_DISABLES = frozenset({_FIRST, OLD, NEW})
PLACES = (
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/containerd/config.toml",
)
"""Where the configuration can be. Distributions with their own containerd do not use /etc."""
_DROP_INS = "/etc/containerd/conf.d/*.toml"
"""Where NVIDIA's toolkit installs drop-ins, and what containerd 2.2 imports by default."""
_SERVICE = "/containerd"
"""A path in the working folder of a service."""
_MOST_FILES = 200
"""More files than any sensible configuration has; then a pattern is wrong."""
_NAME = "containerd"
_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
)
_OTHERS = {
    "/etc/crio": "CRI-O",
    "/run/crio/crio.sock": "CRI-O",
    "/run/cri-dockerd.sock": "cri-dockerd",
}
"""Paths that show that another runtime runs the pods, and which one."""
_VERSION = re.compile(r"\bv?([0-9]+)\.([0-9]+)\.[0-9]+")


class ConfigFile(Struct, frozen=True, kw_only=True):
    """One configuration file, by its path on the node."""

    path: str
    content: Table

    @property
    def version(self) -> int:
        """The version of the file; 1 if it says none."""
        version = self.content.get("version")
        return version if isinstance(version, int) and version > 0 else 1

    @property
    def imports(self) -> tuple[str, ...]:
        """The files that it imports, as it spells them."""
        return strings(self.content.get("imports"))

    @property
    def disables_cri(self) -> bool:
        """Whether it turns off containerd's part for Kubernetes."""
        return not _DISABLES.isdisjoint(strings(self.content.get("disabled_plugins")))

    def runtimes(self, plugin: str) -> Table:
        """Return the tables of runtimes of one plugin, by their names."""
        return table(table(self.plugin(plugin), "containerd"), "runtimes")

    def plugin(self, name: str) -> Table:
        """Return the table of one plugin; empty if there is none."""
        return table(table(self.content, "plugins"), name)


class RuntimeTable(Struct, frozen=True, kw_only=True):
    """One runtime that pods can ask for; its name is the handler of a RuntimeClass."""

    name: str
    path: str
    """The last file that has a table for it."""
    runtime_type: str = ""
    binary: str = ""
    """BinaryName among the options."""
    config_path: str = ""
    """ConfigPath among the options."""
    type_url: str = ""
    """TypeUrl among the options, which names their kind."""
    annotations: tuple[str, ...] = ()
    """The pod annotations that are passed on to it."""


class CriConfig(Struct, frozen=True, kw_only=True):
    """The settings for Kubernetes after all files are merged; None and "" stand for unset."""

    runtimes: tuple[RuntimeTable, ...] = ()
    default_runtime: str = ""
    enable_cdi: bool | None = None
    cdi_spec_dirs: tuple[str, ...] | None = None
    disabled_in: str = ""
    """The file that turns off containerd's part for Kubernetes; empty if it is on."""


class IgnoredTable(Struct, frozen=True, kw_only=True):
    """A table that containerd does not read from that file."""

    file: ConfigFile
    plugin: str
    runtimes: tuple[str, ...]
    read: str
    """The table that it reads there instead."""


def cri_config(files: Sequence[ConfigFile], *, major: int) -> CriConfig:
    """Return the merged settings of *files* for containerd *major*.x, in loading order."""
    merged: Table = {}
    for file in files:
        for plugin in reversed(_read(file, files[0], major)):
            found = file.plugin(plugin)
            if found:
                merged = _deep(merged, found) if major > 1 else found
    containerd = table(merged, "containerd")
    cdi = merged.get("enable_cdi")
    return CriConfig(
        runtimes=tuple(
            _runtime(name, table(found), files, major)
            for name, found in table(containerd, "runtimes").items()
        ),
        default_runtime=_text(containerd.get("default_runtime_name")),
        enable_cdi=cdi if isinstance(cdi, bool) else None,
        cdi_spec_dirs=(strings(merged["cdi_spec_dirs"]) if "cdi_spec_dirs" in merged else None),
        disabled_in=next((file.path for file in files if file.disables_cri), ""),
    )


def ignored_tables(files: Sequence[ConfigFile], *, major: int) -> Iterator[IgnoredTable]:
    """Yield each table with runtimes or CDI settings that containerd does not read."""
    for file in files:
        read = _read(file, files[0], major)
        for plugin in (_FIRST, OLD, NEW):
            found = file.plugin(plugin)
            runtimes = tuple(file.runtimes(plugin))
            if plugin not in read and (runtimes or "enable_cdi" in found):
                yield IgnoredTable(file=file, plugin=plugin, runtimes=runtimes, read=read[0])


def lost_runtimes(files: Sequence[ConfigFile]) -> tuple[str, ...]:
    """Return the runtimes that containerd 1.x loses because a later file replaces the table."""
    kept = {found.name for found in cri_config(files, major=1).runtimes}
    named = {
        name
        for file in files
        for plugin in _read(file, files[0], 1)
        for name in file.runtimes(plugin)
    }
    return tuple(sorted(named - kept))


def table(value: object, key: str | None = None) -> Table:
    """Return *value*, or its entry *key*, if that is a table; otherwise an empty table."""
    found = value.get(key) if key is not None and isinstance(value, Mapping) else value
    return found if isinstance(found, Mapping) else _EMPTY


def strings(value: object) -> tuple[str, ...]:
    """Return the strings of a list; none if *value* is not a list."""
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _read(file: ConfigFile, root: ConfigFile, major: int) -> tuple[str, ...]:
    """Return the names of the table that containerd reads from *file*, the strongest first."""
    if major > 1:
        # Tables of older names are moved to the new name, unless that has the same key.
        if file.version > OLD_VERSION:
            return (NEW,)
        return (NEW, OLD) if file.version == OLD_VERSION else (NEW, OLD, _FIRST)
    # 1.x uses only the version of the first file.
    return (OLD,) if root.version >= OLD_VERSION else (_FIRST,)


def _runtime(name: str, found: Table, files: Sequence[ConfigFile], major: int) -> RuntimeTable:
    options = table(found, "options")
    paths = [
        file.path
        for file in files
        for plugin in _read(file, files[0], major)
        if name in file.runtimes(plugin)
    ]
    return RuntimeTable(
        name=name,
        path=paths[-1] if paths else files[-1].path,
        runtime_type=_text(found.get("runtime_type")),
        binary=_text(options.get("BinaryName")),
        config_path=_text(options.get("ConfigPath")),
        type_url=_text(options.get("TypeUrl")),
        annotations=strings(found.get("pod_annotations")),
    )


def _deep(below: Table, above: Table) -> Table:
    """Return *below* with *above* merged into it; lists are replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            merged[key] = _deep(under, value)
        else:
            merged[key] = value
    return merged


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class UnreadableFile(Struct, frozen=True, kw_only=True):
    """A file that cannot be used, and why."""

    path: str
    reason: str


class Configuration(Struct, frozen=True, kw_only=True):
    """The configuration files in the order in which containerd loads them."""

    files: tuple[ConfigFile, ...] = ()
    unreadable: tuple[UnreadableFile, ...] = ()
    unimported: tuple[str, ...] = ()
    """Drop-ins that no file imports."""
    astray: tuple[str, ...] = ()
    """Patterns without a leading ``/``, which containerd 1.x looks up in its own working folder."""


class ContainerdStart(Struct, frozen=True, kw_only=True):
    """How the containerd that serves pods was started."""

    config: str = ""
    """The configuration file on its command line; empty: it uses the default."""
    folders: tuple[str, ...] = ()
    """Where it looks for shims: its PATH, and the folder of its own program."""
    pid: int = 0
    elsewhere: bool = False
    """Whether its mounts differ from ours, so that we cannot see its files."""


class ContainerdFacts(Struct, frozen=True, kw_only=True):
    """The facts behind the findings about containerd."""

    configuration: Configuration = Configuration()
    cri: CriConfig = CriConfig()
    folders: tuple[str, ...] = FOLDERS
    """Where it looks for programs, or where a service does by default."""
    program: str = ""
    version: str = ""
    """As it prints it; empty if it cannot be asked."""
    unanswered: str = ""
    """Why not, where its program is there."""
    major: int | None = None
    """The major version, or 2 by files that only 2.x can read; None if it can be either."""
    present: bool = False
    elsewhere: int = 0
    """The pid of a containerd whose files we cannot see; 0 if there is none."""
    other: str = ""
    """The path that shows that another runtime runs this node's pods."""

    @property
    def other_name(self) -> str:
        """The name of that runtime; empty if there is none."""
        return _OTHERS.get(self.other, "")

    @property
    def path(self) -> str:
        """The first file of the configuration."""
        files = self.configuration.files
        return files[0].path if files else PLACES[-1]


def containerd_facts(node: Node) -> ContainerdFacts:
    """Look at *node*, whatever of it is there. Raise HostError without permission."""
    started = _started(node)
    if started.elsewhere:
        return ContainerdFacts(present=True, elsewhere=started.pid)
    folders = tuple(dict.fromkeys((*started.folders, *FOLDERS)))
    program = find_program(node, _NAME, folders)
    answer = node.ask((program, "--version")) if program else ProgramOutput()
    match = _VERSION.search(answer.text)
    major = int(match[1]) if match else None
    configuration = read_configuration(node, started.config, major=major)
    files = configuration.files
    newest = max((file.version for file in files), default=0)
    major = major or (2 if newest > OLD_VERSION else None)
    cri = cri_config(files, major=major or 1)
    other = next((path for path in _OTHERS if os.path.lexists(node.path(path))), "")
    if other and cri.disabled_in:  # Docker's packages have a containerd that kubelet does not use
        return ContainerdFacts(folders=folders, other=other)
    return ContainerdFacts(
        configuration=configuration,
        cri=cri,
        folders=folders,
        program=program,
        version=match[0].removeprefix("v") if match else "",
        unanswered=answer.problem,
        major=major,
        present=bool(started.pid or program or files or configuration.unreadable)
        or any(os.path.lexists(node.path(path)) for path in _SOCKETS),
        other=other,
    )


def _started(node: Node) -> ContainerdStart:
    """Return how containerd was started; without a pid if no such process can be seen.

    Any process can have its name. One in a container, with its own mounts, comes last.
    """
    procfs = Procfs(node.host)
    pids = (each.process.pid for each in running(node.host, {_NAME}))
    found = (_started_as(node, pid, procfs) for pid in pids if _may_name_programs(node, pid))
    # Docker has its own containerd, which uses the file in /etc or none.
    return min(
        found,
        key=lambda each: (each.elsewhere, each.config not in PLACES[:-1]),
        default=ContainerdStart(),
    )


def _may_name_programs(node: Node, pid: int) -> bool:
    """Tell whether root or our own user started *pid*: what is in its folders is run."""
    uids = field_of(text_or_empty(node.host.proc / f"{pid}/status"), "Uid").split()
    return not node.live or (bool(uids) and {"0", str(os.geteuid())}.issuperset(uids))


def _started_as(node: Node, pid: int, procfs: Procfs) -> ContainerdStart:
    path = flag_of(procfs.variables(pid), "PATH")
    folders = [folder for folder in path.split(":") if folder.startswith("/")]
    elsewhere = False
    try:
        program = read_link(node.host.proc / f"{pid}/exe")
        if program is not None and program.startswith("/"):
            folders.append(program.rpartition("/")[0] or "/")
        if node.live:
            mounts = read_link(node.host.proc / f"{pid}/ns/mnt")
            elsewhere = mounts is not None and mounts != read_link("/proc/self/ns/mnt")
    except HostError:
        pass  # The doctor may lack permission for it. The usual folders remain.
    config = flag_of(procfs.arguments(pid), "--config", "-c")
    return ContainerdStart(
        config=config if config.startswith("/") else "",
        folders=tuple(folders),
        pid=pid,
        elsewhere=elsewhere,
    )


def read_configuration(
    node: Node, started_with: str = "", *, major: int | None = None
) -> Configuration:
    """Return the configuration as containerd *major*.x reads it; None: as 2.x, which reads more.

    *started_with* is the file on containerd's command line, if known.
    """
    # Not Path.is_file, which raises where we may not look.
    there = (place for place in PLACES if os.path.isfile(node.path(place)))  # noqa: PTH113 - so
    first = started_with or next(there, "")
    if not first:
        return Configuration()
    files: list[ConfigFile] = []
    unreadable: list[UnreadableFile] = []
    waiting, seen = deque([first]), set[str]()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.popleft()
        if path in seen:
            continue
        seen.add(path)
        read = read_toml(node, path)
        if isinstance(read, UnreadableFile):
            unreadable.append(read)
        else:
            files.append(read)
            waiting += (
                found
                for asked in read.imports
                for found in _found(
                    node, _SERVICE if major == 1 and _astray(asked) else path, asked
                )
            )
    drop_ins = _found(node, first, _DROP_INS) if first == PLACES[-1] else ()
    return Configuration(
        files=tuple(files),
        unreadable=tuple(unreadable),
        unimported=tuple(path for path in drop_ins if path not in seen),
        astray=tuple(asked for file in files for asked in file.imports if _astray(asked)),
    )


def read_toml(node: Node, path: str) -> ConfigFile | UnreadableFile:
    """Return the content of a TOML file of the node, or why it cannot be read."""
    try:
        content = read_bytes(node.path(path))
        if content is None:
            return UnreadableFile(path=path, reason="there is no such file")
        return ConfigFile(path=path, content=tomllib.loads(content.decode()))
    except tomllib.TOMLDecodeError as error:
        return UnreadableFile(path=path, reason=f"it is not TOML: {error}")
    except RecursionError:
        return UnreadableFile(path=path, reason="it is nested too deep")
    except UnicodeDecodeError as error:
        return UnreadableFile(path=path, reason=f"it is not UTF-8: {error}")
    except HostError as error:
        if isinstance(error.__cause__, PermissionError):  # containerd may read what we may not
            raise
        return UnreadableFile(path=path, reason=str(error))


def _astray(asked: str) -> bool:
    return "*" in asked and not asked.startswith("/")


def _found(node: Node, importer: str, asked: str) -> tuple[str, ...]:
    """Return the files that an import names, as the node calls them.

    An import with a ``*`` is a pattern, which may match nothing; ``**`` is no more to containerd.
    Any other file must exist.
    """
    absolute = re.sub(r"\*+", "*", os.path.normpath(PurePosixPath(importer).parent / asked))
    if "*" not in absolute:
        return (absolute,)
    folder, _, name = absolute.rpartition("/")
    if "*" in folder:
        found = node.root.glob(absolute.lstrip("/"))
        return tuple(sorted(f"/{path.relative_to(node.root)}" for path in found))
    return tuple(sorted(f"{folder}/{path.name}" for path in node.path(folder).glob(name)))
