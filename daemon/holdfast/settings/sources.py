"""Reads the settings from a YAML file, the environment and flags; a later source wins."""

import contextlib
import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from holdfast.errors import SettingsError
from holdfast.model.text import printable
from holdfast.settings.named import (
    Document,
    chosen_document,
    follows_label,
    last_good_document,
    remembered_label,
)
from holdfast.settings.nvidia_plugin import (
    CONFIG_FILE,
    NO_MPS,
    from_environment,
    from_file,
    from_flags,
    root_on_host,
)
from holdfast.settings.reloading import TakeUp, take_up
from holdfast.settings.sections import Settings
from holdfast.settings.types import MOST_SHOWN, Duration, Section, forms, is_section, made_of
from holdfast.settings.validation import problems
from holdfast.settings.yamltext import mapping, parse, read_mapping

_PREFIX = "HOLDFAST_"
# Kubernetes gives each container variables of its namespace's Services; one may be named holdfast.
_SERVICE_LINK = re.compile(
    r"HOLDFAST_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.+")

_THEIRS = frozenset({"version", "flags"})
"""By one of these keys a document is known to be of NVIDIA's format."""

Tree = dict[str, Any]


class LoadedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that work, and what they were read from."""

    settings: Settings
    label: str | None = None
    """The value of the node's label, empty for none; None: unknown."""
    document: Document | None = None
    refused: str = ""
    """Why what there is now cannot be used, so that these are used instead; empty: these are it."""
    instead: str = ""
    """What these are, where it is refused."""
    ineffective: tuple[str, ...] = ()
    """Which keys of NVIDIA's files have no effect, and what to do about each."""


class SettingsSources:
    """What the settings are made of, each read once; a named document comes on top."""

    def __init__(
        self,
        file: Path | None,
        environ: Mapping[str, str],
        overrides: Mapping[str, str] | None = None,
        *,
        theirs: Mapping[str, str] | None = None,
    ) -> None:
        """Read *file*, to be changed by variables, then by *overrides*.

        Variables are those of NVIDIA's plugin that mean the same, and HOLDFAST_…, which win over
        them. *overrides* are by path, such as ``gate.wait``; *theirs* are flags of NVIDIA's plugin
        by name. Its own file is read where one is named. Raise SettingsError with the path of the
        key.
        """
        self._environ, self._overrides, self._theirs = environ, overrides or {}, theirs or {}
        self._ineffective: list[str] = []
        named = _theirs_named(environ, self._theirs)
        tree = _theirs(read_mapping(Path(named)), named, self._ineffective.append) if named else {}
        self._tree = _over(tree, read_mapping(file)) if file is not None else tree
        self.own = _understood(self._change(self._tree))
        """The settings without a document; they may need one to work."""

    def found(self, label: str | None) -> LoadedSettings:
        """Return the settings where *label* is the node's value; raise SettingsError."""
        return self.loaded(label, chosen_document(self.own.named, label or ""))

    def loaded(self, label: str | None, document: Document | None) -> LoadedSettings:
        """Return the settings, in which *document* wins over the files; raise SettingsError."""
        told = [*self._ineffective]
        settings = self._settings(document, told.append)
        return LoadedSettings(
            settings=settings, label=label, document=document, ineffective=tuple(told)
        )

    def with_remembered_label(self) -> LoadedSettings:
        """Return the settings by the label's last value that could be used; as `found`."""
        return self.found(remembered_label(self.own.state_dir))

    def _settings(self, document: Document | None, told: Callable[[str], None]) -> Settings:
        if document is None:
            return convert(self._change(self._tree))
        file = str(Path(self.own.named.folder) / document.name)
        content = _document(document.text, file, told)
        try:
            return convert(self._change(_over(self._tree, content)))
        except SettingsError as error:
            raise SettingsError(f"{error} (with the document {file})") from error

    def _change(self, tree: Tree) -> Tree:
        """Return *tree* with what variables, flags of NVIDIA's plugin and overrides set."""
        tree, paths = copy.deepcopy(tree), known_paths()
        by_theirs = from_environment(self._environ) | from_flags(self._theirs)
        gpu = tree.get("gpu")
        # What a file says of it counts, whichever file that is.
        if not (isinstance(gpu, dict) and gpu.get("driverRootOnHost")):
            by_theirs = root_on_host(by_theirs) | by_theirs
        for path, text in by_theirs.items():
            _put(tree, path, text)
        by_variable = {variable(path): path for path in paths}
        for name, text in self._environ.items():
            if not name.startswith(_PREFIX) or _is_service_link(name, text):
                continue
            if name not in by_variable:
                hint = _hint(name, by_variable)
                raise SettingsError(f"cannot use the environment variable {name}: {hint}")
            _put(tree, by_variable[name], text)
        for path, text in self._overrides.items():
            if path not in paths:
                raise SettingsError(f"cannot set {path}: {_hint(path, paths)}")
            _put(tree, path, text)
        return tree


