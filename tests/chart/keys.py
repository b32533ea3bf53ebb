"""Every key of the settings with what its type says of it and what stands below it in the source."""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from holdfast.settings import Settings
from holdfast.settings.duration import Duration, Interval
from holdfast.settings.section import Section


class Key(Struct, frozen=True, kw_only=True):
    """One key: its place, what it takes, its default as JSON, and what it is for."""

    path: str
    kind: str
    default: object
    meaning: str


class Group(Struct, frozen=True, kw_only=True):
    """A section, or one entry of a list of sections: its path, what it is about, its own keys."""

    path: str
    about: str
    keys: tuple[Key, ...]


def groups(section: type[Section] = Settings, path: str = "") -> Iterator[Group]:
    """Yield *section* and each one below it, in the order of the source."""
    hints, meanings = get_type_hints(section, include_extras=True), _below(section)
    keys: list[Key] = []
    below: list[tuple[type[Section], str]] = []
    for field in msgspec.structs.fields(section):
        kind, here = hints[field.name], f"{path}{field.encode_name}"
        if isinstance(kind, type) and issubclass(kind, Section):
            below.append((kind, f"{here}."))
            continue
        entry = _entry(kind)
        if entry is not None:
            below.append((entry, f"{here}[]."))
        meaning = meanings.get(field.name, "")
        keys.append(
            Key(path=here, kind=_words(kind), default=_default(field), meaning=_one_line(meaning))
        )
    about = _one_line(inspect.getdoc(section) or "")
    yield Group(path=path.rstrip("."), about=about, keys=tuple(keys))
    for each, prefix in below:
        yield from groups(each, prefix)


def _below(section: type[Section]) -> dict[str, str]:
    """Return the text below each field in the source: no library keeps it."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _entry(kind: object) -> type[Section] | None:
    """Return the section that each entry of a list is, where it is one."""
    first = next(iter(get_args(kind)), None)
    return first if isinstance(first, type) and issubclass(first, Section) else None


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.required:
        return None
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return json.loads(json.dumps(msgspec.to_builtins(value, enc_hook=float)))


def _words(kind: Any) -> str:
    """Say what a value of *kind* may be."""
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(kind))
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return "list, see below" if _entry(kind) else f"list of {_words(inner)}"
    if isinstance(kind, type) and issubclass(kind, Duration):
        return "duration above zero" if issubclass(kind, Interval) else "duration"
    names = {str: "text", bool: "`true` or `false`"}
    if kind in names:
        return names[kind]
    bounds = next((each for each in _flat(kind) if isinstance(each, msgspec.Meta)), None)
    if bounds is None or int not in _flat(kind):
        raise NotImplementedError(f"cannot say what a {kind} is")
    most = "" if bounds.le is None else f" to {bounds.le}"
    none = " or nothing" if type(None) in get_args(kind) else ""
    return f"whole number from {bounds.ge}{most}{none}"


def _flat(kind: object) -> list[object]:
    """Return *kind* and all that it is made of."""
    below = [*get_args(kind), *getattr(kind, "__metadata__", ())]
    return [kind, *(deep for each in below for deep in _flat(each))]


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()
