"""What SIGHUP leads to: a start with the configuration as it is now, or a reason why not."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable

import structlog

from holdfast.errors import SettingsError
from holdfast.settings import Settings, plain

log = structlog.get_logger(__name__)

Reread = Callable[[], Settings]
"""Reads the configuration as it is now; raises SettingsError."""

_TIED = ("stateDir", "host", "http", "kubelet.pluginDir", "kubelet.podResourcesSocket")
"""What the pod's mounts and probes were made by: a change of them takes another pod."""


class Orders:
    """What signals ask of the daemon: SIGTERM and SIGINT to stop, SIGHUP to begin anew."""

    def __init__(self) -> None:
        """Take over the signals; a loop must run."""
        self._came = asyncio.Event()
        self.stop = False
        """Whether to stop, which no later SIGHUP takes back."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped)

        def hung_up(_number: int, _frame: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it stops anyway
                loop.call_soon_threadsafe(self._came.set)

        # Not by the loop, which would restore the default when it closes: that ends the process.
        signal.signal(signal.SIGHUP, hung_up)

    async def next(self) -> None:
        """Wait for the next order; `stop` tells which it is."""
        await self._came.wait()
        self._came.clear()

    def _stopped(self) -> None:
        self.stop = True
        self._came.set()


async def may_begin_anew(
    settings: Settings, reread: Reread | None, stuck: Callable[[], Iterable[str]]
) -> bool:
    """Tell whether the daemon can begin anew with the configuration as it is now; log why not.

    A configuration that cannot be used, or that this pod was not made for, changes nothing. Neither
    does anything while a lane is stuck: its thread could keep the process from being replaced.
    """
    problem = await _problem(settings, reread, stuck)
    if problem:
        log.error(
            "configuration not reloaded",
            reason=problem,
            next="the former configuration stays in use",
        )
    return not problem


async def _problem(
    settings: Settings, reread: Reread | None, stuck: Callable[[], Iterable[str]]
) -> str:
    if reread is None:
        return "it was not read from a file or the environment"
    try:
        found = await asyncio.to_thread(reread)
    except SettingsError as error:
        return str(error)
    if changed := tied(settings, found):
        return (
            f"{', '.join(changed)} changed, which mounts and probes depend on; restart holdfast "
            "(with the chart: upgrade the release)"
        )
    if lanes := sorted(stuck()):
        return f"calls hang ({', '.join(lanes)}); send SIGHUP again when they have returned"
    return ""


def tied(before: Settings, after: Settings) -> tuple[str, ...]:
    """Return the keys, or sections, that differ and that only another pod can take on."""
    old, new = plain(before), plain(after)
    return tuple(path for path in _TIED if _at(old, path) != _at(new, path))


def _at(tree: object, path: str) -> object:
    for name in path.split("."):
        tree = tree[name] if isinstance(tree, dict) else None
    return tree
