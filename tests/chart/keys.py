"""Every key of the settings with what its type says of it and what stands below it in the source."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from holdfast.settings import Settings
from holdfast.settings.schema import meanings, one_line
from holdfast.settings.types import Duration, Interval, Section, entry_of


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
    hints, texts = get_type_hints(section, include_extras=True), meanings(section)
    keys: list[Key] = []
    below: list[tuple[type[Section], str]] = []
    for field in msgspec.structs.fields(section):
        kind, here = hints[field.name], f"{path}{field.encode_name}"
        if isinstance(kind, type) and issubclass(kind, Section):
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
        return "list, see below" if entry_of(kind) else f"list of {_words(inner)}"
    if isinstance(kind, type) and issubclass(kind, Duration):
        return "duration above zero" if issubclass(kind, Interval) else "duration"
    names = {
        str: "text",
        bool: "`true` or `false`",
        str | None: "text or nothing",
        str | int | None: "text, whole number or nothing",
    }
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
