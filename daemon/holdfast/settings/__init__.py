"""The settings as one frozen value: from a YAML file, the environment and flags."""

from holdfast.settings.schema import schema
from holdfast.settings.sections import Settings
from holdfast.settings.sources import convert, known_paths, variable
from holdfast.settings.types import plain

__all__ = ["Settings", "convert", "known_paths", "plain", "schema", "variable"]
