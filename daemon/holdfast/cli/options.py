"""What several commands share: their options, the settings, and the way to the daemon."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from holdfast.cli.tables import say
from holdfast.control import ask
from holdfast.errors import HoldfastError
from holdfast.settings import Settings, load


def _overrides(
    _context: click.Context, _option: click.Parameter, changes: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise click.BadParameter(f"{change!r} is not of the form KEY=VALUE")
        found[key.strip()] = value
    return found


with_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="HOLDFAST_CONFIG",
    help="The YAML file with the settings.",
)
with_set = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_overrides,
    help="Change one setting, such as gate.wait=10s; may be given more than once.",
)
with_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people or programs.",
)
with_state = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The state folder of the daemon to ask; otherwise that of the settings.",
)


def load_settings(
    config: Path | None,
    overrides: dict[str, str],
    *,
    theirs: Mapping[str, str] | None = None,
    told: Callable[[str], None] = lambda _text: None,
) -> Settings:
    """Return the settings of *config*, the environment and *overrides*; raise SettingsError.

    *theirs* are flags of NVIDIA's plugin, over which ours win. *told* hears of what its file says
    to no effect.
    """
    # HOLDFAST_CONFIG names the file; it is no setting in it.
    environ = {key: value for key, value in os.environ.items() if key != "HOLDFAST_CONFIG"}
    return load(config, environ, overrides, theirs=theirs, told=told)


def state_folder(config: Path | None, state_dir: Path | None) -> Path:
    """Return the state folder: the one that was named, else that of the settings."""
    return state_dir if state_dir is not None else Path(load_settings(config, {}).state_dir)


def ask_daemon(
    folder: Path,
    question: str,
    read: Callable[[str], Any] | None = None,
    **details: Any,  # noqa: ANN401 - JSON
) -> Any:  # noqa: ANN401 - JSON
    """Return the daemon's answer; when it is down, what *read* finds out without it."""
    try:
        return ask(folder, question, **details)
    except OSError as error:
        problem = f"cannot ask the daemon in {folder}: {error.strerror or error}"
        if read is None or not isinstance(error, (ConnectionError, FileNotFoundError)):
            advice = "is it running, and is this its state folder (--state-dir)?"
            raise HoldfastError(f"{problem}; {advice}") from error
    say(f"{problem}; reading the ledger there instead", error=True)
    return read(problem)
