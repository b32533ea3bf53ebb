"""Who has which device, as every kubelet that is played keeps it in memory and in its checkpoint."""

import base64
import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Entry:
    """One container's devices of one resource."""

    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: bytes


class DeviceTable:
    """The devices of containers; nothing is written but where somebody asks for the text."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.leaked: dict[str, set[str]] = {}
        """Ids by resource that are taken by no pod, as after some failed admissions."""
        self.later_version = False
        """Write what no version known today has written."""
        self._random = random.Random(0)

    def drop(self, active: Collection[str]) -> None:
        """Forget the devices of every pod that is not *active*; kubelet does this lazily."""
        self.entries = [entry for entry in self.entries if entry.pod in active]

    def taken(self, resource: str) -> set[str]:
        """Return the ids of *resource* that some pod has."""
        had = {id_ for entry in self.entries if entry.resource == resource for id_ in entry.ids}
        return had | self.leaked.get(resource, set())

    def of(self, pod: str, container: str, resource: str) -> Entry | None:
        """Return the entry of one container's resource."""
        wanted = (pod, container, resource)
        return next(
            (each for each in self.entries if (each.pod, each.container, each.resource) == wanted),
            None,
        )

    def note(
        self,
        pod: str,
        resource: str,
        ids: Iterable[str],
        *,
        container: str = "main",
        answer: bytes = b"",
    ) -> None:
        """Note that *pod*, a UID, has these devices; the checkpoint is not written."""
        self.entries.append(
            Entry(pod=pod, container=container, resource=resource, ids=tuple(ids), answer=answer)
        )

    def checkpoint(
        self,
        registered: Mapping[str, Sequence[str]],
        nodes: Callable[[str, str], Collection[int]] = lambda _resource, _id: (),
    ) -> str:
        """Return what kubelet writes, with *registered* devices, each on *nodes* of its own."""
        entries = [
            {
                "PodUID": entry.pod,
                "ContainerName": entry.container,
                "ResourceName": entry.resource,
                "DeviceIDs": _by_node(entry, nodes),
                "AllocResp": base64.b64encode(entry.answer).decode(),
            }
            for entry in self.entries
        ]
        name = "PodDeviceEntriesV9" if self.later_version else "PodDeviceEntries"
        content = {
            "Data": {name: entries, "RegisteredDevices": registered},
            "Checksum": self._random.getrandbits(32),
        }
        return json.dumps(content)

    def take_up(self, checkpoint: str) -> list[str]:
        """Have what *checkpoint* says, as at a start; return the resources registered in it.

        One that makes no sense leaves nothing.
        """
        self.entries = []
        try:
            data = json.loads(checkpoint)["Data"]
        except (ValueError, KeyError):
            return []
        for entry in data["PodDeviceEntries"]:
            self.note(
                entry["PodUID"],
                entry["ResourceName"],
                dict.fromkeys(_flat(entry["DeviceIDs"])),
                container=entry["ContainerName"],
                answer=base64.b64decode(entry["AllocResp"]),
            )
        return list(data["RegisteredDevices"])


def _by_node(entry: Entry, nodes: Callable[[str, str], Collection[int]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id_ in entry.ids:
        for node in nodes(entry.resource, id_) or (-1,):
            found.setdefault(str(node), []).append(id_)
    return found


def _flat(ids: dict[str, list[str]] | list[str]) -> list[str]:
    return ids if isinstance(ids, list) else [id_ for each in ids.values() for id_ in each]
