"""The run command: reads the settings, and starts the daemon."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.nvidia import NvidiaCommand, given
from holdfast.cli.options import load_settings, with_config, with_set
from holdfast.model.node.restarts import MOST

if TYPE_CHECKING:  # loading it takes as long as all else of --help
    from holdfast.settings import Settings

_RESTARTS = "_HOLDFAST_RESTARTS"
"""The variable by which a process that restarts tells itself when it did."""


@click.command(cls=NvidiaCommand)
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
    from holdfast.settings.sources import files  # noqa: PLC0415 - --help does without

    named = {"stateDir": state_dir, "http.port": http_port, "log.level": log_level}
    ours = {path: text for path, text in named.items() if text is not None}
    theirs = given()

    def read(told: Callable[[str], None]) -> "Settings":
        return load_settings(config, changes | ours, theirs=theirs, told=told, ask_label=_ask_label)

    ineffective: list[str] = []
    settings = read(ineffective.append)
    gc.disable()  # nothing that is loaded here becomes garbage
    import asyncio  # noqa: PLC0415 - no other command needs these

    import structlog  # noqa: PLC0415

    from holdfast.app.daemon import run as run_daemon  # noqa: PLC0415
    from holdfast.runtime.stalls import Stalls  # noqa: PLC0415
    from holdfast.telemetry.logs import set_up_logs  # noqa: PLC0415

    gc.freeze()  # so that no later collection goes through it
    gc.enable()
    set_up_logs(settings.log.level, settings.log.format)
    for each in ineffective:
        structlog.get_logger(__name__).warning("setting has no effect", reason=each)
    stalls, restarts = Stalls(), _restarts()
    with asyncio.Runner(loop_factory=stalls.new_loop) as runner:
        again = runner.run(
            run_daemon(
                settings,
                lambda: read(lambda _told: None),
                files=files(config, os.environ, theirs),
                restarts=restarts,
                stalls=stalls,
            )
        )
    if again:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.environ[_RESTARTS] = " ".join(map(str, [*restarts, time.monotonic()][-MOST:]))
        # A new program in the same process: NVML, lanes and logs start again, the pid stays.
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very program


def _restarts() -> list[float]:
    """Return when this process restarted for another configuration, the latest last."""
    return [float(each) for each in os.environ.get(_RESTARTS, "").split()]


def _ask_label(settings: "Settings") -> None:
    from holdfast.app.watches.nodelabel import first_label  # noqa: PLC0415 - where one is followed

    first_label(settings)
