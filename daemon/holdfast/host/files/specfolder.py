"""Files for others in folders that they read: CDI specs, and the node's labels."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import yaml

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import list_names, read_bytes
from holdfast.host.files.wholefile import replace_whole

_SUFFIXES = (".json", ".yaml")


class SpecFolder:
    """Our files in a folder that other programs write to as well, known by their names' prefix.

    A file is replaced whole or not at all, and only if its content changes: each change makes
    every runtime on the node read the folder again.
    """

    def __init__(self, folder: Path, *, prefix: str, joint: str = "_") -> None:
        """Our files are those whose names begin with *prefix* and *joint*."""
        self._folder = folder
        self._joint = joint
        self._prefix = f"{prefix}{joint}"

    def hold(self, files: Mapping[str, str]) -> tuple[str, ...]:
        """Make our files exactly *files*, by the end of their names; return which ones changed.

        The folder itself is never made: in a container without the host's folder, no runtime
        would read it. Raise HostError with what to do; some files may have been changed before.
        """
        names = list_names(self._folder)
        left = [name for name in names if self._is_left_over(name, files)]
        self._rename(left, files)
        changed = self.add(files)
        for name in left:
            _remove(self._folder / name)
        return (*changed, *left)

    def _rename(self, left: Collection[str], files: Mapping[str, str]) -> None:
        """Give what has a former name its new one at once: of two files, runtimes use neither."""
        for end, text in files.items():
            path = self._folder / f"{self._prefix}{end}"
            former = next((name for name in left if _agrees(self._folder / name, text)), None)
            if former is not None and not os.path.lexists(path):
                with suppress(OSError):  # then it is written, and the other removed
                    (self._folder / former).rename(path)

    def _is_left_over(self, name: str, files: Mapping[str, str]) -> bool:
        """Tell whether *name* is ours and not one of *files*, or is one of them by a former prefix.

        Of a name that two files explain, though they say the same, runtimes use neither. Since then
        a device may have come or gone.
        """
        if name.startswith(self._prefix):
            return name.removeprefix(self._prefix) not in files
        return any(
            name.endswith(f"{self._joint}{end}") and _agrees(self._folder / name, text)
            for end, text in files.items()
        )

    def add(self, files: Mapping[str, str]) -> list[str]:
        """Make those of our files what *files* says, and leave the others; as `hold`."""
        wanted = {f"{self._prefix}{name}": text.encode() for name, text in files.items()}
        # Path.is_dir would raise some errors.
        if wanted and not os.path.isdir(self._folder):
            raise HostError(
                f"cannot write CDI specs to {self._folder}: there is no such folder; make it on "
                "the host, and mount it where holdfast runs in a container"
            )
        # Runtimes read only *.json and *.yaml, so they ignore a temporary file that a crash left.
        # It has our prefix, and the next call removes it.
        advice = f"let holdfast write to {self._folder}"
        return [
            name
            for name, content in wanted.items()
            if _hold(self._folder / name, content, f"{name}.tmp", advice)
        ]

    def drop(self, name: str) -> None:
        """Remove our file with that end of its name, if there is one; raise HostError."""
        _remove(self._folder / f"{self._prefix}{name}")

    def content(self, name: str) -> bytes:
        """Return what our file with that end of its name has; raise HostError."""
        return read_bytes(self._folder / f"{self._prefix}{name}") or b""

    def names(self) -> tuple[str, ...]:
        """Return the ends of the names of our files."""
        return tuple(
            name.removeprefix(self._prefix)
            for name in list_names(self._folder)
            if name.startswith(self._prefix)
        )

    def rivals(self, kinds: Collection[str]) -> Mapping[str, Path]:
        """Return the names of *kinds* that other programs' files define too, each with such a file.

        Runtimes then use neither definition. They ignore files that make no sense.
        """
        found: dict[str, Path] = {}
        for name in list_names(self._folder):
            if name.startswith(self._prefix) or not name.endswith(_SUFFIXES):
                continue
            try:
                content = read_bytes(self._folder / name) or b""
            except HostError:  # a folder of that name, which runtimes skip
                continue
            # Specs of GPUs are long, and YAML is slow: most files need not be parsed.
            if any(kind.encode() in content for kind in kinds):
                names = (each for each in _names(content) if each.partition("=")[0] in kinds)
                found |= dict.fromkeys(names, self._folder / name)
        return found


def _agrees(path: Path, text: str) -> bool:
    """Tell whether the file is a spec that has a name of the spec *text*, and none otherwise."""
    try:
        (one, its), (other, ours) = map(_devices, (read_bytes(path) or b"", text.encode()))
    except (HostError, ValueError, LookupError, TypeError, RecursionError):  # a folder, or no spec
        return False
    common = its.keys() & ours.keys()
    return one == other and bool(common) and all(its[each] == ours[each] for each in common)


def _devices(content: bytes) -> tuple[object, dict[str, object]]:
    """Return the kind of a spec in JSON and its devices by name; raise where it is none."""
    spec = json.loads(content)
    return spec["kind"], {each["name"]: each for each in spec["devices"]}


def _hold(path: Path, content: bytes, temporary: str, advice: str) -> bool:
    """Let the file say *content*; tell whether it said anything else. Raise HostError.

    It is written under the name *temporary* first. *advice* is what to do where that fails.
    """
    if read_bytes(path) == content:
        return False
    try:
        replace_whole(path, content, temporary=path.with_name(temporary))
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}; {advice}") from error
    return True


def _remove(path: Path) -> bool:
    """Remove the file; tell whether there was one. Raise HostError with what to do."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise HostError(f"cannot remove {path}: {error.strerror}; remove it") from error
    return True


def _names(content: bytes) -> Iterator[str]:
    """Yield the names that a spec defines; none if it is no spec."""
    try:
        # Each scalar as a string (other loaders take 0000:00:05.0 for a number). JSON is YAML.
        spec = yaml.BaseLoader(content).get_single_data()
    except (yaml.YAMLError, RecursionError):
        return
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if isinstance(spec, dict) and isinstance(devices, list):
        for device in devices:
            if isinstance(device, dict):
                yield f"{spec.get('kind')}={device.get('name')}"


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
        folder = self.path.parent
        if not os.path.isdir(folder):  # Path.is_dir would raise some errors
            raise HostError(
                f"cannot write node labels to {folder}: there is no such folder; install "
                "node-feature-discovery, and mount the node's folder where holdfast runs in a "
                "container"
            )
        advice = f"see that holdfast may write to {folder}, and that its disk has room"
        # node-feature-discovery ignores hidden files.
        return _hold(self.path, text.encode(), f".{self.path.name}", advice)

    def remove(self) -> bool:
        """Remove the file; tell whether there was one. Raise HostError with what to do."""
        return _remove(self.path)
