"""The commands that change something by hand: quarantine, drain, and their ends."""

import time
from pathlib import Path

import click

from holdfast.cli.options import ask_daemon, state_folder, with_config, with_state
from holdfast.errors import HoldfastError

_LOOK = 1.0

_reason = click.option("--reason", default="", metavar="TEXT", help="Why; it is shown to all.")


@click.command()
@click.argument("device")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is shown to all.")
@with_config
@with_state
def quarantine(device: str, reason: str, config: Path | None, state_dir: Path | None) -> None:
    """Keep DEVICE from every new pod, also across reboots; who has it keeps it."""
    _request(state_folder(config, state_dir), "quarantine", device=device, reason=reason)


@click.command()
@click.argument("device")
@with_config
@with_state
def unquarantine(device: str, config: Path | None, state_dir: Path | None) -> None:
    """Lift the quarantine of DEVICE; what could not be reclaimed is tried again at once."""
    _request(state_folder(config, state_dir), "unquarantine", device=device)


@click.command()
@_reason
@click.option(
    "--for-removal",
    is_flag=True,
    help="Wait until no pod needs the plugin any more, and say when it can be uninstalled.",
)
@with_config
@with_state
def drain(reason: str, config: Path | None, state_dir: Path | None, *, for_removal: bool) -> None:
    """Let no new pod start on this node's devices; what runs goes on. Ends with undrain."""
    folder = state_folder(config, state_dir)
    _request(folder, "drain", reason=reason)
    if not for_removal:
        return
    try:
        _wait_for_removal(folder)
    except KeyboardInterrupt:  # the drain is the daemon's, and goes on
        click.echo("holdfast is still draining; `holdfast undrain` ends that", err=True)
        raise


@click.command()
@_reason
@with_config
@with_state
def undrain(reason: str, config: Path | None, state_dir: Path | None) -> None:
    """End the drain: pods start again, those that waited first."""
    _request(state_folder(config, state_dir), "undrain", reason=reason)


COMMANDS = (quarantine, unquarantine, drain, undrain)


def _request(folder: Path, name: str, *, device: str | None = None, reason: str = "") -> None:
    click.echo(ask_daemon(folder, name, device=device, reason=reason)["text"])


def _wait_for_removal(folder: Path) -> None:
    """Tell what is still in the way, each time that changes, until nothing is."""
    said: list[str] = []
    while obstacles := _obstacles(folder):
        if obstacles != said:
            click.echo("\n  ".join(["waiting:", *obstacles]))
            said = obstacles
        time.sleep(_LOOK)
    click.echo(
        "No pod has or awaits a device of this node: holdfast can be uninstalled now (helm "
        "uninstall, or delete its DaemonSet).\n"
        f"The ledger in {folder} stays, and with it the drain: a later installation begins with "
        "`holdfast undrain`, or without that folder."
    )


def _obstacles(folder: Path) -> list[str]:
    try:
        found: list[str] = ask_daemon(folder, "removable")
    except HoldfastError as error:  # it may be starting anew
        return [str(error)]
    return found
