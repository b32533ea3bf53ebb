"""The settings as a command reads them, in one call."""

from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.settings import Settings
from holdfast.settings.sources import SettingsSources


def load(
    file: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
    *,
    theirs: Mapping[str, str] | None = None,
    told: Callable[[str], None] = lambda _text: None,
) -> Settings:
    """Return the settings of `SettingsSources`, with the document of the remembered label."""
    found = SettingsSources(file, environ, overrides, theirs=theirs).with_remembered_label()
    for each in found.ineffective:
        told(each)
    return found.settings
