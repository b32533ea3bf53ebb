"""Changes in a folder or of a file, on the event loop. Only this module imports inotify_simple."""

import asyncio
import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

from inotify_simple import INotify, flags

from holdfast.errors import HostError

Changed = Callable[[str, int], None]
"""Called with the name in the watched folder (empty: the watched path itself) and a mask."""

_FOLDER = (
    flags.CREATE
    | flags.DELETE
    | flags.MOVED_TO
    | flags.MOVED_FROM
    | flags.DELETE_SELF
    | flags.MOVE_SELF
    | flags.CLOSE_WRITE
    | flags.ATTRIB
)
_FILE = flags.MODIFY | flags.DELETE_SELF


class PathWatcher:
    """One inotify instance for all paths. Events can be lost, so callers also look regularly."""

    def __init__(self) -> None:
        """Listen on the running loop, from the first watch on."""
        self._begun: INotify | None = None
        self._callbacks: dict[int, list[Changed]] = {}
        self._loop = asyncio.get_running_loop()

    def watch(self, path: Path, changed: Changed) -> Callable[[], None]:
        """Call *changed* for each change in a folder or of a file; return what ends the watch.

        The watch also ends when *path* is removed: the last call then has IGNORED in its mask. A
        folder that is made again must be watched again. Raise HostError if *path* is not there or
        cannot be watched, or the kernel gives no inotify instance.
        """
        inotify = self._instance()
        try:
            mask = _FOLDER if path.is_dir() else _FILE
            watch = inotify.add_watch(path, mask)
        except OSError as error:
            hint = "; raise fs.inotify.max_user_watches" if error.errno == errno.ENOSPC else ""
            raise HostError(f"cannot watch {path}: {error.strerror}{hint}") from error
        self._callbacks.setdefault(watch, []).append(changed)
        return lambda: self._end(inotify, watch, changed)

    def close(self) -> None:
        """Stop listening."""
        if self._begun is not None:
            self._loop.remove_reader(self._begun.fd)
            self._begun.close()

    def _instance(self) -> INotify:
        if self._begun is None:
            try:
                self._begun = INotify(nonblocking=True)
            except OSError as error:
                many = error.errno == errno.EMFILE
                hint = "; raise fs.inotify.max_user_instances" if many else ""
                raise HostError(f"cannot use inotify: {error.strerror}{hint}") from error
            self._loop.add_reader(self._begun.fd, self._read, self._begun)
        return self._begun

    def _end(self, inotify: INotify, watch: int, changed: Changed) -> None:
        callbacks = self._callbacks.get(watch, [])
        if changed in callbacks:
            callbacks.remove(changed)
        if watch in self._callbacks and not callbacks:
            del self._callbacks[watch]
            with contextlib.suppress(OSError):  # the kernel ended it when the path was removed
                inotify.rm_watch(watch)

    def _read(self, inotify: INotify) -> None:
        for event in inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                for callbacks in list(self._callbacks.values()):
                    for changed in list(callbacks):
                        changed("", int(event.mask))
                continue
            for changed in list(self._callbacks.get(event.wd, [])):
                changed(event.name, int(event.mask))
            if event.mask & flags.IGNORED:
                self._callbacks.pop(event.wd, None)
