"""How containerd merges its configuration files, and which tables it reads.

containerd 1.x replaces the whole table of a plugin by the table of a later file. 2.x merges them
key by key, and first moves the tables of older file versions to where version 3 has them.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

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

    def runtime(self, name: str) -> RuntimeTable | None:
        """Return the runtime called *name*."""
        return next((found for found in self.runtimes if found.name == name), None)


class Ignored(Struct, frozen=True, kw_only=True):
    """A table that containerd does not read from that file."""

    path: str
    version: int
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
        disabled_in=next(
            (
                file.path
                for file in files
                if _DISABLES.intersection(strings(file.content.get("disabled_plugins")))
            ),
            "",
        ),
    )


def ignored_tables(files: Sequence[ConfigFile], *, major: int) -> Iterator[Ignored]:
    """Yield each table with runtimes or CDI settings that containerd does not read."""
    for file in files:
        read = _read(file, files[0], major)
        for plugin in (_FIRST, OLD, NEW):
            found = file.plugin(plugin)
            runtimes = tuple(table(table(found, "containerd"), "runtimes"))
            if plugin not in read and (runtimes or "enable_cdi" in found):
                yield Ignored(
                    path=file.path,
                    version=file.version,
                    plugin=plugin,
                    runtimes=runtimes,
                    read=read[0],
                )


def lost_runtimes(files: Sequence[ConfigFile]) -> tuple[str, ...]:
    """Return the runtimes that containerd 1.x loses because a later file replaces the table."""
    kept = {found.name for found in cri_config(files, major=1).runtimes}
    named = {
        name
        for file in files
        for plugin in _read(file, files[0], 1)
        for name in table(table(file.plugin(plugin), "containerd"), "runtimes")
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
        if name in table(table(file.plugin(plugin), "containerd"), "runtimes")
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
