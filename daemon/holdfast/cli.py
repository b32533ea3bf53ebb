"""The command line: runs the daemon, and shows people and programs what it knows."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

import holdfast
from holdfast.control import ask
from holdfast.errors import HoldfastError
from holdfast.settings import Settings, load, plain

Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 for an error with a reader, 2 for wrong usage."""
    try:
        code = commands(args=arguments, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(holdfast.__version__, prog_name="holdfast")
def commands() -> None:
    """Grant accelerators to one pod at a time, and prove them free."""


_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="HOLDFAST_CONFIG",
    help="The YAML file with the settings.",
)
_set = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a setting."
)
_output = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="For people or programs.",
)
_state = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="The state folder of the daemon to ask.",
)


@commands.command()
@_config
@_set
@click.option("--state-dir", help="Where the ledger is kept.")
@click.option("--http-port", help="The port of probes and metrics; 0 for none.")
@click.option("--log-level", help="debug, info, warning or error.")
def run(config: Path | None, changes: tuple[str, ...], **flags: str | None) -> None:
    """Run the daemon."""
    overrides = _overrides(changes)
    for path, flag in {
        "stateDir": "state_dir",
        "http.port": "http_port",
        "log.level": "log_level",
    }.items():
        if (value := flags[flag]) is not None:
            overrides[path] = value
    settings = _load(config, overrides)
    # Imported here, so that the commands that only ask start fast.
    from holdfast.app import run as run_daemon  # noqa: PLC0415
    from holdfast.telemetry.logs import set_up_logs  # noqa: PLC0415

    set_up_logs(settings.log.level, settings.log.format)
    asyncio.run(run_daemon(settings))


@commands.command("config")
@_config
@_set
def show_config(config: Path | None, changes: tuple[str, ...]) -> None:
    """Check the settings, and print all of them with their values."""
    settings = _load(config, _overrides(changes))
    click.echo(yaml.safe_dump(plain(settings), sort_keys=False), nl=False)


@commands.command()
@_config
@_state
@_output
def status(config: Path | None, state_dir: Path | None, output: str) -> None:
    """Say whether everything is registered, readable and seen; exit 1 when something is not."""
    report = _ask(_folder(config, state_dir), "status")
    if output == "json":
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(f"holdfast {report['version']}, pid {report['pid']}")
        _table(report["resources"], ["name", "devices", "healthy", "offered", "locked"])
        for check in report["checks"]:
            sign = "ok    " if check["passes"] else "FAILED"
            click.echo(f"{sign} {check['name']}" + (f": {check['reason']}" * bool(check["reason"])))
    if not all(check["passes"] for check in report["checks"]):
        raise click.exceptions.Exit(1)


@commands.command()
@_config
@_state
@_output
def devices(config: Path | None, state_dir: Path | None, output: str) -> None:
    """List the devices: health, lock, pod."""
    _show(
        _ask(_folder(config, state_dir), "devices"),
        ["resource", "id", "model", "health", "offered", "numa", "lock", "pod", "reasons"],
        output,
    )


@commands.command()
@_config
@_state
@_output
def locks(config: Path | None, state_dir: Path | None, output: str) -> None:
    """List who has what, since when, and who waits; from the ledger's file if need be."""
    folder = _folder(config, state_dir)
    rows = _ask_or_read(folder, "locks", lambda: _read_locks(folder))
    _show(rows, ["device", "state", "pod", "podName", "since", "fence", "reason"], output)


@commands.command()
@_config
@_state
@_output
def holders(config: Path | None, state_dir: Path | None, output: str) -> None:
    """Look now which processes hold devices."""
    _show(
        _ask(_folder(config, state_dir), "holders"),
        ["device", "pid", "command", "uid", "grips", "pod", "container"],
        output,
    )


@commands.command()
@click.argument("device", required=False)
@click.option("--limit", default=100, show_default=True, help="How many moves at the most.")
@_config
@_state
@_output
def history(
    device: str | None, limit: int, config: Path | None, state_dir: Path | None, output: str
) -> None:
    """Tell the story of DEVICE, or of all: each move of a lock, and what had been seen."""
    folder = _folder(config, state_dir)
    rows = _ask_or_read(
        folder,
        "history",
        lambda: _read_history(folder, device, limit),
        device=device,
        limit=limit,
    )
    _show(rows, ["at", "device", "from", "to", "pod", "fence", "evidence"], output)


@commands.command()
@click.option("--keep", is_flag=True, help="Leave everything running, to look around.")
def demo(*, keep: bool) -> None:
    """Show the main job on a simulated node: no root, no hardware."""
    from holdfast.demo.story import main as tell  # noqa: PLC0415 - no other command needs it

    raise click.exceptions.Exit(tell(keep=keep))


def _overrides(changes: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise click.BadParameter(f"{change!r} is not of the form KEY=VALUE", param_hint="--set")
        found[key] = value
    return found


def _load(config: Path | None, overrides: dict[str, str]) -> Settings:
    # HOLDFAST_CONFIG names the file; it is no setting in it.
    environ = {key: value for key, value in os.environ.items() if key != "HOLDFAST_CONFIG"}
    return load(config, environ, overrides)


def _folder(config: Path | None, state_dir: Path | None) -> Path:
    return state_dir if state_dir is not None else Path(_load(config, {}).state_dir)


def _ask(folder: Path, question: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return ask(folder, question)
    except OSError as error:
        raise HoldfastError(
            f"cannot ask the daemon in {folder}: {error.strerror or error}; is it running, and is "
            "this its state folder (--state-dir)?"
        ) from error


def _ask_or_read(
    folder: Path,
    question: str,
    read: Callable[[], Rows],
    **details: Any,  # noqa: ANN401 - JSON
) -> Rows:
    try:
        return list(ask(folder, question, **details))
    except (ConnectionError, FileNotFoundError):
        click.echo(f"the daemon is down; read from the ledger in {folder}", err=True)
        return read()
    except OSError as error:
        raise HoldfastError(f"cannot ask the daemon in {folder}: {error}") from error


def _read_locks(folder: Path) -> Rows:
    from holdfast.app.reports import lock_reports  # noqa: PLC0415 - SQLite only when it is needed
    from holdfast.ledger.store import read_only  # noqa: PLC0415

    return lock_reports(read_only(folder))


def _read_history(folder: Path, device: str | None, limit: int) -> Rows:
    from holdfast.app.reports import device_called, history_reports  # noqa: PLC0415 - as above
    from holdfast.ledger.store import read_only_history  # noqa: PLC0415
    from holdfast.model.devices import Inventory  # noqa: PLC0415

    name = device_called(device, Inventory()) if device else None
    return history_reports(read_only_history(folder, name, limit))


def _show(rows: Rows, columns: list[str], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        _table(rows, columns)


def _table(rows: Rows, columns: list[str]) -> None:
    cells = [[column.upper() for column in columns]]
    cells += [[_cell(column, row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    for line in cells:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        click.echo("  ".join(padded).rstrip())


def _cell(column: str, value: object) -> str:
    if value is None or value == []:
        return "-"
    if column in {"at", "since"} and isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
