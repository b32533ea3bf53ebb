"""What all sections of the settings share."""

import msgspec


class Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The rules that all sections share: unknown keys are refused, names are camelCase."""
