"""The commands but `run`. Each imports what only it needs, so that a question is answered fast."""

import time
from pathlib import Path
from types import ModuleType

import click

from holdfast.cli import byhand
from holdfast.cli.doctor import doctor
from holdfast.cli.options import (
    ask_daemon,
    example,
    settings_sources,
    with_folder,
    with_output,
    with_settings,
    with_view,
)
from holdfast.cli.tables import PROGRAMS, Row, Rows, say, show, show_document, show_report
from holdfast.cli.views import (
    device_lines,
    history_lines,
    holder_lines,
    lock_lines,
    reload_lines,
    status_lines,
    with_durations,
)
from holdfast.errors import HoldfastError
from holdfast.model.text import MOST_MOVES

_LAST = 100
"""How many changes are told where neither a number nor a time is asked for."""


@click.command("config", epilog=example("holdfast config --set gate.wait=10s -o json"))
@with_settings
@with_output
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON schema of the file.")
def show_config(
    config: Path | None, changes: dict[str, str], output: str | None, *, as_schema: bool
) -> None:
    """Check the settings, and print each with its value, as YAML."""
    from holdfast.settings import plain, schema  # noqa: PLC0415 - no other command needs these

    if as_schema:
        show_document(schema(), output)
        return
    settings = settings_sources(config, changes).with_remembered_label().settings
    show_document(plain(settings), output if output in PROGRAMS else "yaml")


@click.command(epilog=example("holdfast status --watch"))
@click.option(
    "--all", "every", is_flag=True, help="Also list the checks that pass, each on its own line."
)
@with_view
def status(folder: Path, output: str | None, *, every: bool) -> None:
    """Show what is wrong first, then the devices.

    Exits with 1 if a readiness check fails.
    """
    report: Row = ask_daemon(folder, "status", lambda problem: _down().status(folder, problem))
    show_report(report, output, lambda: status_lines(report, every=every, wide=output is not None))
    if not all(check["passes"] for check in report["checks"]):
        raise click.exceptions.Exit(1)


@click.command("reload", epilog=example("holdfast reload"))
@with_folder
@with_output
def reload_configuration(folder: Path, output: str | None) -> None:
    """Have the daemon read its configuration now, and say what came of it.

    Exits with 1 if it cannot be used, or not yet; the former configuration then stays in use.
    """
    answer = ask_daemon(folder, "reload")
    show_report(answer, output, lambda: reload_lines(answer))
    if answer["problem"]:
        raise HoldfastError(f"cannot reload the configuration: {answer['problem']}")


@click.command(epilog=example("holdfast debug > debug.json"))
@with_folder
@with_output
def debug(folder: Path, output: str | None) -> None:
    """Print all that the daemon knows, as JSON for a bug report."""
    show_document(ask_daemon(folder, "debug"), output)


@click.command(epilog=example("holdfast devices -o wide"))
@with_view
def devices(folder: Path, output: str | None) -> None:
    """List the devices with their health, lock and pod."""
    rows: Rows = ask_daemon(folder, "devices", lambda _: _down().devices(folder))
    show(rows, output, device_lines)


@click.command(epilog=example("holdfast locks --watch"))
@with_view
def locks(folder: Path, output: str | None) -> None:
    """List which pod or claim has which device, what waits for it, and what happens next."""
    rows: Rows = ask_daemon(folder, "locks", lambda _: _down().locks(folder))
    show(rows, output, lock_lines)


@click.command(epilog=example("holdfast holders -o json"))
@with_view
def holders(folder: Path, output: str | None) -> None:
    """Scan for the processes that hold devices.

    Needs the running daemon, which may see every process.
    """
    rows: Rows = ask_daemon(folder, "holders")
    show(rows, output, holder_lines)


def _past(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    from holdfast.settings.types import Duration  # noqa: PLC0415 - where it is given

    try:
        return None if text is None else Duration.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(epilog=example("holdfast history 0000:00:05.0 --since 1h"))
@click.argument("device", required=False)
@click.option(
    "--since",
    metavar="TIME",
    callback=_past,
    help="Only changes of the last TIME, such as 1h or 30m.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=MOST_MOVES),
    help=f"The number of changes to show. Default: 100, with --since {MOST_MOVES}.",
)
@click.option(
    "--plot",
    "picture",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Draw who had which device when into FILE, as SVG; - is the standard output.",
)
@with_view
def history(
    *,
    folder: Path,
    device: str | None,
    since: float | None,
    limit: int | None,
    picture: Path | None,
    output: str | None,
) -> None:
    """Show each lock change of DEVICE, or of all devices, the oldest first, and why."""
    if picture is not None and (output or click.get_current_context().params["watch"]):
        raise click.UsageError("--plot draws once: it does not go with --output or --watch")
    most = limit or (_LAST if since is None else MOST_MOVES)
    rows: Rows = ask_daemon(
        folder,
        "history",
        lambda _: _down().history(folder, device, most),
        device=device,
        limit=most,
    )
    if picture is not None:
        from holdfast.cli.picture import draw  # noqa: PLC0415 - only where it is asked for

        draw(picture, rows, since)
        return
    told = with_durations(rows)
    if since is not None:
        told = [row for row in told if row["at"] >= time.time() - since]
    show(told, output, history_lines)


@click.command("why", epilog=example("holdfast why default/train-1"))
@click.argument("name")
@with_view
def show_why(folder: Path, name: str, output: str | None) -> None:
    """Show all that keeps a device, pod or claim called NAME waiting, and what would end that.

    A device is named in full, by its id or the beginning of that; a pod or a claim by its name,
    namespace/name or UID.
    """
    from holdfast.cli.why import Answers, why, why_lines  # noqa: PLC0415 - as `_down`

    locks: Rows | None = ask_daemon(folder, "locks", lambda _: None)
    if locks is None:
        down = _down()
        answers = Answers(devices=down.devices(folder), locks=down.locks(folder), holders=None)
    else:
        devices: Rows = ask_daemon(folder, "devices", lambda _: _down().devices(folder))
        try:
            holders = ask_daemon(folder, "holders")
        except HoldfastError as error:
            say(f"{error}", error=True)
            holders = None
        answers = Answers(devices=devices, locks=locks, holders=holders)
    report = why(name, answers)
    show_report(report, output, lambda: why_lines(report, answers, wide=output is not None))


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
    show_why,
)


def _down() -> ModuleType:
    """Return what answers while the daemon is down; it loads SQLite."""
    from holdfast.cli import down  # noqa: PLC0415 - only where it is needed

    return down
