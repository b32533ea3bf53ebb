"""What several commands share: options, settings, and how to ask the daemon."""

import contextlib
import functools
import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.tables import PROGRAMS, say
from holdfast.errors import HoldfastError, SettingsError
from holdfast.names import CONTROL_SOCKET

if TYPE_CHECKING:  # loading it takes as long as all else of --help
    from holdfast.settings.sources import SettingsSources


_BEAT = 2.0
_REST = 10
"""A view is drawn again after so many seconds, or after so many times what it took to make it."""


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
    type=click.Choice(["wide", "json", "yaml"]),
    help="wide: everything, in full; json, yaml: for programs. "
    "Default: a short form for people (config: YAML; debug: JSON).",
)
with_state = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The daemon's state folder. Default: stateDir of the settings.",
)


def example(line: str) -> str:
    """Return the end of a command's help: *line* is an example of it."""
    return f"\b\nExample:\n  {line}"


def with_watch(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --watch to *command*, which is then run again and again until Ctrl-C."""

    @functools.wraps(command)
    def watched(
        *,
        watch: bool,
        output: str | None,
        **options: Any,  # noqa: ANN401 - click's
    ) -> None:
        show = functools.partial(command, output=output, **options)
        if not watch:
            show()
        elif output in PROGRAMS:
            raise click.UsageError("--watch is for people: it does not go with -o json or -o yaml")
        else:
            _follow(show)

    return click.option(
        "-w", "--watch", is_flag=True, help="Show it again and again until Ctrl-C."
    )(watched)


class _Screen(io.StringIO):
    """Takes what a command prints, as the terminal would where there is one."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """Tell whether what is taken goes to a terminal."""
        return self._terminal


def _follow(show: Callable[[], None]) -> None:
    """Draw what *show* prints on one screen, again and again; print it where no terminal is."""
    terminal = sys.stdout.isatty()
    begin, end = ("\x1b[?7l\x1b[2J", "\x1b[?7h") if terminal else ("", "")
    try:
        sys.stdout.write(begin)  # without line wrap, so that a line takes one line
        while True:
            began = time.monotonic()
            drawn = _drawn(show, terminal=terminal)
            if terminal:
                lines = drawn.splitlines()[: os.get_terminal_size(sys.stdout.fileno()).lines - 1]
                drawn = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
            sys.stdout.write(drawn)
            sys.stdout.flush()
            time.sleep(max(_BEAT, _REST * (time.monotonic() - began)))
    except KeyboardInterrupt:
        return
    finally:
        sys.stdout.write(end)


def _drawn(show: Callable[[], None], *, terminal: bool) -> str:
    """Return what *show* prints; an error is a part of it: the daemon may be back soon."""
    screen = _Screen(terminal=terminal)
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        try:
            show()
        except click.exceptions.Exit:  # a status that is not well
            pass
        except HoldfastError as error:
            say(f"holdfast: {error}", error=True)
    return screen.getvalue()


def with_folder(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the settings to *command*, which gets the state folder as `folder`."""

    @functools.wraps(command)
    def found(
        *,
        config: Path | None,
        changes: dict[str, str],
        state_dir: Path | None,
        **options: Any,  # noqa: ANN401 - click's
    ) -> Any:  # noqa: ANN401 - click's
        folder = _state_folder(config, changes) if state_dir is None else state_dir
        return command(folder=folder, **options)

    return with_config(with_set(with_state(found)))


def with_view(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --watch, what `with_folder` adds, and --output to *command*, which shows something."""
    return with_watch(with_folder(with_output(command)))


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same options to *command*, which gets the file as `config` and all keys to change.

    --state-dir is one of these `changes`.
    """

    @functools.wraps(command)
    def found(
        *,
        changes: dict[str, str],
        state_dir: Path | None,
        **options: Any,  # noqa: ANN401 - click's
    ) -> Any:  # noqa: ANN401 - click's
        named = {} if state_dir is None else {"stateDir": str(state_dir.absolute())}
        return command(changes=changes | named, **options)

    return with_config(with_set(with_state(found)))


def _state_folder(config: Path | None, changes: dict[str, str]) -> Path:
    """Return stateDir of the settings, also of those that the running daemon cannot take up."""
    from holdfast.settings.sources import state_folder  # noqa: PLC0415 - as in settings_sources

    try:
        return Path(settings_sources(config, changes).own.state_dir)
    except SettingsError as error:
        folder = state_folder(config, os.environ)
        if changes or not (folder / CONTROL_SOCKET).exists():
            raise
        say(f"{error}; asking the daemon that runs with the former one", error=True)
        return folder


def settings_sources(
    config: Path | None,
    overrides: dict[str, str],
    *,
    theirs: Mapping[str, str] | None = None,
) -> "SettingsSources":
    """Return what the settings are made of; raise SettingsError.

    *theirs* are flags of NVIDIA's plugin; *overrides* win over them.
    """
    from holdfast.settings.sources import SettingsSources  # noqa: PLC0415 - --help and --state-dir do without

    # HOLDFAST_CONFIG names the file and is not a setting.
    environ = {key: value for key, value in os.environ.items() if key != "HOLDFAST_CONFIG"}
    return SettingsSources(config, environ, overrides, theirs=theirs)


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
    except TimeoutError as error:
        problem = f"cannot ask the daemon in {folder}: it runs and does not answer"
        raise HoldfastError(f"{problem}; see its log") from error
    except OSError as error:
        problem = f"cannot reach the daemon in {folder}: {error.strerror or error}"
        if read is None or not isinstance(error, (ConnectionError, FileNotFoundError)):
            advice = "check that it runs and that this is its state folder (--state-dir)"
            raise HoldfastError(f"{problem}; {advice}") from error
    say(f"{problem}; reading its ledger file instead", error=True)
    return read(problem)
