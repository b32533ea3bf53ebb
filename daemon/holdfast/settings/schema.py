"""The JSON schema of the settings, from the same types that read them."""

import ast
import inspect
import re
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, cast

import msgspec
from msgspec import NODEFAULT, Meta

from holdfast.settings.sections import Settings
from holdfast.settings.types import PATTERN, Duration, Interval, Section, entry_of, is_section


def schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a configuration file, with defaults and descriptions."""
    found = msgspec.json.schema(_writable(Settings), schema_hook=_of_duration)
    text = msgspec.json.encode(found).replace(rb'\\Z"', b'$"')  # Python's end of text
    return cast("dict[str, Any]", msgspec.json.decode(text))


def meanings(section: type[Section]) -> dict[str, str]:
    """Return what stands below each field of *section* in the source, in one line each."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: one_line(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def one_line(text: str) -> str:
    """Return *text* without its line breaks and indents."""
    return re.sub(r"\s+", " ", text).strip()


def _writable(section: type[Section]) -> type[msgspec.Struct]:
    """Return *section* with defaults that msgspec can write: it knows no hook for a Duration's."""
    texts = meanings(section)
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(section):
        kind, default = field.type, field.default
        if is_section(kind):
            kind = _writable(kind)
            default = msgspec.field() if field.required else msgspec.field(default_factory=kind)
        elif (entry := entry_of(kind)) is not None:
            kind = tuple[_writable(entry), ...]  # type: ignore[misc]
        elif isinstance(default, Duration):
            kind = Annotated[kind, Meta(extra_json_schema={"default": float(default)})]
            default = msgspec.field(default_factory=partial(Duration, default))
        elif default is NODEFAULT:
            default = msgspec.field()
        if field.name in texts:
            kind = Annotated[kind, Meta(description=texts[field.name])]
        fields.append((field.name, kind, default))
    return msgspec.defstruct(
        section.__name__.removesuffix("Settings") or section.__name__,
        fields,
        bases=(Section,),
        namespace={"__doc__": one_line(section.__doc__ or "")},
        frozen=True,
        kw_only=True,
    )


def _of_duration(kind: type) -> dict[str, Any]:
    if not issubclass(kind, Duration):
        raise NotImplementedError(f"cannot describe a {kind.__name__}")
    above = issubclass(kind, Interval)
    text: dict[str, Any] = {"type": "string", "pattern": f"^({PATTERN})$"}
    if above:
        text["not"] = {"pattern": "^[^1-9]*$"}
    bound = "exclusiveMinimum" if above else "minimum"
    return {"anyOf": [{"type": "number", bound: 0}, text]}
