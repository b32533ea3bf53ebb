"""Reads files of kubelet's, above all its checkpoint: which pod has which devices."""

import base64
import binascii
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct, field

from holdfast._pb.deviceplugin.v1beta1 import api_pb2
from holdfast.errors import KubeletError
from holdfast.host.files.wholefile import FileId
from holdfast.model.ids import NO_CHECKPOINT, CheckpointId, DeviceId, PodUid, ResourceName
from holdfast.model.kubelet import CheckpointEntry

_LARGEST = 16 * 1024 * 1024
_ADVICE = "it is written at each allocation and each registration; restart kubelet if it stays so"
T = TypeVar("T")


class Promises(Protocol):
    """Reads what vendors' adapters understand of an answer to Allocate; see `discovery.source`."""

    def promised(self, variables: Mapping[str, str], mounts: Sequence[str]) -> tuple[str, ...]:
        """Return the `promised_ids` in an answer's variables and its mounts' container paths."""


class CheckpointState(Enum):
    """What became of a look at one of kubelet's files."""

    READ = "read"
    MISSING = "missing"
    """No such file: kubelet has not written one, or somebody removed it."""

    UNREADABLE = "unreadable"
    """The system does not let us read it, or it is not what any known kubelet writes."""


class FileLook(Struct, Generic[T], frozen=True, kw_only=True):
    """One look at a file of kubelet's. Unless READ, its `contents` are none and it has a `problem`.

    `file` is None where it could not be looked at. `read_at` is when the look began, in seconds
    since the machine booted, for those who compare it with other moments.
    """

    state: CheckpointState
    contents: T
    problem: str = ""
    file: FileId | None = None
    read_at: float = 0.0

    @property
    def id(self) -> CheckpointId:
        """Return which checkpoint it was."""
        return NO_CHECKPOINT if self.file is None else self.file.checkpoint


class Contents(Struct, frozen=True, kw_only=True):
    """What one checkpoint says. `plain_lists`: without NUMA nodes, as before Kubernetes 1.20."""

    entries: tuple[CheckpointEntry, ...] = ()
    registered: Mapping[ResourceName, frozenset[DeviceId]] = field(default_factory=dict)
    """The devices that kubelet takes for healthy, by resource."""
    has_checksum: bool = False
    """Whether there is one; only kubelet can tell whether it is right."""
    plain_lists: bool = False


class _Entry(msgspec.Struct, frozen=True):
    pod: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    # By NUMA node since Kubernetes 1.20, a plain list before.
    ids: dict[str, list[str] | None] | list[str] | None = msgspec.field(name="DeviceIDs")
    answer: str | None = msgspec.field(name="AllocResp", default=None)


class _CheckpointData(msgspec.Struct, frozen=True):
    # Go writes an empty list as null; a key that is not there at all is another version's file.
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries")
    registered: dict[str, list[str] | None] | None = msgspec.field(
        name="RegisteredDevices", default=None
    )


class _CheckpointFile(msgspec.Struct, frozen=True):
    data: _CheckpointData = msgspec.field(name="Data")
    checksum: Any = msgspec.field(name="Checksum", default=None)


def check_size(content: bytes) -> None:
    """Raise KubeletError when *content* is nothing, or more than kubelet ever writes."""
    if len(content) > _LARGEST:
        raise KubeletError(f"it is larger than {_LARGEST >> 20} MiB")
    if not content.strip():
        raise KubeletError("it is empty")


