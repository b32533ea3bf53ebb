"""Sees when a file of the configuration changes, also one that kubelet renews in a ConfigMap."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import structlog

from holdfast.errors import HostError
from holdfast.host.files.inotify import PathWatcher

log = structlog.get_logger(__name__)

_STILL = 0.05
"""Seconds for which the files must not change: many editors write one in several steps."""
_LOOK = 60.0
"""Seconds between looks without an event: what a symbolic link leads to may change without one."""

_Seen = tuple[object, ...]


class ConfigurationFiles:
    """Calls `changed` whenever one of some files, or a file in one of some folders, has changed.

    Kubelet renews a ConfigMap by renaming one symbolic link in the folder where it is mounted,
    through which all its files are read. A mount by subPath is never renewed.
    """

    def __init__(
        self, files: Sequence[Path], *, paths: PathWatcher, changed: Callable[[], None]
    ) -> None:
        """Watch *files*, each a file or a folder, with *paths*."""
        self._files = files
        self._paths = paths
        self._changed = changed
        self._stirred = asyncio.Event()
        self._problem = ""

    async def run(self) -> None:
        """Watch until cancelled."""
        seen = await asyncio.to_thread(self._look)
        while True:
            with contextlib.ExitStack() as watches:
                for folder in {each if each.is_dir() else each.parent for each in self._files}:
                    self._watch(folder, watches)
                self._stirred.clear()
                now = await self._standing_still(seen)
                if now != seen:
                    seen = now
                    self._changed()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._stirred.wait()

    async def _standing_still(self, before: _Seen) -> _Seen:
        now = await asyncio.to_thread(self._look)
        while now != before:
            await asyncio.sleep(_STILL)
            before, now = now, await asyncio.to_thread(self._look)
        return now

    def _watch(self, folder: Path, watches: contextlib.ExitStack) -> None:
        try:
            watches.callback(self._paths.watch(folder, lambda _name, _mask: self._stirred.set()))
            self._problem = ""
        except HostError as error:
            if self._problem != str(error):
                self._problem = str(error)
                log.warning(
                    "cannot watch the configuration",
                    reason=str(error),
                    next=f"a look each {_LOOK:g} s",
                )

    def _look(self) -> _Seen:
        return tuple(_states(self._files))


def _states(files: Sequence[Path]) -> Iterator[object]:
    for path in files:
        if path.is_dir():
            # What kubelet keeps beside a ConfigMap's files begins with two dots.
            yield from _states([each for each in sorted(path.iterdir()) if each.name[:2] != ".."])
            continue
        try:
            state = path.stat()
        except OSError as error:
            yield str(path), error.errno
        else:
            yield str(path), state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size
