"""The JSON schema of the settings, from the same types that read them."""

from functools import partial
from typing import Annotated, Any, cast, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta

from holdfast.settings.duration import PATTERN, Duration, Interval
from holdfast.settings.section import Section
from holdfast.settings.sections import Settings


def schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a configuration file, defaults included."""
    found = msgspec.json.schema(_writable(Settings), schema_hook=_of_duration)
    return cast("dict[str, Any]", msgspec.json.decode(msgspec.json.encode(found)))


def _writable(section: type[Section]) -> type[msgspec.Struct]:
    """Return *section* with defaults that msgspec can write: it knows no hook for a Duration's."""
    hints = get_type_hints(section, include_extras=True)
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(section):
        kind, default = hints[field.name], field.default
        if isinstance(kind, type) and issubclass(kind, Section):
            kind = _writable(kind)
            default = msgspec.field(default_factory=kind)
        elif isinstance(default, Duration):
            kind = Annotated[kind, Meta(extra_json_schema={"default": float(default)})]
            default = msgspec.field(default_factory=partial(Duration, default))
        elif default is NODEFAULT:
            default = msgspec.field()
        fields.append((field.name, kind, default))
    return msgspec.defstruct(
        section.__name__,
        fields,
        bases=(Section,),
        namespace={"__doc__": section.__doc__},
        frozen=True,
        kw_only=True,
    )


def _of_duration(kind: type) -> dict[str, Any]:
    if not issubclass(kind, Duration):
        raise NotImplementedError(f"cannot describe a {kind.__name__}")
    bound = "exclusiveMinimum" if issubclass(kind, Interval) else "minimum"
    return {
        "anyOf": [
            {"type": "number", bound: 0},
            {"type": "string", "pattern": f"^({PATTERN})$"},
        ]
    }
