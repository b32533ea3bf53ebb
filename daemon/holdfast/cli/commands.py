"""The commands. Each imports what only it needs when it runs, so that asking is fast."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import yaml

import holdfast
from holdfast.cli import byhand
from holdfast.cli.doctor import doctor
from holdfast.cli.nvidia import given, with_nvidia
from holdfast.cli.options import (
    ask_daemon,
    load_settings,
    state_folder,
    with_config,
    with_output,
    with_set,
    with_state,
)
from holdfast.cli.tables import Row, Rows, drift_line, mark_line, say, show
from holdfast.errors import HoldfastError
from holdfast.model.book.locks import MOST_MOVES
from holdfast.settings import Settings, plain, schema

_INTERRUPTED = 130


def device_plugin() -> int:
    """Run the daemon under the name of NVIDIA's device plugin, whose flags are ours, too."""
    return main(["run", *sys.argv[1:]])


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
        say(f"holdfast: {error}", error=True)
        return 1
    return code if isinstance(code, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(holdfast.__version__, prog_name="holdfast")
def commands() -> None:
    """Grant accelerators to one pod at a time, and prove them free."""


for _command in (*byhand.COMMANDS, doctor):
    commands.add_command(_command)


@commands.command()
@with_config
@with_set
@click.option(
    "--state-dir",
    type=click.Path(resolve_path=True),
    help="Where the ledger is kept (stateDir).",
)
@click.option("--http-port", help="The port of probes and metrics; 0 for none (http.port).")
@click.option("--log-level", help="debug, info, warning or error (log.level).")
@with_nvidia
def run(
    config: Path | None,
    changes: dict[str, str],
    state_dir: str | None,
    http_port: str | None,
    log_level: str | None,
) -> None:
    """Run the daemon until SIGTERM. The flags of NVIDIA's plugin are taken, too.

    SIGHUP has it read its configuration anew, and register anew with kubelet.
    """
    # Until somebody listens: its default would end the process. Ignored, it stays so over exec.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    named = {"stateDir": state_dir, "http.port": http_port, "log.level": log_level}
    ours = {path: text for path, text in named.items() if text is not None}
    theirs = given()

    def read(told: Callable[[str], None]) -> Settings:
        return load_settings(config, changes | ours, theirs=theirs, told=told)

    ineffective: list[str] = []
    settings = read(ineffective.append)
    import asyncio  # noqa: PLC0415 - no other command needs these

    import structlog  # noqa: PLC0415

    from holdfast.app.daemon import run as run_daemon  # noqa: PLC0415
    from holdfast.telemetry.logs import set_up_logs  # noqa: PLC0415

    set_up_logs(settings.log.level, settings.log.format)
    for each in ineffective:
        structlog.get_logger(__name__).warning("setting has no effect", reason=each)
    if asyncio.run(run_daemon(settings, lambda: read(lambda _told: None))):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # A new image: NVML, lanes and logs begin anew, while pid and container stay.
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very program


@commands.command("config")
@with_config
@with_set
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON schema of the file.")
def show_config(config: Path | None, changes: dict[str, str], *, as_schema: bool) -> None:
    """Check the settings, and print all of them with their values."""
    if as_schema:
        click.echo(json.dumps(schema(), indent=2))
        return
    settings = load_settings(config, changes)
    click.echo(yaml.safe_dump(plain(settings), sort_keys=False), nl=False)


@commands.command()
@with_config
@with_state
@with_output
def status(config: Path | None, state_dir: Path | None, output: str) -> None:
    """Say whether everything is registered, readable and seen; exit 1 when something is not."""
    folder = state_folder(config, state_dir)

    def read(problem: str) -> Row:
        from holdfast.cli import down  # noqa: PLC0415 - SQLite only when it is needed

        return down.status(folder, problem)

    from holdfast.telemetry.readyz import check_line  # noqa: PLC0415 - no other command needs it

    report: Row = ask_daemon(folder, "status", read)
    if output == "json":
        click.echo(json.dumps(report, indent=2))
    else:
        if report["pid"] is not None:
            say(f"holdfast {report['version']}, pid {report['pid']}")
        show(report["resources"], ["name", "devices", "healthy", "offered", "locked"], output)
        if report["noDevices"]:
            say("NO DEVICES on this node")
        say(*map(mark_line, report["byHand"]))
        say(*map(check_line, report["checks"]))
        say(*map(drift_line, report["drift"]))
    if not all(check["passes"] for check in report["checks"]):
        raise click.exceptions.Exit(1)


@commands.command()
@with_config
@with_state
def debug(config: Path | None, state_dir: Path | None) -> None:
    """Print all that the running daemon knows, as JSON: for a report of a bug."""
    click.echo(json.dumps(ask_daemon(state_folder(config, state_dir), "debug"), indent=2))


@commands.command()
@with_config
@with_state
@with_output
def devices(config: Path | None, state_dir: Path | None, output: str) -> None:
    """List the devices: health, lock, pod."""
    folder = state_folder(config, state_dir)

    def read(_problem: str) -> Rows:
        from holdfast.cli import down  # noqa: PLC0415 - as above

        return down.devices(folder)

    rows: Rows = ask_daemon(folder, "devices", read)
    columns = ["resource", "id", "model", "health", "offered", "numa", "lock", "pod", "reasons"]
    show(rows, columns, output)


@commands.command()
@with_config
@with_state
@with_output
def locks(config: Path | None, state_dir: Path | None, output: str) -> None:
    """List who has what, since when, and who waits."""
    folder = state_folder(config, state_dir)

    def read(_problem: str) -> Rows:
        from holdfast.cli import down  # noqa: PLC0415 - as above

        return down.locks(folder)

    rows: Rows = ask_daemon(folder, "locks", read)
    show(rows, ["device", "state", "pod", "podName", "since", "fence", "reason"], output)


@commands.command()
@with_config
@with_state
@with_output
def holders(config: Path | None, state_dir: Path | None, output: str) -> None:
    """Look now which processes hold devices; needs the daemon, which may see them all."""
    rows: Rows = ask_daemon(state_folder(config, state_dir), "holders")
    who = ["device", "pid", "command", "uid", "grips", "pod", "container", "cause"]
    show(rows, [*who, "limit", "usage", "headroom", "memlock"], output)


@commands.command()
@click.argument("device", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=MOST_MOVES),
    default=100,
    show_default=True,
    help="How many moves at the most.",
)
@with_config
@with_state
@with_output
def history(
    device: str | None, limit: int, config: Path | None, state_dir: Path | None, output: str
) -> None:
    """Tell the story of DEVICE, or of all: each move of a lock, and what had been seen."""
    folder = state_folder(config, state_dir)

    def read(_problem: str) -> Rows:
        from holdfast.cli import down  # noqa: PLC0415 - as above

        return down.history(folder, device, limit)

    rows: Rows = ask_daemon(folder, "history", read, device=device, limit=limit)
    show(rows, ["at", "device", "from", "to", "pod", "fence", "evidence"], output)
