"""Reads the settings from a YAML file, the environment and flags; a later source wins."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec

from holdfast.errors import SettingsError
from holdfast.settings.checks import problems
from holdfast.settings.named import chosen_document, follows_label, remembered_label
from holdfast.settings.nvidia_plugin import (
    CONFIG_FILE,
    NO_MPS,
    from_environment,
    from_file,
    from_flags,
)
from holdfast.settings.sections import Settings
from holdfast.settings.types import Duration, Section, entry_of
from holdfast.settings.yamltext import parse, read_mapping

_PREFIX = "HOLDFAST_"
# Kubernetes gives each container variables of its namespace's Services; one may be named holdfast.
_SERVICE_LINK = re.compile(
    r"HOLDFAST_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.+")

_THEIRS = frozenset({"version", "flags"})
"""By one of these keys a document is known to be of NVIDIA's format."""
_FILES_ALONE = frozenset({"named", "stateDir"})

Tree = dict[str, Any]


def load(
    file: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
    *,
    theirs: Mapping[str, str] | None = None,
    told: Callable[[str], None] = lambda _text: None,
    ask_label: Callable[[Settings], None] | None = None,
) -> Settings:
    """Return the settings of *file*, changed by variables, then by *overrides*.

    Variables are those of NVIDIA's plugin that mean the same, and HOLDFAST_…, which win over them.
    *overrides* are by path, such as ``gate.wait``; *theirs* are flags of NVIDIA's plugin by name.
    Its own file is read where one is named; *told* is called with a text for each key in it that
    has no effect. A document that `named` has for this node wins over the files;
    *ask_label* is called, with what is known without it, where the node's label was never read.
    Raises SettingsError with the path of the key.
    """
    theirs = theirs or {}
    paths = known_paths()
    tree = _nvidias_file(_theirs_named(environ, theirs), paths, told)
    if file is not None:
        tree = _over(tree, read_mapping(file))
    changes = partial(_change, environ=environ, theirs=theirs, overrides=overrides or {})
    plainly = changes(tree)
    first = _understood(plainly)
    if ask_label is not None and follows_label(first) and remembered_label(first.state_dir) is None:
        ask_label(first)
    document = chosen_document(first.named, first.state_dir)
    if document is None:
        return convert(plainly)
    try:
        return convert(changes(_over(tree, _document(document, paths, told))))
    except SettingsError as error:
        raise SettingsError(f"{error} (with the document {document})") from error


def _change(
    tree: Tree,
    *,
    environ: Mapping[str, str],
    theirs: Mapping[str, str],
    overrides: Mapping[str, str],
) -> Tree:
    """Return *tree* with what variables, flags of NVIDIA's plugin and *overrides* set."""
    tree, paths = copy.deepcopy(tree), known_paths()
    for path, text in from_environment(environ).items():
        _put(tree, path, text, paths)
    by_variable = {variable(path): path for path in paths}
    for name, text in environ.items():
        if not name.startswith(_PREFIX) or _is_service_link(name, text):
            continue
        if name not in by_variable:
            hint = _hint(name, by_variable)
            raise SettingsError(f"cannot use the environment variable {name}: {hint}")
        _put(tree, by_variable[name], text, paths)
    for path, text in (from_flags(theirs) | dict(overrides)).items():
        if path not in paths:
            raise SettingsError(f"cannot set {path}: {_hint(path, paths)}")
        _put(tree, path, text, paths)
    return tree


def files(
    file: Path | None, environ: Mapping[str, str], theirs: Mapping[str, str]
) -> tuple[Path, ...]:
    """Return the files that `load` reads."""
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
    try:
        return msgspec.convert(_without_empty(tree), Settings, dec_hook=_duration)
    except msgspec.ValidationError as error:
        raise SettingsError(f"cannot use the configuration: {_explain(str(error))}") from error


def plain(settings: Settings) -> Tree:
    """Return *settings* as plain values for YAML and JSON; `convert` reads them again."""
    return cast("Tree", msgspec.to_builtins(settings, enc_hook=float))


