"""The file of node labels, in the folder that node-feature-discovery reads."""

import os
from pathlib import Path

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_bytes
from holdfast.host.files.wholefile import replace_whole


class FeatureFile:
    """Our file in a folder in which other programs have theirs. It blocks: run it on a lane."""

    def __init__(self, folder: Path) -> None:
        """Keep the file in *folder*, which is never made: nobody would read it."""
        self.path = folder / "holdfast"

    @property
    def exists(self) -> bool:
        """Tell whether there is one, whatever it says."""
        return os.path.lexists(self.path)

    def hold(self, text: str) -> bool:
        """Let the file say *text*; tell whether it said anything else.

        Raise HostError with what to do; the file is then as it was.
        """
        content, folder = text.encode(), self.path.parent
        if not os.path.isdir(folder):  # Path.is_dir would raise some errors
            raise HostError(
                f"cannot write node labels to {folder}: there is no such folder; install "
                "node-feature-discovery, and mount the node's folder where holdfast runs in a "
                "container"
            )
        if read_bytes(self.path) == content:
            return False
        try:
            # node-feature-discovery ignores hidden files.
            replace_whole(self.path, content, temporary=folder / f".{self.path.name}")
        except OSError as error:
            raise HostError(
                f"cannot write {self.path}: {error.strerror}; see that holdfast may write to "
                f"{folder}, and that its disk has room"
            ) from error
        return True

    def remove(self) -> bool:
        """Remove the file; tell whether there was one. Raise HostError with what to do."""
        try:
            self.path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise HostError(f"cannot remove {self.path}: {error.strerror}; remove it") from error
        return True
