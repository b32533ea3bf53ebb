"""The commands that change something by hand: release, quarantine, drain, and their ends."""

import sys
import time
from pathlib import Path

import click

from holdfast.cli.options import ask_daemon, state_folder, with_config, with_state
from holdfast.cli.tables import Row, say
from holdfast.errors import HoldfastError

_LOOK = 1.0
_PATIENCE = 30.0
"""For a look at every process and a question to kubelet, in seconds."""

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
    """Lift the quarantine of DEVICE, and forget its Xids; what is stuck is tried again at once."""
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
        say("holdfast is still draining; `holdfast undrain` ends that", error=True)
        raise


@click.command()
@_reason
@with_config
@with_state
def undrain(reason: str, config: Path | None, state_dir: Path | None) -> None:
    """End the drain: pods start again, those that waited first."""
    _request(state_folder(config, state_dir), "undrain", reason=reason)


@click.command()
@click.argument("device")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--force", is_flag=True, help="Also while its pod lives; the pod's name is asked for."
)
@click.option("--pod", metavar="NAME", help="The pod's name, for --force without a terminal.")
@with_config
@with_state
def release(
    device: str,
    pod: str | None,
    config: Path | None,
    state_dir: Path | None,
    *,
    yes: bool,
    force: bool,
) -> None:
    """End what keeps DEVICE after its pod is over, at once and in any reclaim mode.

    It shows who has the device, and asks. The device becomes free when the kernel shows it free.
    """
    if pod is not None and not force:
        raise click.UsageError("--pod says whose processes --force may end: give both")
    folder = state_folder(config, state_dir)
    seen: Row = ask_daemon(folder, "releasable", patience=_PATIENCE, device=device)
    say(*_shown(seen))
    if seen["refusal"] and not (force and seen["forced"]):
        hint = "; or --force, which ends its processes" if seen["forced"] else ""
        raise HoldfastError(f"cannot release {seen['device']}: {seen['refusal']}{hint}")
    typed = _typed(seen, pod, yes=yes) if seen["refusal"] else None
    if typed is None and not yes:
        _agreed()
    done = ask_daemon(
        folder,
        "release",
        patience=seen["patience"] + _PATIENCE,
        device=seen["device"],
        fence=seen["fence"],
        pod=typed,
    )
    say(done["text"])
    if done["follow"]:
        _follow(folder, seen)


COMMANDS = (quarantine, unquarantine, drain, undrain, release)


def _request(folder: Path, name: str, *, device: str | None = None, reason: str = "") -> None:
    say(ask_daemon(folder, name, device=device, reason=reason)["text"])


def _wait_for_removal(folder: Path) -> None:
    """Tell what is still in the way, each time that changes, until nothing is."""
    said: list[str] = []
    while obstacles := _obstacles(folder):
        if obstacles != said:
            say("waiting:", *(f"  {each}" for each in obstacles))
            said = obstacles
        time.sleep(_LOOK)
    say(
        "No pod has or awaits a device of this node: holdfast can be uninstalled now (helm "
        "uninstall, or delete its DaemonSet), and NVIDIA's driver can be replaced or its MIG mode "
        "changed: holdfast has let it go, until the driver was loaded anew or `holdfast undrain`.",
        f"The ledger in {folder} stays, and with it the drain: a later installation begins with "
        "`holdfast undrain`, or without that folder.",
    )


def _obstacles(folder: Path) -> list[str]:
    try:
        found: list[str] = ask_daemon(folder, "removable")
    except HoldfastError as error:  # it may be starting anew
        return [str(error)]
    return found


def _shown(seen: Row) -> list[str]:
    """Return what there is to see of a device, a line for each thing."""
    whose = f" for pod {seen['pod']}" if seen["pod"] else ""
    told = f": {seen['reason']}" if seen["reason"] else ""
    lines = [f"{seen['device']} is {seen['state']}{whose}{told}"]
    lines.append(f"  the kernel: {seen['kernel']}")
    lines += [f"  holder: {each}" for each in seen["holders"]]
    lines += [f"  of the same pod: {each}" for each in seen["others"]]
    return lines


def _typed(seen: Row, pod: str | None, *, yes: bool) -> str:
    """Return the name that a person gives for the pod whose processes are ended."""
    if pod is not None:
        return pod
    if yes or not sys.stdin.isatty():
        raise HoldfastError(
            f"cannot release {seen['device']} by force: name the pod whose processes are ended "
            "(--pod NAME)"
        )
    say(f"{seen['refusal']}.")
    name: str = click.prompt("Type the pod's name to end its processes")
    return name


def _agreed() -> None:
    if not sys.stdin.isatty():
        raise HoldfastError("cannot ask without a terminal: give --yes")
    click.confirm("End what is left of that pod, so that the device becomes free?", abort=True)


def _follow(folder: Path, seen: Row) -> None:
    """Tell what becomes of the device until it is free, or nothing more is done."""
    said: list[str] = []
    end = time.monotonic() + seen["patience"]
    while time.monotonic() < end:
        now: Row = ask_daemon(folder, "releasable", patience=_PATIENCE, device=seen["device"])
        if now["state"] == "free" or now["pod"] != seen["pod"]:
            say(f"{seen['device']} is free of pod {seen['pod']}")
            return
        if (lines := _shown(now)) != said:
            say(*lines)
            said = lines
        time.sleep(_LOOK)
    raise HoldfastError(
        f"{seen['device']} is not free yet; it becomes so when the kernel shows it free, and "
        f"`holdfast history {seen['device']}` tells what was done"
    )