def for_start(
    read: Callable[[], SettingsSources],
    ask_label: Callable[[Settings], str | None] = lambda _settings: None,
    former: LoadedSettings | None = None,
) -> LoadedSettings:
    """Return the settings to start with, which no label and no document can prevent.

    *ask_label* has the API server tell the label, None where it does not: where none is remembered,
    or what it names cannot be used. If that does not help, *former* counts, which this process went
    by before a restart; else the document that worked last; else what a node without the label
    uses, or no document. Raise SettingsError where that does not work either, or where the sources
    themselves cannot be used and there is no *former*.
    """
    try:
        sources = read()
    except SettingsError as error:
        if former is None:
            raise
        return msgspec.structs.replace(former, refused=str(error), instead=_FORMER)
    label: str | None = None
    refused = SettingsError()
    for label in _labels(sources.own, ask_label):
        try:
            return sources.found(label)
        except SettingsError as error:
            refused = error
    why = str(refused)
    if former is not None:
        return msgspec.structs.replace(former, label=label, refused=why, instead=_FORMER)
    for instead, document in _others(sources.own):
        with contextlib.suppress(SettingsError):
            found = sources.loaded(label, document)
            return msgspec.structs.replace(found, refused=why, instead=instead)
    raise refused


_FORMER = "the former configuration stays in use"


def _labels(own: Settings, ask: Callable[[Settings], str | None]) -> Iterator[str | None]:
    """Yield what the node's label may say, the likeliest first."""
    if not follows_label(own):
        yield None
        return
    remembered = remembered_label(own.state_dir)
    if remembered is not None:
        yield remembered
    told = ask(own)
    if remembered is None or told not in {None, remembered}:
        yield told


def _others(own: Settings) -> Iterator[tuple[str, Document | None]]:
    """Yield what may be used where the document that counts cannot be, the best first."""
    if (last := last_good_document(own.state_dir)) is not None:
        yield f"the document {last.name} is used, as it was when it worked last", last
    with contextlib.suppress(SettingsError):
        document = chosen_document(own.named, "")
        yield "the node counts as one without the label", document
    yield "no document is used", None


def files(
    file: Path | None, environ: Mapping[str, str], theirs: Mapping[str, str]
) -> tuple[Path, ...]:
    """Return the files that `SettingsSources` reads."""
    named = _theirs_named(environ, theirs)
    return (*((file,) if file else ()), *((Path(named),) if named else ()))


