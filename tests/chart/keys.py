"""Every key of the settings with what its type says of it and what stands below it in the source."""

import json
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from holdfast.settings import Settings
from holdfast.settings.schema import meanings, one_line
from holdfast.settings.types import (
    Duration,
    Interval,
    Section,
    entry_of,
    forms,
    is_section,
    made_of,
)

_PLAIN: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    bool: "`true` or `false`",
    type(None): "nothing",
    Duration: "duration",
    Interval: "duration above zero",
}


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
    kinds, texts = forms(section), meanings(section)
    keys: list[Key] = []
    below: list[tuple[type[Section], str]] = []
    for field in msgspec.structs.fields(section):
        kind, here = kinds[field.encode_name], f"{path}{field.encode_name}"
        if is_section(kind):
            below.append((kind, f"{here}."))
            continue
        entry = entry_of(kind)
        if entry is not None:
            below.append((entry, f"{here}[]."))
        keys.append(
            Key(
                path=here,
                kind=_words(kind),
                default=_default(field),
                meaning=texts[field.name],
            )
        )
    about = one_line(section.__doc__ or "")
    yield Group(path=path.rstrip("."), about=about, keys=tuple(keys))
    for each, prefix in below:
        yield from groups(each, prefix)


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
        of = "of" if inner is str or get_origin(inner) is Literal else "in which each is"
        return "list, see below" if entry_of(kind) else f"list {of} {_words(inner)}"
    if get_origin(kind) in {Union, UnionType}:
        *most, last = map(_words, get_args(kind))
        return f"{', '.join(most)} or {last}"
    if kind in _PLAIN:
        return _PLAIN[kind]
    (form,) = (each for each in made_of(kind) if isinstance(each, msgspec.Meta))
    bound = "" if form.le is None else f" to {form.le}"
    return form.description or f"whole number from {form.ge}{bound}"