def known_paths(struct: type[Section] = Settings, prefix: str = "") -> dict[str, object]:
    """Return the path of each single key, such as ``gate.wait``, with its type."""
    hints = get_type_hints(struct)
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(struct):
        path, kind = prefix + field.encode_name, hints[field.name]
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= known_paths(kind, f"{path}.")
        else:
            found[path] = kind
    return found


def _nvidias_file(name: str, paths: Mapping[str, object], told: Callable[[str], None]) -> Tree:
    return _theirs(read_mapping(Path(name)), name, paths, told) if name else {}


def _theirs(
    content: Tree, name: str, paths: Mapping[str, object], told: Callable[[str], None]
) -> Tree:
    """Return what the *content* of a file of NVIDIA's format sets."""
    tree: Tree = {}
    read = from_file(content, name)
    for path, text in read.found.items():
        _put(tree, path, text, paths)
    for each in read.ignored:
        told(each)
    return tree


def _document(file: Path, paths: Mapping[str, object], told: Callable[[str], None]) -> Tree:
    content = read_mapping(file)
    if not _THEIRS.isdisjoint(content):
        return _theirs(content, str(file), paths, told)
    if misplaced := sorted(_FILES_ALONE & content.keys()):
        raise SettingsError(
            f"cannot use {file}: {misplaced[0]} is the same for every document; put it in the file "
            "of --config"
        )
    return content


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


def _put(tree: Tree, path: str, text: str, paths: Mapping[str, object]) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        child = tree.get(parent)
        if child is None:
            child = tree[parent] = {}
        elif not isinstance(child, dict):
            return  # an error of the file, which `convert` then names
        tree = child
    tree[last] = _value(text, paths[path])


def _value(text: str, kind: object) -> object:
    """Return what *text* means for a key of type *kind*: YAML, but text stays text."""
    if kind is str or get_origin(kind) is Literal:
        return text
    if isinstance(kind, type) and issubclass(kind, Duration):
        return text
    if get_origin(kind) is tuple and not text.lstrip().startswith("["):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        numbers = all(isinstance(each, int) for each in get_args(get_args(kind)[0]) or ("",))
        return [parse(part) for part in parts] if numbers else parts
    try:
        return parse(text)
    except ValueError:
        return text


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


def _explain(text: str) -> str:
    """Return msgspec's message with the path of the key, and which key may be meant."""
    what, _, where = text.partition(" - at `")
    if where.startswith("key`"):
        return "a key is not text: YAML reads numbers, on, off, yes and no as other types; quote it"
    path = where.rstrip("`").removeprefix("$").removeprefix(".")
    unknown = re.fullmatch(r"Object contains unknown field `(?P<key>.*)`", what)
    if unknown is None:
        known = _choices(path) if what.startswith("Invalid enum value") else ()
        use = f"; use {' or '.join(map(str, known))}" if known else ""
        return f"{path or 'the top level'}: {what}{use}"
    full = f"{path}.{unknown['key']}" if path else unknown["key"]
    if full == "sharing.mps":
        return f"{full}: {NO_MPS.why}"
    return f"{full}: {_hint(full, [*_children(path), *known_paths(), *_SECTIONS])}"


def _choices(path: str) -> tuple[object, ...]:
    """Return the values that a key, or each entry of its list, can have; none where any can."""
    kind = known_paths().get(re.sub(r"\[.*\]$", "", path))
    kinds = (kind, *get_args(kind))
    return next((get_args(each) for each in kinds if get_origin(each) is Literal), ())


def _children(path: str) -> list[str]:
    """Return the keys of the entry of a list that *path* is in; none where it is in no list."""
    name, _, number = path.partition("[")
    entry = entry_of(known_paths().get(name))
    if entry is None or not number:
        return []
    return [f"{name}[{number.partition(']')[0]}].{key}" for key in known_paths(entry)]


def _duration(kind: type, given: object) -> object:
    if issubclass(kind, Duration):
        return kind.parse(given)
    raise NotImplementedError(f"cannot read a {kind.__name__}")


_SECTIONS = frozenset(
    path.rsplit(".", depth)[0] for path in known_paths() for depth in range(1, path.count(".") + 1)
)
"""The path of each section, as ``kubelet.question``."""
