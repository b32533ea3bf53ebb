"""Watches a folder that kubelet and we share: its socket, what it keeps there, our own sockets."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import structlog
from msgspec import Struct, field

from holdfast.errors import HostError, LaneStuckError
from holdfast.host.files.inotify import PathWatcher
from holdfast.host.files.kernelfile import list_names, seen
from holdfast.host.files.wholefile import FileId
from holdfast.kubelet.socket import SocketServer
from holdfast.names import KUBELET_CHECKPOINT, KUBELET_SOCKET
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Nudges, Watched

log = structlog.get_logger(__name__)

_RARELY = 5


class FolderState(Struct, frozen=True, kw_only=True):
    """What lies in the folder. `folder` is None while it does not exist."""

    folder: tuple[int, int] | None = None
    kubelet: FileId | None = None
    checkpoint: FileId | None = None
    sockets: Mapping[str, FileId] = field(default_factory=dict)
    """Our own sockets, by file name."""

    def has(self, server: SocketServer) -> bool:
        """Tell whether the socket of *server*, which serves, lies at its path."""
        return server.file is not None and self.sockets.get(server.path.name) == server.file


class FolderWatch:
    """Publishes `state` after each event of inotify, and by looking every *interval* seconds.

    The looking finds what inotify cannot tell: a folder that is made later, that goes and comes
    back, or that lies where no events arrive. It is five times as rare while inotify watches.
    """

    def __init__(
        self,
        *,
        folder: Path,
        prefix: str,
        paths: PathWatcher,
        lane: Lane,
        interval: Watched[float],
        checkpoint: str = KUBELET_CHECKPOINT,
    ) -> None:
        """Watch *folder*; the names of our own sockets there begin with *prefix*.

        *checkpoint* is the file that kubelet writes. The disk is asked on *lane*, as it may not
        answer.
        """
        self.path = folder
        self.kubelet_socket = folder / KUBELET_SOCKET
        """Where kubelet takes registrations."""
        self.checkpoint = folder / checkpoint
        """Where kubelet keeps its checkpoint."""
        self._prefix = prefix
        self._paths = paths
        self._lane = lane
        self._interval = interval
        self._watched: tuple[int, int] | None = None
        self._watching = contextlib.ExitStack()
        self._events = Nudges()
        self._problem = Problem(log, "cannot watch a folder of kubelet's", folder=str(folder))
        self.state: Watched[FolderState] = Watched(FolderState())

    async def refresh(self) -> FolderState:
        """Look now, publish, and return what is there.

        Raise LaneStuckError without an answer, HostError for one that does not tell. Then what was
        there is not gone.
        """
        state = await self._lane.run(self._look)
        self._watch(state.folder)
        self.state.set(state)
        return state

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                changes = Changes([self._events, self._interval])
                rarely = 1
                # Readiness tells of the lane; what cannot be seen is looked at again soon.
                with contextlib.suppress(LaneStuckError, HostError):
                    await self.refresh()
                    rarely = _RARELY if self._watched is not None else 1
                await changes.wait(self._interval.value * rarely)
        finally:
            self._watch(None)

    def _look(self) -> FolderState:
        folder = seen(self.path)
        if folder is None:
            return FolderState()
        return FolderState(
            folder=(folder.st_dev, folder.st_ino),
            kubelet=FileId.of(self.kubelet_socket),
            checkpoint=FileId.of(self.checkpoint),
            sockets=self._sockets(),
        )

    def _sockets(self) -> dict[str, FileId]:
        names = filter(self._is_ours, list_names(self.path))
        found = {name: FileId.of(self.path / name) for name in names}
        return {name: file for name, file in found.items() if file is not None}

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._prefix) and name.endswith(".sock")

    def _watch(self, folder: tuple[int, int] | None) -> None:
        if folder == self._watched:
            return
        self._forget()
        if folder is None:
            return
        with self._problem.noting(HostError):
            self._watching.callback(self._paths.watch(self.path, self._happened))
            self._watched = folder

    def _forget(self) -> None:
        self._watching.close()
        self._watched = None

    def _happened(self, name: str, _mask: int) -> None:
        if not name:
            # The folder itself was removed or moved, or events were lost: start over. One made in
            # its place may have its inode number.
            self._forget()
        # Kubelet's temporary files come and go at each write: only the rename matters.
        elif name not in {KUBELET_SOCKET, self.checkpoint.name} and not self._is_ours(name):
            return
        self._events.nudge()
