"""The run command: reads the settings, and starts the daemon."""

import gc
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.nvidia import NvidiaCommand, given, without_effect
from holdfast.cli.options import example, settings_sources, with_config, with_set
from holdfast.model.node.restarts import MOST

if TYPE_CHECKING:  # loading it takes as long as all else of --help
    from holdfast.settings import Settings
    from holdfast.settings.sources import LoadedSettings

_RESTARTS = "_HOLDFAST_RESTARTS"
"""The variable by which a process that restarts tells itself when it did."""
_HANDED_OVER = "_HOLDFAST_CONFIGURATION"
"""The variable by which it tells itself the fd of the configuration that it restarts for."""


@click.command(cls=NvidiaCommand, epilog=example("holdfast run --config /etc/holdfast/config.yaml"))
@with_config
@with_set
@click.option(
    "--state-dir",
    type=click.Path(resolve_path=True),
    help="The state folder, where the ledger is kept (stateDir).",
)
@click.option("--http-port", help="The port for probes and metrics; 0 turns it off (http.port).")
@click.option("--log-level", help="Log level: debug, info, warning or error (log.level).")
def run(
    config: Path | None,
    changes: dict[str, str],
    state_dir: str | None,
    http_port: str | None,
    log_level: str | None,
) -> None:
    """Run the daemon until SIGTERM.

    It also takes the flags of NVIDIA's device plugin. SIGHUP makes it read its configuration again
    and take up what has changed.
    """
    # Until the daemon handles it: the default would end the process. exec keeps it ignored.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    named = {"stateDir": state_dir, "http.port": http_port, "log.level": log_level}
    ours = {path: text for path, text in named.items() if text is not None}
    from holdfast.settings.sources import files, for_start  # noqa: PLC0415 - --help does without

    theirs, ineffective = given(), without_effect()
    sources = partial(settings_sources, config, changes | ours, theirs=theirs)
    found = for_start(sources, _ask_label, _taken_over())
    gc.disable()  # nothing that is loaded here becomes garbage
    import asyncio  # noqa: PLC0415 - no other command needs these

    import structlog  # noqa: PLC0415

    from holdfast.app.daemon import run as run_daemon  # noqa: PLC0415
    from holdfast.runtime.supervisor import Stalls  # noqa: PLC0415
    from holdfast.telemetry.logs import set_up_logs  # noqa: PLC0415

    gc.freeze()  # so that no later collection goes through it
    gc.enable()
    set_up_logs(found.settings.log.level, found.settings.log.format)
    for each in ineffective:
        structlog.get_logger(__name__).warning("setting has no effect", reason=each)
    stalls = Stalls()
    restarts = [float(each) for each in os.environ.get(_RESTARTS, "").split()]  # the latest last
    with asyncio.Runner(loop_factory=stalls.new_loop) as runner:
        following = runner.run(
            run_daemon(
                found,
                lambda label: sources().found(label),
                files=files(config, os.environ, theirs),
                restarts=restarts,
                stalls=stalls,
            )
        )
    if following is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.environ[_RESTARTS] = " ".join(map(str, [*restarts, time.monotonic()][-MOST:]))
        _hand_over(following)
        # A new program in the same process: NVML, lanes and logs start again, the pid stays.
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very program


def _hand_over(found: "LoadedSettings") -> None:
    """Keep *found* for the program that follows in this process, whatever the files say by then."""
    import msgspec  # noqa: PLC0415 - --help does without

    fd = os.memfd_create("configuration", 0)  # without MFD_CLOEXEC: it is for the next program
    os.write(fd, msgspec.json.encode(msgspec.to_builtins(found, enc_hook=float)))
    os.environ[_HANDED_OVER] = str(fd)


def _taken_over() -> "LoadedSettings | None":
    """Return what the program that this process ran before went by; None: there was none."""
    fd = os.environ.pop(_HANDED_OVER, "")
    if not fd:
        return None
    import msgspec  # noqa: PLC0415 - --help does without

    from holdfast.settings.sources import LoadedSettings, convert  # noqa: PLC0415 - as above

    with open(int(fd), "rb") as handed:  # noqa: PTH123 - it has no path
        handed.seek(0)
        content = msgspec.json.decode(handed.read())
    settings = convert(content.pop("settings"))
    return LoadedSettings(settings=settings, **content)


def _ask_label(settings: "Settings") -> str | None:
    from holdfast.app.watches.nodelabel import label_now  # noqa: PLC0415 - where one is followed

    return label_now(settings)
