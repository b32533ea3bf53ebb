"""Every area that the doctor looks at: to add one, add its module and one line of `AREAS`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from holdfast.doctor.cdi import cdi_findings, gpu_cdi_findings
from holdfast.doctor.cluster import dra_findings, events_findings, named_findings
from holdfast.doctor.containerd.checks import containerd_findings
from holdfast.doctor.devicerules import device_findings
from holdfast.doctor.finding import Check, Finding, Node
from holdfast.doctor.gvisor import gvisor_findings
from holdfast.doctor.kubelet import kubelet_findings
from holdfast.doctor.labels import labels_findings
from holdfast.doctor.memory import memory_findings
from holdfast.doctor.nvidia.checks import nvidia_findings
from holdfast.doctor.privileges import privileges_findings
from holdfast.doctor.state import state_findings
from holdfast.doctor.vfio import vfio_findings
from holdfast.errors import HostError

AREAS: Mapping[str, Callable[[Node], Iterable[Finding]]] = MappingProxyType(
    {
        "kubelet": kubelet_findings,
        "dra": dra_findings,
        "events": events_findings,
        "named": named_findings,
        "vfio": vfio_findings,
        "devices": device_findings,
        "cdi": cdi_findings,
        "state": state_findings,
        "memory": memory_findings,
        "privileges": privileges_findings,
        "nvidia": nvidia_findings,
        "gpu-cdi": gpu_cdi_findings,
        "labels": labels_findings,
        "containerd": containerd_findings,
        "gvisor": gvisor_findings,
    }
)
"""What finds out about each area, by the area's name; in the order in which they are shown.

Each may raise PermissionError, or HostError, where the doctor itself may not look.

A check is named by ``Check("name")`` with a literal. A test compares those with the table in
docs/doctor.md.
"""


def _text(error: OSError | HostError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename} may not be looked at ({error.strerror})"
    return str(error)


def examine(node: Node) -> Iterator[Finding]:
    """Yield what every area found. Never raises."""
    for area, findings in AREAS.items():
        for finding in _as_far_as_readable(findings, node):
            yield replace(finding, area=area)


def _as_far_as_readable(
    findings: Callable[[Node], Iterable[Finding]], node: Node
) -> Iterator[Finding]:
    try:
        yield from findings(node)
    except (PermissionError, HostError) as error:
        yield Check("rights").warn(
            f"the rest of this area cannot be checked: {_text(error)}",
            remedy="run the doctor as root, with the host's /proc and /sys, in a pod with the "
            "daemon's capabilities; with SELinux, under a type such as spc_t",
        )
    except Exception as error:  # noqa: BLE001 - one area's bug must not hide the others' findings
        yield Check("doctor").fail(
            f"the checks of this area ended early: {type(error).__name__}: {error}",
            remedy="this is a bug of holdfast: report it with this line",
        )
