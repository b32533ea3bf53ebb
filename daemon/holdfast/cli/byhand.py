"""The commands that change something: quarantine, drain and release, and what undoes them."""

import sys
import time
from functools import partial
from pathlib import Path

import click

from holdfast.cli.options import ask_daemon, example, with_folder
from holdfast.cli.tables import Row, say
from holdfast.errors import HoldfastError

_LOOK = 1.0
_PATIENCE = 30.0
"""Seconds for a scan of every process and a question to kubelet."""

_reason = partial(
    click.option, "--reason", metavar="TEXT", help="The reason; status and waiting pods show it."
)


@click.command(epilog=example("holdfast quarantine 0000:00:05.0 --reason 'fans fail'"))
@click.argument("device")
@_reason(required=True)
@with_folder
def quarantine(folder: Path, device: str, reason: str) -> None:
    """Give DEVICE to no new pod until unquarantine.

    It also lasts over restarts and reboots. A pod that has the device keeps it.
    """
    _request(folder, "quarantine", device=device, reason=reason)


@click.command(epilog=example("holdfast unquarantine 0000:00:05.0"))
@click.argument("device")
@with_folder
def unquarantine(folder: Path, device: str) -> None:
    """End the quarantine of DEVICE.

    Also clears its Xids, and retries a failed reclaim at once.
    """
    _request(folder, "unquarantine", device=device)


@click.command(epilog=example("holdfast drain --for-removal --reason 'new driver'"))
@_reason(default="")
@click.option(
    "--for-removal",
    is_flag=True,
    help="Wait until no pod needs the plugin, then say that it can be uninstalled.",
)
@with_folder
def drain(folder: Path, reason: str, *, for_removal: bool) -> None:
    """Start no new pod on this node's devices until undrain.

    Running pods go on, and their containers may restart.
    """
    _request(folder, "drain", reason=reason)
    if not for_removal:
        return
    try:
        _wait_for_removal(folder)
    except KeyboardInterrupt:  # the daemon goes on draining
        say("holdfast is still draining; `holdfast undrain` ends that", error=True)
        raise


@click.command(epilog=example("holdfast undrain"))
@_reason(default="", help="The reason; the log and the history show it.")
@with_folder
def undrain(folder: Path, reason: str) -> None:
    """End the drain: pods start again, the longest waiting first."""
    _request(folder, "undrain", reason=reason)


@click.command(epilog=example("holdfast release 0000:00:05.0"))
@click.argument("device")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--force", is_flag=True, help="Even if its pod may still run; asks for the pod's name."
)
@click.option("--pod", metavar="NAME", help="The pod's name, for --force without a terminal.")
@with_folder
def release(folder: Path, device: str, pod: str | None, *, yes: bool, force: bool) -> None:
    """End the processes that hold DEVICE after its pod ended.

    Shows the holders and asks first; works in any reclaim mode. DEVICE becomes free when the kernel
    shows that it is free.
    """
    if pod is not None and not force:
        raise click.UsageError("--pod needs --force: it names the pod whose processes --force ends")
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
    """Print what is still in the way, each time that changes, until nothing is."""
    said: list[str] = []
    while obstacles := _obstacles(folder):
        if obstacles != said:
            say("waiting:", *(f"  {each}" for each in obstacles))
            said = obstacles
        time.sleep(_LOOK)
    say(
        "No pod has or waits for a device of this node. You can uninstall holdfast now (helm "
        "uninstall, or delete its DaemonSet), replace NVIDIA's driver, or change the MIG mode: "
        "holdfast has closed NVML until the driver is loaded again or until `holdfast undrain`.",
        f"The ledger in {folder} stays, and with it the drain. After a later installation run "
        "`holdfast undrain`, or delete that folder before it.",
    )


def _obstacles(folder: Path) -> list[str]:
    try:
        found: list[str] = ask_daemon(folder, "removable")
    except HoldfastError as error:  # it may be restarting
        return [str(error)]
    return found


def _shown(seen: Row) -> list[str]:
    """Return the lines that describe a device and its holders."""
    whose = f" for pod {seen['pod']}" if seen["pod"] else ""
    whose += f" by claim {seen['claim']}" if seen["claim"] else ""
    told = f": {seen['reason']}" if seen["reason"] else ""
    lines = [f"{seen['device']} is {seen['state']}{whose}{told}"]
    lines.append(f"  kernel: {seen['kernel']}")
    lines += [f"  holder: {each}" for each in seen["holders"]]
    lines += [f"  other process of the pod: {each}" for each in seen["others"]]
    return lines


def _typed(seen: Row, pod: str | None, *, yes: bool) -> str:
    """Return the pod's name as given or typed, to confirm that its processes are ended."""
    if pod is not None:
        return pod
    if yes or not sys.stdin.isatty():
        raise HoldfastError(
            f"cannot release {seen['device']} by force: no terminal to confirm on; name the pod "
            "whose processes are ended (--pod NAME)"
        )
    say(f"{seen['refusal']}.")
    name: str = click.prompt("Type the pod's name to end its processes")
    return name


def _agreed() -> None:
    if not sys.stdin.isatty():
        raise HoldfastError("cannot ask for confirmation: no terminal; give --yes")
    click.confirm("End the remaining processes of that pod?", abort=True)


def _follow(folder: Path, seen: Row) -> None:
    """Print how the release goes on until the device is free, or its time is over."""
    said: list[str] = []
    end = time.monotonic() + seen["patience"]
    while time.monotonic() < end:
        now: Row = ask_daemon(folder, "releasable", patience=_PATIENCE, device=seen["device"])
        if now["state"] == "free" or now["pod"] != seen["pod"]:
            say(f"{seen['device']} is free of pod {seen['pod']}")
            if now["claim"] and now["claim"] == seen["claim"]:  # pods that share it end in turn
                say(f"it is not free of pod {now['pod']} yet, which shares its claim")
            return
        if (lines := _shown(now)) != said:
            say(*lines)
            said = lines
        time.sleep(_LOOK)
    raise HoldfastError(
        f"{seen['device']} is not free yet: the kernel still shows it in use; "
        f"`holdfast history {seen['device']}` shows what was done"
    )
