"""What containerd makes of its configuration files: which tables it reads, and how it merges them.

containerd 1.x replaces the whole table of a plugin by that of a later file; 2.x merges the two key
by key, and first moves what files of older versions say to where version 3 has it.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

Table = Mapping[str, object]

OLD = "io.containerd.grpc.v1.cri"
"""Where version 2 of the configuration has what is set for Kubernetes."""
OLD_VERSION = 2
"""The version of such a file, the newest that containerd 1.x reads."""
NEW = "io.containerd.cri.v1.runtime"
"""The same of version 3."""
_FIRST = "cri"
"""The same of a file without a version, or with version 1."""
_EMPTY: Table = {}
_DISABLES = frozenset({_FIRST, OLD, NEW})


class ConfigFile(Struct, frozen=True, kw_only=True):
    """One file of the configuration, by its path on the node."""

    path: str
    content: Table

    @property
    def version(self) -> int:
        """The version that it says it has; without one it is of version 1."""
        version = self.content.get("version")
        return version if isinstance(version, int) and version > 0 else 1

    @property
    def imports(self) -> tuple[str, ...]:
        """The other files that it asks for, as it spells them."""
        return strings(self.content.get("imports"))

    def plugin(self, name: str) -> Table:
        """Return the table of one plugin; an empty one where it has none."""
        return table(table(self.content, "plugins"), name)


class RuntimeTable(Struct, frozen=True, kw_only=True):
    """One runtime that pods can ask for: its name is what a RuntimeClass calls its handler."""

    name: str
    path: str
    """The last file that says something of it."""
    runtime_type: str = ""
    binary: str = ""
    """BinaryName among the options."""
    config_path: str = ""
    """ConfigPath among the options."""
    type_url: str = ""
    """TypeUrl among the options: of what kind they are."""
    annotations: tuple[str, ...] = ()
    """The annotations of pods that are passed on to it."""


class CriConfig(Struct, frozen=True, kw_only=True):
    """What is set for Kubernetes once all files are merged; None and "" are what nobody set."""

    runtimes: tuple[RuntimeTable, ...] = ()
    default_runtime: str = ""
    enable_cdi: bool | None = None
    cdi_spec_dirs: tuple[str, ...] | None = None
    disabled_in: str = ""
    """The file that turns off Kubernetes' part of containerd; empty: it is on."""

    def runtime(self, name: str) -> RuntimeTable | None:
        """Return the runtime called *name*."""
        return next((found for found in self.runtimes if found.name == name), None)


class Ignored(Struct, frozen=True, kw_only=True):
    """A table that containerd does not read in that file."""

    path: str
    version: int
    plugin: str
    runtimes: tuple[str, ...]
    read: str
    """The table that it reads there instead."""


def cri_config(files: Sequence[ConfigFile], *, major: int) -> CriConfig:
    """Return what containerd *major*.x makes of *files*, in the order in which it loads them."""
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
    """Yield each table with runtimes, or with CDI's settings, that is in a file in vain."""
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
    """Return the runtimes that containerd 1.x loses as a later file replaces the whole table."""
    kept = {found.name for found in cri_config(files, major=1).runtimes}
    named = {
        name
        for file in files
        for plugin in _read(file, files[0], 1)
        for name in table(table(file.plugin(plugin), "containerd"), "runtimes")
    }
    return tuple(sorted(named - kept))


def table(value: object, key: str | None = None) -> Table:
    """Return *value*, or what it has at *key*, as a table; an empty one where it is none."""
    found = value.get(key) if key is not None and isinstance(value, Mapping) else value
    return found if isinstance(found, Mapping) else _EMPTY


def strings(value: object) -> tuple[str, ...]:
    """Return the texts of a list; none where it is none."""
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _read(file: ConfigFile, root: ConfigFile, major: int) -> tuple[str, ...]:
    """Return the names under which containerd reads the table in *file*, the strongest first."""
    if major > 1:
        # Older names are moved to the new one, unless the new one says the same already.
        if file.version > OLD_VERSION:
            return (NEW,)
        return (NEW, OLD) if file.version == OLD_VERSION else (NEW, OLD, _FIRST)
    # 1.x goes by the version of the first file alone.
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
    """Return *below* with what *above* says; lists are replaced, tables merged."""
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
