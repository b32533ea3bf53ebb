"""Checks containerd's configuration: the files it reads, the runtimes of pods, and CDI."""

from collections.abc import Iterable, Iterator

from holdfast.doctor.cdi import CDI_DIRS, CLAIMS, handed_over_by_name
from holdfast.doctor.containerd.facts import (
    NEW,
    OLD,
    OLD_VERSION,
    ContainerdFacts,
    containerd_facts,
    ignored_tables,
    lost_runtimes,
)
from holdfast.doctor.finding import Check, Finding, Node
from holdfast.doctor.programs import find_program
from holdfast.settings import Settings

_RESTART = "then restart containerd"
_RUNC = "runc"
_LIST_HANDLERS = "kubectl get runtimeclass -o custom-columns=NAME:.metadata.name,HANDLER:.handler"


def containerd_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of containerd on *node*."""
    facts = containerd_facts(node)
    if facts.elsewhere:
        yield Check("config").warn(
            f"containerd (pid {facts.elsewhere}) has other mounts than this process, so its "
            "files cannot be seen from here",
            remedy=f"run `holdfast doctor --root /proc/{facts.elsewhere}/root`, or run it on the "
            "node",
        )
        return
    if not facts.present:
        if facts.other:
            yield _of_another(facts, node)
        else:
            yield Check("config").warn(
                "containerd was not found: no process, program, socket or configuration",
                remedy="run the doctor on the node, or give it the node's root with --root",
            )
        return
    yield from config_findings(facts)
    if facts.configuration.unreadable:
        return  # containerd does not start with such a file.
    if facts.configuration.files:
        yield from table_findings(facts)
    yield from handler_findings(facts, node.runtime_handlers)
    yield cdi_finding(facts, node.settings)
    yield from binary_findings(facts, node)


def _of_another(facts: ContainerdFacts, node: Node) -> Finding:
    """Return that another runtime runs the pods, and what is unknown of it."""
    name = facts.other_name
    reason = (
        f"{facts.other} exists: {name} runs this node's pods, and its configuration is not read"
    )
    unknown = [f"has the handler {each}" for each in node.runtime_handlers]
    if handed_over_by_name(node.settings):
        unknown.append(f"looks up devices by CDI name in {node.settings.cdi.spec_dir}")
    if not unknown:
        return Check("config").ok(reason)
    where = f"the configuration of {name}"
    if name == "CRI-O":
        where = "cdi_spec_dirs and the tables [crio.runtime.runtimes.NAME] of `crio config`"
    return Check("config").warn(
        f"{reason}: whether it {' and '.join(unknown)} cannot be told",
        remedy=f"look at {where} on the node",
    )


def config_findings(facts: ContainerdFacts) -> Iterator[Finding]:
    """Yield whether the files can be read, and whether all of them are imported."""
    configuration = facts.configuration
    for bad in configuration.unreadable:
        yield Check("config").fail(
            f"cannot read {bad.path}: {bad.reason}; containerd does not start with it",
            remedy=f"correct {bad.path}, or remove it from the imports, {_RESTART}",
        )
    if configuration.files:
        version = f" by containerd {facts.version}" if facts.version else ""
        if facts.unanswered:
            version = f"; containerd's version is unknown: {facts.unanswered}"
        yield Check("config").ok(f"read {_and(file.path for file in configuration.files)}{version}")
    elif not configuration.unreadable:
        yield Check("config").ok(f"there is no {facts.path}: containerd uses its defaults")
    if configuration.astray:
        yield Check("imports").warn_or_fail(
            f"{_and(configuration.astray)} among the imports has no leading /: containerd 1.x "
            "and early 2.x look for it in their working folder, which is / for a service, and "
            "import nothing",
            remedy=f"write the pattern with its absolute path, {_RESTART}",
            fails=facts.major == 1,
        )
    if configuration.unimported:
        yield Check("imports").warn(
            f"{_and(configuration.unimported)} is imported by no file: containerd ignores it",
            remedy=f'add imports = ["/etc/containerd/conf.d/*.toml"] to {facts.path}, {_RESTART}',
        )


def table_findings(facts: ContainerdFacts) -> Iterator[Finding]:
    """Yield whether containerd reads each table from where it is."""
    wrong = [*_misread(facts), *_lost(facts)]
    yield from wrong
    yield from _newer_files(facts)
    if not wrong:
        yield Check("tables").ok("containerd reads every table of runtimes")


def _misread(facts: ContainerdFacts) -> Iterator[Finding]:
    """Yield why containerd does not read a table, or nothing of it."""
    files = facts.configuration.files
    if facts.major == 1 and files[0].version > OLD_VERSION:
        yield Check("tables").fail(
            f"{files[0].path} has version = {files[0].version}, and containerd {facts.version} "
            "knows none above 2",
            remedy=f'write it with version = 2 and tables of plugins."{OLD}", {_RESTART}',
        )
    for ignored in ignored_tables(files, major=facts.major or 1):
        silently = (
            "ignores it silently" if "." in ignored.plugin else "ignores it or does not start"
        )
        what = _and(f"runtimes.{name}" for name in ignored.runtimes) or "enable_cdi"
        sure = "" if facts.major else " 1.x"
        yield Check("tables").warn_or_fail(
            f"{ignored.file.path} (version = {ignored.file.version}) has {what} below "
            f'plugins."{ignored.plugin}", where containerd{sure} {silently}: pods '
            "that ask for it are refused",
            remedy=f'move it below plugins."{ignored.read}", or give the file the version of that '
            "table "
            f"({OLD}: 2, {NEW}: 3), {_RESTART}",
            fails=facts.major is not None,
        )
    if facts.cri.disabled_in:
        yield Check("tables").fail(
            f"{facts.cri.disabled_in} turns off the part of containerd that kubelet speaks to "
            "(disabled_plugins)",
            remedy=f"remove cri from disabled_plugins, {_RESTART}",
        )


def _lost(facts: ContainerdFacts) -> Iterator[Finding]:
    """Yield whether containerd 1.x loses runtimes of a file to a later one."""
    lost = lost_runtimes(facts.configuration.files) if (facts.major or 1) == 1 else ()
    if lost:
        sure = "" if facts.major else ", unless it is containerd 2.x, which merges them,"
        yield Check("imports").warn_or_fail(
            f'a later file replaces the whole table plugins."{OLD}"{sure} so that '
            f"{_and(f'runtimes.{name}' for name in lost)} of an earlier one is lost",
            remedy=f"write all runtimes in one file, or use containerd 2.x, {_RESTART}",
            fails=facts.major is not None,
        )


def _newer_files(facts: ContainerdFacts) -> Iterator[Finding]:
    first, *others = facts.configuration.files
    for file in others:
        if file.version > first.version:
            yield Check("tables").warn(
                f"{file.path} has version = {file.version}, above that of {first.path} "
                f"({first.version}): some containerd 2.x (2.3.4) refuse to start with it",
                remedy=f"give {first.path} the same version, with the tables of it, {_RESTART}",
            )


def handler_findings(facts: ContainerdFacts, handlers: tuple[str, ...]) -> Iterator[Finding]:
    """Yield whether the runtimes that pods can ask for exist.

    *handlers* are those of the cluster's RuntimeClasses that were given to the doctor.
    """
    names = [found.name for found in facts.cri.runtimes]
    default = facts.cri.default_runtime or _RUNC
    if _RUNC not in names and not (names and facts.major == 1):
        names.append(_RUNC)  # 2.x adds it by itself; 1.x does so only without any table
    if default not in names:
        yield Check("handlers").fail(
            f"default_runtime_name is {default}, but the runtimes in {facts.path} are only "
            f"{_and(names)}",
            remedy=f"add a table for {default}, or name another default, {_RESTART}",
        )
    unknown = [handler for handler in handlers if handler not in names]
    if unknown:
        yield Check("handlers").fail(
            f"no runtime in {facts.path} is called {_and(unknown)}, as a RuntimeClass's "
            f"handler is, but {_and(names)}: containerd refuses such a pod, as no runtime for "
            "its handler is configured (gvisor#13781)",
            remedy=f"give the table the handler's name, or the RuntimeClass the table's, "
            f"{_RESTART}",
        )
        return
    compared = (
        "" if handlers else f"; compare with `{_LIST_HANDLERS}`, or name them: --runtime-handler"
    )
    yield Check("handlers").ok(
        f"a RuntimeClass's handler must be one of {_and(names)}, and the default is {default}"
        f"{compared}"
    )


def cdi_finding(facts: ContainerdFacts, settings: Settings) -> Finding:
    """Return whether containerd looks up devices by CDI name, and in holdfast's folder."""
    needed = handed_over_by_name(settings)
    on, said = facts.cri.enable_cdi, "enable_cdi says so"
    if on is None:
        on, said = None if facts.major is None else facts.major > 1, "it is the default"
    folders = facts.cri.cdi_spec_dirs if facts.cri.cdi_spec_dirs is not None else CDI_DIRS
    where = f'plugins."{NEW if (facts.major or 1) > 1 else OLD}"'
    asker = "a pod's claim needs it" if CLAIMS in needed else "deviceListStrategy asks for it"
    asked = asker if needed else "no setting needs it"
    if on is False and not needed:
        return Check("cdi").ok(f"CDI is off in containerd ({said}), and {asked}")
    if on is False:
        return Check("cdi").fail(
            f"CDI is off in containerd ({said}), but {asked}: pods would get no devices",
            remedy=f"set enable_cdi = true below {where} in {facts.path}, {_RESTART}",
        )
    if on is None:
        reason = f"no file sets enable_cdi, which is off in containerd 1.x, and {asked}"
        if not needed:
            return Check("cdi").ok(reason)
        remedy = f"set enable_cdi = true below {where}, {_RESTART}"
        return Check("cdi").warn(reason, remedy=remedy)
    if needed and _plain(settings.cdi.spec_dir) not in map(_plain, folders):
        return Check("cdi").fail(
            f"holdfast writes CDI specs to {settings.cdi.spec_dir}, but containerd reads only "
            f"{_and(folders) or 'none'}",
            remedy=f"set cdi.specDir to one of them, or add it to cdi_spec_dirs below {where}, "
            f"{_RESTART}",
        )
    return Check("cdi").ok(f"CDI is on in containerd ({said}), which reads {_and(folders)}")


def binary_findings(facts: ContainerdFacts, node: Node) -> Iterator[Finding]:
    """Yield each runtime whose BinaryName is not on the node."""
    for runtime in facts.cri.runtimes:
        name = runtime.binary
        if name and not find_program(node, name, facts.folders):
            where = "" if "/" in name else f" in {_and(facts.folders)}"
            yield Check("binaries").fail(
                f"runtimes.{runtime.name} in {runtime.path} has BinaryName {name}, and there "
                f"is no such program{where}",
                remedy=f"install it, or correct BinaryName, {_RESTART}",
            )


def _plain(folder: str) -> str:
    folder = folder.rstrip("/")
    return folder.removeprefix("/var") if folder.startswith("/var/run") else folder


def _and(names: Iterable[str]) -> str:
    return ", ".join(names)