def decoded(content: bytes | str, kind: type[T]) -> T:
    """Return the JSON *content* as a *kind*; raise KubeletError where it is none."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise KubeletError(f"it is of no known version ({error})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubeletError(f"it is not whole JSON ({error})") from error
    except RecursionError as error:
        raise KubeletError("it is nested too deep") from error


def parse(content: bytes, promises: Promises) -> Contents:
    """Return what *content* says; raise KubeletError when any part of it is not understood.

    All or nothing: a pod that is missing because its line was not understood would look like one
    that kubelet let go of.
    """
    check_size(content)
    file = decoded(content, _CheckpointFile)
    entries = file.data.entries or ()
    return Contents(
        entries=tuple(_entry(each, promises) for each in entries),
        registered={
            ResourceName(resource): frozenset(map(DeviceId, ids or ()))
            for resource, ids in (file.data.registered or {}).items()
        },
        has_checksum=type(file.checksum) is int,
        plain_lists=any(isinstance(each.ids, list) for each in entries),
    )


def look_at(
    path: Path,
    understand: Callable[[bytes], T],
    nothing: T,
    *,
    what: str,
    folder: str,
    missing: str = "",
    garbage: str,
) -> FileLook[T]:
    """Look at one of kubelet's files. Whatever is wrong with it is told, never raised.

    The contents of one that cannot be understood are *nothing*. *folder* of kubelet's is where the
    file is; *missing* and *garbage* are what to do about one that is not there, or that cannot be
    understood.
    """
    state, contents, problem, file = CheckpointState.READ, nothing, "", None
    try:
        with path.open("rb") as stream:
            file = FileId.from_stat(os.fstat(stream.fileno()))
            # Of one that is too large there is one byte more than is ever understood.
            content = stream.read(_LARGEST + 1)
        contents = understand(content)
    except FileNotFoundError:
        state = CheckpointState.MISSING
        problem = f"cannot read {what} {path}: there is no such file{missing}"
    except OSError as error:
        state, file = CheckpointState.UNREADABLE, None
        problem = (
            f"cannot read {what} {path}: {error.strerror or error}; holdfast must run as root with "
            f"kubelet's {folder} folder mounted"
        )
    except KubeletError as error:
        state = CheckpointState.UNREADABLE
        problem = f"cannot understand {what} {path}: {error}; {garbage}"
    return FileLook(state=state, contents=contents, problem=problem, file=file)


def read(path: Path, promises: Promises) -> FileLook[Contents]:
    """Look at the checkpoint at *path*. Whatever is wrong with it is told, never raised."""
    return look_at(
        path,
        lambda content: parse(content, promises),
        Contents(),
        what="kubelet's checkpoint",
        folder="device-plugins",
        missing=f"; {_ADVICE}",
        garbage=_ADVICE,
    )


def _entry(entry: _Entry, promises: Promises) -> CheckpointEntry:
    if not entry.pod or not entry.resource:
        raise KubeletError("it is of no known version (an entry without a pod or a resource)")
    groups = entry.ids.values() if isinstance(entry.ids, dict) else [entry.ids]
    answer = _answer(entry.answer)
    return CheckpointEntry(
        pod=PodUid(entry.pod),
        container=entry.container,
        resource=ResourceName(entry.resource),
        # A device with two NUMA nodes stands there twice.
        devices=frozenset(DeviceId(id_) for group in groups for id_ in group or ()),
        promised=tuple(dict.fromkeys(spec.host_path for spec in answer.devices)),
        promised_names=tuple(dict.fromkeys(_names(answer))),
        promised_ids=promises.promised(
            answer.envs, [mount.container_path for mount in answer.mounts]
        ),
    )


def _names(answer: api_pb2.ContainerAllocateResponse) -> Iterator[str]:
    """Yield the CDI names in *answer*: where kubelet has a field for them, and in annotations."""
    yield from (device.name for device in answer.cdi_devices)
    for text in answer.annotations.values():
        yield from (name for name in text.split(",") if "=" in name)


def _answer(answer: str | None) -> api_pb2.ContainerAllocateResponse:
    """Return our answer to the Allocate; an empty one where it cannot be read."""
    try:
        return api_pb2.ContainerAllocateResponse.FromString(
            base64.b64decode(answer or "", validate=True)
        )
    except (binascii.Error, ValueError, DecodeError):
        # Who has the devices is still known, and that matters more.
        return api_pb2.ContainerAllocateResponse()
