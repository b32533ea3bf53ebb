"""What several commands share: options, settings, and how to ask the daemon."""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.tables import say
from holdfast.errors import HoldfastError, SettingsError
from holdfast.names import CONTROL_SOCKET

if TYPE_CHECKING:  # loading it takes as long as all else of --help
    from holdfast.settings import Settings


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
    help="The configuration file (YAML).",
)
with_set = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_overrides,
    help="Set one setting, such as gate.wait=10s. Repeatable.",
)
with_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table for people, or JSON for programs.",
)
with_state = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The daemon's state folder. Default: stateDir of the settings.",
)


def with_folder(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --config and --state-dir to *command*, which gets the state folder as `folder`."""

    @functools.wraps(command)
    def found(
        *,
        config: Path | None,
        state_dir: Path | None,
        **options: Any,  # noqa: ANN401 - click's
    ) -> Any:  # noqa: ANN401 - click's
        folder = _state_folder(config) if state_dir is None else state_dir
        return command(folder=folder, **options)

    return with_config(with_state(found))


def _state_folder(config: Path | None) -> Path:
    """Return stateDir of the settings, also of those that the running daemon cannot take up."""
    from holdfast.settings.sources import state_folder  # noqa: PLC0415 - as in load_settings

    try:
        return Path(load_settings(config, {}).state_dir)
    except SettingsError as error:
        folder = state_folder(config, os.environ)
        if not (folder / CONTROL_SOCKET).exists():
            raise
        say(f"{error}; asking the daemon that runs with the former one", error=True)
        return folder


def load_settings(
    config: Path | None,
    overrides: dict[str, str],
    *,
    theirs: Mapping[str, str] | None = None,
    told: Callable[[str], None] = lambda _text: None,
    ask_label: Callable[["Settings"], None] | None = None,
) -> "Settings":
    """Return the settings of *config*, the environment and *overrides*; raise SettingsError.

    *theirs* are flags of NVIDIA's plugin; *overrides* win over them. *told* is called with each
    key of its file that has no effect, *ask_label* where the node's label was never read.
    """
    from holdfast.settings import load  # noqa: PLC0415 - --help and --state-dir do without

    # HOLDFAST_CONFIG names the file and is not a setting.
    environ = {key: value for key, value in os.environ.items() if key != "HOLDFAST_CONFIG"}
    return load(config, environ, overrides, theirs=theirs, told=told, ask_label=ask_label)


def ask_daemon(
    folder: Path,
    question: str,
    read: Callable[[str], Any] | None = None,
    **details: Any,  # noqa: ANN401 - JSON
) -> Any:  # noqa: ANN401 - JSON
    """Return the daemon's answer, or the answer of *read* when the daemon is down."""
    from holdfast.control import ask  # noqa: PLC0415 - --help does without

    try:
        return ask(folder, question, **details)
    except OSError as error:
        problem = f"cannot reach the daemon in {folder}: {error.strerror or error}"
        if read is None or not isinstance(error, (ConnectionError, FileNotFoundError)):
            advice = "check that it runs and that this is its state folder (--state-dir)"
            raise HoldfastError(f"{problem}; {advice}") from error
    say(f"{problem}; reading its ledger file instead", error=True)
    return read(problem)
