"""CDI: the spec files in which a container runtime looks up what a device's name stands for today.

Names that kubelet replays after a reboot still lead to the right chip; the paths of nodes do not.
"""

import json
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory, major, minor
from holdfast.model.grants import VFIO_CONTAINER
from holdfast.model.ids import DeviceName, ResourceName

_KIND = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/(?P<kind>[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?)"
)
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

# Runtimes refuse a file that uses more than its version has, and older ones a newer version: names
# may begin with a digit, as PCI addresses do, since 0.5.0, and kinds may have dots since 0.6.0.
VERSION = "0.5.0"
_VERSION_OF_DOTS = "0.6.0"
MODE = 0o666
"""What runc gives a node without a mode.

Runsc does not start on such a node (gvisor#12616, gvisor#13620).
"""


class PublishedSpecs(Struct, frozen=True, kw_only=True):
    """What the spec files on disk say: the nodes behind each name that a runtime can resolve.

    `problem` says why they are not as they should be; empty when they are.
    """

    nodes: Mapping[str, tuple[DeviceNode, ...]] = field(default_factory=dict)
    problem: str = ""

    def covers(self, device: Device) -> bool:
        """Tell whether *device*, handed over by its name, is what the container gets."""
        return bool(device.nodes) and self.nodes.get(cdi_name(device.name)) == device.nodes


def is_kind(resource: ResourceName) -> bool:
    """Tell whether *resource* can be a CDI kind: both of its parts must begin with a letter."""
    return _KIND.fullmatch(resource) is not None


def cdi_name(device: DeviceName) -> str:
    """Return the name by which kubelet hands *device* to the runtime: ``kind=device``."""
    return f"{device.resource}={device.id}"


def can_be_named(device: Device) -> bool:
    """Tell whether a spec can have *device*: its names are legal and there is a node to give."""
    legal = is_kind(device.name.resource) and _DEVICE.fullmatch(device.name.id) is not None
    # Its adapter writes the spec of one that is more than its nodes.
    return legal and bool(device.nodes) and device.kind is not DeviceKind.DRIVER


def explained(inventory: Inventory, rivals: Mapping[str, str]) -> PublishedSpecs:
    """Return what a runtime finds, once `spec_files` of the same inventory are on disk.

    *rivals* are names that files of others explain too, each with such a file: a runtime takes no
    explanation when there are two.
    """
    nodes = {cdi_name(each.name): each.nodes for each in inventory.devices if can_be_named(each)}
    return PublishedSpecs(
        nodes={name: each for name, each in nodes.items() if name not in rivals},
        problem=told_twice(nodes.keys(), rivals),
    )


def told_twice(names: Iterable[str], rivals: Mapping[str, str]) -> str:
    """Return which of *names* files of others explain too, and what to do; empty: none."""
    ambiguous = sorted(name for name in names if name in rivals)
    if not ambiguous:
        return ""
    return (
        f"{', '.join(ambiguous)}: {rivals[ambiguous[0]]} describes it as well, and runtimes "
        "then use neither; remove that file"
    )


def spec_files(inventory: Inventory) -> Mapping[str, str]:
    """Return the content of each spec file by the end of its name: one for each resource.

    The same inventory has the same content to the byte. A resource without devices has no file,
    because a spec must have one.
    """
    files: dict[str, str] = {}
    for resource in inventory.resources:
        devices = [device for device in inventory.of(resource) if can_be_named(device)]
        if devices:
            # Before the slash no resource has an underscore.
            files[f"{resource.replace('/', '_')}.json"] = _spec(resource, devices)
    return files


def _spec(resource: ResourceName, devices: list[Device]) -> str:
    found = _KIND.fullmatch(resource)
    dotted = found is not None and "." in found["kind"]
    ordered = sorted(devices, key=lambda device: device.name)
    edits = {str(device.name.id): {"deviceNodes": _nodes(device)} for device in ordered}
    return spec_text(resource, edits, version=_VERSION_OF_DOTS if dotted else VERSION)


def spec_text(
    kind: str,
    devices: Mapping[str, Mapping[str, object]],
    *,
    version: str,
    common: Mapping[str, object] | None = None,
) -> str:
    """Return the content of a spec file; *devices* are edits by name, *common* those of all.

    The same edits have the same content to the byte.
    """
    content: dict[str, object] = {
        "cdiVersion": version,
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits} for name, edits in devices.items()],
    }
    if common is not None:
        content["containerEdits"] = common
    return json.dumps(content, indent=2) + "\n"


def _nodes(device: Device) -> list[dict[str, object]]:
    nodes = [node_edits(node.path, rdev=node.rdev) for node in device.nodes]
    if device.kind is DeviceKind.VFIO:
        # Its number is the runtime's to look up: it does not change with the groups.
        nodes.append(node_edits(VFIO_CONTAINER))
    return nodes


def node_edits(
    path: str,
    *,
    host_path: str = "",
    rdev: int | None = None,
    mode: int = MODE,
    permissions: str = "rw",
) -> dict[str, object]:
    """Return the entry of a device node; without *rdev* the runtime looks its number up.

    *host_path* is where the host has it; empty: at *path*.
    """
    found: dict[str, object] = {"path": path}
    if host_path:
        found["hostPath"] = host_path
    if rdev is not None:
        found |= {"type": "c", "major": major(rdev), "minor": minor(rdev)}
    return {**found, "fileMode": mode, "permissions": permissions}
