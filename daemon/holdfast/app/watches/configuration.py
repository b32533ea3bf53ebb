"""Sees when a file of the configuration changes, also one that kubelet renews in a ConfigMap."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

import structlog

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.files.inotify import PathWatcher
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem

log = structlog.get_logger(__name__)

_STILL = 0.05
"""Seconds for which the files must not change: many editors write one in several steps."""
_MOST_LOOKS = 40
"""Looks after which they are taken as they are: some file in a folder may change all the time."""
_LOOK = 60.0
"""Seconds between looks without an event: what a symbolic link leads to may change without one."""

_Seen = tuple[object, ...]


@dataclass(eq=False)
class ConfigurationFiles:
    """Has the configuration read when one of some files, or a file in some folders, has changed.

    Kubelet renews a ConfigMap by renaming one symbolic link in the folder where it is mounted,
    through which all its files are read. A mount by subPath is never renewed.

    Each of `files` is a file or a folder. They are watched with `paths`, and looked at on `lane`.
    `read` asks for the configuration to be read.
    """

    files: Sequence[Path]
    paths: PathWatcher
    lane: Lane
    read: Callable[[], None]

    def __post_init__(self) -> None:
        self._stirred = asyncio.Event()
        self._problem = Problem(
            log, "cannot watch the configuration", next=f"a look each {_LOOK:g} s"
        )
        self._seen: _Seen = ()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._seen = await self._look()
        while True:
            with contextlib.ExitStack() as watches:
                folders = sorted(await self._folders())
                # One problem for all: a folder that is watched says nothing about another.
                problems = [self._watch(folder, watches) for folder in folders]
                self._problem.set("; ".join(filter(None, problems)))
                self._stirred.clear()
                before, self._seen = self._seen, await self._standing_still()
                if self._seen != before:
                    self.read()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._stirred.wait()

    async def _standing_still(self) -> _Seen:
        before, now = self._seen, await self._look()
        for _ in range(_MOST_LOOKS):
            if now == before:
                break
            await asyncio.sleep(_STILL)
            before, now = now, await self._look()
        return now

    def _watch(self, folder: Path, watches: contextlib.ExitStack) -> str:
        """Watch *folder*; return why that is not possible, empty where it is."""
        try:
            watches.callback(self.paths.watch(folder, lambda _name, _mask: self._stirred.set()))
        except HostError as error:
            return str(error)
        return ""

    async def _folders(self) -> Iterable[Path]:
        with contextlib.suppress(LaneStuckError):
            return await self.lane.run(lambda: frozenset(map(_folder, self.files)))
        return ()

    async def _look(self) -> _Seen:
        """Return what the files are now, or were before where their disk does not answer."""
        try:
            return await self.lane.run(lambda: tuple(_states(self.files)))
        except LaneStuckError:  # it is in /readyz
            return self._seen


def _states(files: Sequence[Path]) -> Iterator[object]:
    for path in files:
        yield _state(path)
        # What kubelet keeps beside a ConfigMap's files begins with two dots.
        names = (each for each in _names(path) if each[:2] != "..")
        yield from (_state(path / each) for each in names)


def _names(folder: Path) -> list[str]:
    """Return what is in *folder*; nothing in a file, or where that cannot be read."""
    try:
        return sorted(each.name for each in folder.iterdir())
    except OSError:
        return []


def _folder(path: Path) -> Path:
    """Return the folder in which a change of *path* shows: it may be one itself."""
    try:
        return path if path.is_dir() else path.parent
    except OSError:
        return path.parent


def _state(path: Path) -> object:
    try:
        state = path.stat()
    except OSError as error:
        return str(path), error.errno
    same = str(path), state.st_dev, state.st_ino
    # A folder changes with each draft in it, of which nobody reads anything.
    return same if S_ISDIR(state.st_mode) else (*same, state.st_mtime_ns, state.st_size)
