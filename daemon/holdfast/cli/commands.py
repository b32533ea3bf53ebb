"""The commands but `run`. Each imports what only it needs, so that a question is answered fast."""

from pathlib import Path
from types import ModuleType

import click

from holdfast.cli import byhand
from holdfast.cli.doctor import doctor
from holdfast.cli.options import (
    ask_daemon,
    load_settings,
    with_config,
    with_folder,
    with_output,
    with_set,
)
from holdfast.cli.tables import (
    CLAIM_COLUMNS,
    Row,
    Rows,
    reload_lines,
    say,
    show,
    show_json,
    status_lines,
)
from holdfast.errors import HoldfastError
from holdfast.model.text import MOST_MOVES


@click.command("config")
@with_config
@with_set
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON schema of the file.")
def show_config(config: Path | None, changes: dict[str, str], *, as_schema: bool) -> None:
    """Check the settings, and print each with its value."""
    import yaml  # noqa: PLC0415 - no other command needs these

    from holdfast.settings import plain, schema  # noqa: PLC0415

    if as_schema:
        show_json(schema())
        return
    settings = load_settings(config, changes)
    click.echo(yaml.safe_dump(plain(settings), sort_keys=False), nl=False)


@click.command()
@click.option(
    "--all", "every", is_flag=True, help="Also list the checks that pass, each on its own line."
)
@with_folder
@with_output
def status(folder: Path, output: str, *, every: bool) -> None:
    """Show what is wrong first, then the devices.

    Exits with 1 if a readiness check fails.
    """
    report: Row = ask_daemon(folder, "status", lambda problem: _down().status(folder, problem))
    if output == "json":
        show_json(report)
    else:
        say(*status_lines(report, every=every))
    if not all(check["passes"] for check in report["checks"]):
        raise click.exceptions.Exit(1)


@click.command("reload")
@with_folder
def reload_configuration(folder: Path) -> None:
    """Have the daemon read its configuration now, and say what came of it.

    Exits with 1 if it cannot be used; the former configuration then stays in use.
    """
    answer = ask_daemon(folder, "reload")
    say(*reload_lines(answer))
    if answer["problem"]:
        raise HoldfastError(f"cannot reload the configuration: {answer['problem']}")


@click.command()
@with_folder
def debug(folder: Path) -> None:
    """Print all that the daemon knows, as JSON for a bug report."""
    show_json(ask_daemon(folder, "debug"))


@click.command()
@with_folder
@with_output
def devices(folder: Path, output: str) -> None:
    """List the devices with their health, lock and pod."""
    rows: Rows = ask_daemon(folder, "devices", lambda _: _down().devices(folder))
    columns = ["resource", "id", "model", "health", "offered", "numa", "lock", "pod"]
    show(rows, [*columns, *CLAIM_COLUMNS, "reasons"], output)


@click.command()
@with_folder
@with_output
def locks(folder: Path, output: str) -> None:
    """List which pod or claim has which device, and what waits for it."""
    rows: Rows = ask_daemon(folder, "locks", lambda _: _down().locks(folder))
    columns = ["device", "state", "pod", "podName", *CLAIM_COLUMNS, "since", "fence", "reason"]
    show(rows, columns, output)


@click.command()
@with_folder
@with_output
def holders(folder: Path, output: str) -> None:
    """Scan for the processes that hold devices.

    Needs the running daemon, which may see every process.
    """
    rows: Rows = ask_daemon(folder, "holders")
    who = ["device", "pid", "command", "uid", "grips", "pod", "claim", "container", "cause"]
    show(rows, [*who, "limit", "usage", "headroom", "memlock"], output)


@click.command()
@click.argument("device", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=MOST_MOVES),
    default=100,
    show_default=True,
    help="The number of entries to show.",
)
@with_folder
@with_output
def history(folder: Path, device: str | None, limit: int, output: str) -> None:
    """Show the lock changes of DEVICE, or of all, with evidence."""
    rows: Rows = ask_daemon(
        folder,
        "history",
        lambda _: _down().history(folder, device, limit),
        device=device,
        limit=limit,
    )
    show(rows, ["at", "device", "from", "to", "pod", "claim", "fence", "evidence"], output)


COMMANDS = (
    *byhand.COMMANDS,
    doctor,
    show_config,
    status,
    reload_configuration,
    debug,
    devices,
    locks,
    holders,
    history,
)


def _down() -> ModuleType:
    """Return what answers while the daemon is down; it loads SQLite."""
    from holdfast.cli import down  # noqa: PLC0415 - only where it is needed

    return down