def _theirs_named(environ: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    return theirs.get("config-file", environ.get(CONFIG_FILE, ""))


def state_folder(file: Path | None, environ: Mapping[str, str]) -> Path:
    """Return stateDir alone, also where the rest cannot be used: a daemon may run on without it."""
    there = (read_mapping(file) if file is not None else {}).get("stateDir", Settings().state_dir)
    return Path(environ.get(variable("stateDir"), str(there)))


def convert(tree: Mapping[str, Any]) -> Settings:
    """Return *tree* as settings; raise SettingsError with the path of the wrong key."""
    settings = _understood(tree)
    for problem in problems(settings):
        raise SettingsError(f"cannot use the configuration: {problem}")
    return settings


def _understood(tree: Mapping[str, Any]) -> Settings:
    tree = _without_empty(tree)
    try:
        return msgspec.convert(tree, Settings, dec_hook=_duration)
    except ValueError as error:
        wrong = _wrong(tree, Settings, "")
        raise SettingsError(f"cannot use the configuration: {wrong or error}") from error


@cache  # each start needs them three times, and reading the types of one takes longest
def known_paths(struct: type[Section] = Settings, prefix: str = "") -> Mapping[str, object]:
    """Return the path of each single key, such as ``gate.wait``, with its type."""
    hints = get_type_hints(struct)
    found: dict[str, object] = {}
    for name, key in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        path, kind = prefix + key, hints[name]
        if is_section(kind):
            found |= known_paths(kind, f"{path}.")
        else:
            found[path] = kind
    return found


def _theirs(content: Tree, name: str, told: Callable[[str], None]) -> Tree:
    """Return what the *content* of a file of NVIDIA's format sets."""
    tree: Tree = {}
    found, given = from_file(content, name, told)
    for path, text in found.items():
        _put(tree, path, text)
    for path, value in given.items():
        _at(tree, path, value)
    return tree


def _document(text: str, file: str, told: Callable[[str], None]) -> Tree:
    """Return what a named document sets, of whose *file* this is the *text*."""
    content = mapping(text, file)
    if not _THEIRS.isdisjoint(content):
        return _theirs(content, file, told)
    if misplaced := next(_of_files_alone(content), None):
        raise SettingsError(
            f"cannot use {file}: {misplaced} is the same for every document; put it in the file of "
            "--config"
        )
    return content


def _of_files_alone(content: Tree, prefix: str = "") -> Iterator[str]:
    """Yield the keys in *content* that no document may set: mounts and probes depend on them."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if path == "named" or take_up(path) is TakeUp.POD:
            yield path
        elif isinstance(value, dict):
            yield from _of_files_alone(value, f"{path}.")


def _over(tree: Tree, other: Tree) -> Tree:
    """Return *tree* with the values of *other* over its own; an empty section changes nothing."""
    merged = dict(tree)
    for key, value in other.items():
        before = merged.get(key)
        if not isinstance(before, dict) or not isinstance(value, dict | None):
            merged[key] = value
        elif value is not None:
            merged[key] = _over(before, value)
    return merged


def _put(tree: Tree, path: str, text: str) -> None:
    """Set what *text* means for the key at *path*; raise SettingsError where it is no YAML."""
    try:
        _at(tree, path, _value(text, known_paths()[path]))
    except ValueError as error:
        raise SettingsError(f"cannot use the configuration: {path}: {error}") from error


def _at(tree: Tree, path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        child = tree.get(parent)
        if child is None:
            child = tree[parent] = {}
        elif not isinstance(child, dict):
            return  # an error of the file, which `convert` then names
        tree = child
    tree[last] = value


def _value(text: str, kind: object) -> object:
    """Return what *text* means for a key of type *kind*: YAML, but text stays text."""
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, str | Duration)):
        return text
    if get_origin(kind) is tuple and not text.lstrip().startswith("["):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        numbers = all(isinstance(each, int) for each in get_args(get_args(kind)[0]) or ("",))
        return [parse(part) for part in parts] if numbers else parts
    return parse(text)


def _without_empty(tree: Mapping[Any, Any], prefix: str = "") -> Tree:
    """Leave out sections without a value, such as those whose keys are all commented out."""
    return {
        key: _without_empty(value, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None or f"{prefix}{key}" not in _SECTIONS
    }


def variable(path: str) -> str:
    """Return the name of the environment variable that sets the key at *path*."""
    return _PREFIX + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path).replace(".", "_").upper()


def _is_service_link(name: str, text: str) -> bool:
    return _SERVICE_LINK.fullmatch(name) is not None or (
        name.endswith("_PORT") and _SERVICE_URL.fullmatch(text) is not None
    )


def _hint(name: str, known: Iterable[str]) -> str:
    import difflib  # noqa: PLC0415 - only where a key is wrong

    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no such key; did you mean {near[0]}?" if near else "there is no such key"


def _wrong(given: object, kind: object, path: str) -> str:
    """Return what is wrong first in *given*, with its key; empty where it is of *kind*.

    *path* is where it stands. An error of msgspec's is shown and never read: it has text of the
    file in it, which may look like its own.
    """
    told = ""
    if is_section(kind) and isinstance(given, dict):
        kinds = forms(kind)
        for key, value in given.items():
            full = ".".join(filter(None, (path, printable(str(key), MOST_SHOWN))))
            known = (f"{path}.{each}" for each in kinds)
            told = _wrong(value, kinds[key], full) if key in kinds else _unknown(full, known)
            if told:
                return told
    elif get_origin(kind) is tuple and isinstance(given, list | tuple | set):
        for place, each in enumerate(given):
            if told := _wrong(each, get_args(kind)[0], f"{path}[{place}]"):
                return told
    try:
        msgspec.convert(given, kind, dec_hook=_duration)
    except ValueError as error:
        return f"{path or 'the top level'}: {_expected(given, kind) or error}{_choices(kind)}"
    return ""


def _unknown(path: str, known: Iterable[str]) -> str:
    if path == "sharing.mps":
        return f"{path}: {NO_MPS.why}"
    return f"{path}: {_hint(path, [*known, *known_paths(), *_SECTIONS])}"


def _expected(given: object, kind: object) -> str:
    """Return the form that text is to have; empty where *given* is none, or *kind* has no form."""
    if not isinstance(given, str) or get_origin(kind) is tuple:
        return ""
    form = next((each for each in made_of(kind) if isinstance(each, msgspec.Meta)), None)
    got = printable(repr(given), MOST_SHOWN)
    return f"expected {form.description}, got {got}" if form and form.description else ""


def _choices(kind: object) -> str:
    """Return the values that a key, or each entry of its list, can have; empty where any can."""
    values = next((get_args(each) for each in made_of(kind) if get_origin(each) is Literal), ())
    return f"; use {' or '.join(str(each) for each in values if each != '')}" if values else ""


def _duration(kind: type, given: object) -> object:
    if issubclass(kind, Duration):
        return kind.parse(given)
    raise NotImplementedError(f"cannot read a {kind.__name__}")


_SECTIONS = frozenset(
    path.rsplit(".", depth)[0] for path in known_paths() for depth in range(1, path.count(".") + 1)
)
"""The path of each section, as ``kubelet.question``."""
