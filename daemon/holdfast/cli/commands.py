"""The commands. Each imports what only it needs when it runs, so that asking is fast."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

import holdfast
from holdfast.cli.tables import Row, Rows, check_line, drift_line, show, table
from holdfast.control import ask
from holdfast.errors import HoldfastError
from holdfast.settings import Settings, load, plain, schema

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for an error with a reader, 2 for wrong usage."""
    try:
        code = commands(args=arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(holdfast.__version__, prog_name="holdfast")
def commands() -> None:
    """Grant accelerators to one pod at a time, and prove them free."""


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


_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="HOLDFAST_CONFIG",
    help="The YAML file with the settings.",
)
_set = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_overrides,
    help="Change one setting, such as gate.wait=10s; may be given more than once.",
)
_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people or programs.",
)
_state = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The state folder of the daemon to ask; otherwise that of the settings.",
)


@commands.command()
@_config
@_set
@click.option(
    "--state-dir",
    type=click.Path(resolve_path=True),
    help="Where the ledger is kept (stateDir).",
)
@click.option("--http-port", help="The port of probes and metrics; 0 for none (http.port).")
@click.option("--log-level", help="debug, info, warning or error (log.level).")
def run(
    config: Path | None,
    changes: dict[str, str],
    state_dir: str | None,
    http_port: str | None,
    log_level: str | None,
) -> None:
    """Run the daemon until SIGTERM."""
    named = {"stateDir": state_dir, "http.port": http_port, "log.level": log_level}
    given = {path: text for path, text in named.items() if text is not None}
    settings = _load(config, changes | given)
    import asyncio  # noqa: PLC0415 - no other command needs these

    from holdfast.app.daemon import run as run_daemon  # noqa: PLC0415
    from holdfast.telemetry.logs import set_up_logs  # noqa: PLC0415

    set_up_logs(settings.log.level, settings.log.format)
    asyncio.run(run_daemon(settings))


@commands.command("config")
@_config
@_set
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON schema of the file.")
def show_config(config: Path | None, changes: dict[str, str], *, as_schema: bool) -> None:
    """Check the settings, and print all of them with their values."""
    if as_schema:
        click.echo(json.dumps(schema(), indent=2))
        return
    settings = _load(config, changes)
    click.echo(yaml.safe_dump(plain(settings), sort_keys=False), nl=False)


@commands.command()
@_config
@_state
@_output
def status(config: Path | None, state_dir: Path | None, output: str) -> None:
    """Say whether everything is registered, readable and seen; exit 1 when something is not."""
    folder = _folder(config, state_dir)

    def read(problem: str) -> Row:
        from holdfast.cli import down  # noqa: PLC0415 - SQLite only when it is needed

        return down.status(folder, problem)

    report: Row = _ask(folder, "status", read)
    if output == "json":
        click.echo(json.dumps(report, indent=2))
    else:
        if report["pid"] is not None:
            click.echo(f"holdfast {report['version']}, pid {report['pid']}")
        click.echo(table(report["resources"], ["name", "devices", "healthy", "offered", "locked"]))
        for check in report["checks"]:
            click.echo(check_line(check))
        for each in report["drift"]:
            click.echo(drift_line(each))
    if not all(check["passes"] for check in report["checks"]):
        raise click.exceptions.Exit(1)


@commands.command()
@_config
@_state
@_output
def devices(config: Path | None, state_dir: Path | None, output: str) -> None:
    """List the devices: health, lock, pod."""
    folder = _folder(config, state_dir)

    def read(_problem: str) -> Rows:
        from holdfast.cli import down  # noqa: PLC0415 - as above

        return down.devices(folder)

    rows: Rows = _ask(folder, "devices", read)
    columns = ["resource", "id", "model", "health", "offered", "numa", "lock", "pod", "reasons"]
    show(rows, columns, output)


@commands.command()
@_config
@_state
@_output
def locks(config: Path | None, state_dir: Path | None, output: str) -> None:
    """List who has what, since when, and who waits."""
    folder = _folder(config, state_dir)

    def read(_problem: str) -> Rows:
        from holdfast.cli import down  # noqa: PLC0415 - as above

        return down.locks(folder)

    rows: Rows = _ask(folder, "locks", read)
    show(rows, ["device", "state", "pod", "podName", "since", "fence", "reason"], output)


@commands.command()
@_config
@_state
@_output
def holders(config: Path | None, state_dir: Path | None, output: str) -> None:
    """Look now which processes hold devices; needs the daemon, which may see them all."""
    rows: Rows = _ask(_folder(config, state_dir), "holders")
    show(rows, ["device", "pid", "command", "uid", "grips", "pod", "container", "cause"], output)


@commands.command()
@click.argument("device", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many moves at the most.",
)
@_config
@_state
@_output
def history(
    device: str | None, limit: int, config: Path | None, state_dir: Path | None, output: str
) -> None:
    """Tell the story of DEVICE, or of all: each move of a lock, and what had been seen."""
    folder = _folder(config, state_dir)

    def read(_problem: str) -> Rows:
        from holdfast.cli import down  # noqa: PLC0415 - as above

        return down.history(folder, device, limit)

    rows: Rows = _ask(folder, "history", read, device=device, limit=limit)
    show(rows, ["at", "device", "from", "to", "pod", "fence", "evidence"], output)


@commands.command()
@click.option("--keep", is_flag=True, help="Leave everything running, to look around.")
def demo(*, keep: bool) -> None:
    """Show the main job on a simulated node: no root, no hardware."""
    from holdfast.demo.story import main as tell  # noqa: PLC0415 - no other command needs it

    raise click.exceptions.Exit(tell(keep=keep))


def _load(config: Path | None, overrides: dict[str, str]) -> Settings:
    # HOLDFAST_CONFIG names the file; it is no setting in it.
    environ = {key: value for key, value in os.environ.items() if key != "HOLDFAST_CONFIG"}
    return load(config, environ, overrides)


def _folder(config: Path | None, state_dir: Path | None) -> Path:
    return state_dir if state_dir is not None else Path(_load(config, {}).state_dir)


def _ask(
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
    click.echo(f"{problem}; reading the ledger there instead", err=True)
    return read(problem)
