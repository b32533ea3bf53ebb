"""What a pod was promised and what it would get now: the rule, case by case."""

import pytest
from msgspec import Struct

from fakes.books import device_of, name
from holdfast.model.devices import Device, DeviceKind, DeviceNode, Inventory
from holdfast.model.gate.cdi import PublishedSpecs, explained
from holdfast.model.gate.promise import breach
from holdfast.model.ids import DeviceId, PodUid, ResourceName
from holdfast.model.kubelet import CheckpointEntry
from holdfast.model.nvidia.names import GPU_KIND, GpuNames, gpu_breach

TPU = ResourceName("google.com/tpu")
A, B = "0000:00:05.0", "0000:00:06.0"
VFIO = "/dev/vfio/vfio"


def _chip(address: str, group: int) -> Device:
    return device_of(name(address, TPU), nodes=(DeviceNode(path=f"/dev/vfio/{group}", rdev=group),))


NODE = Inventory(resources=(TPU,), devices=(_chip(A, 10), _chip(B, 11)))
TODAY = explained(NODE, {})
YESTERDAY = explained(Inventory(resources=(TPU,), devices=(_chip(A, 11), _chip(B, 10))), {})
AMBIGUOUS = explained(NODE, {f"{TPU}={A}": "/var/run/cdi/other.json"})
NOTHING = PublishedSpecs()
READ_ONLY = PublishedSpecs(problem="cannot write the spec: Read-only file system")


class Case(Struct, frozen=True, kw_only=True):
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    published: PublishedSpecs = NOTHING
    says: str | None = None
    final: bool = False


CASES = {
    "an answer that could not be read promises nothing": Case(),
    "the very nodes": Case(paths=("/dev/vfio/10", VFIO)),
    "another number": Case(paths=("/dev/vfio/20", VFIO), says="delete the pod", final=True),
    "another chip's number": Case(paths=("/dev/vfio/11",), says="delete the pod", final=True),
    "another chip's node beside its own": Case(
        paths=("/dev/vfio/10", "/dev/vfio/11"), says="delete the pod", final=True
    ),
    "a name that the spec explains": Case(names=(f"{TPU}={A}",), published=TODAY),
    "a name that no spec explains": Case(names=(f"{TPU}={A}",), says="does not say yet"),
    "a name that an old spec explains with another's node": Case(
        names=(f"{TPU}={A}",), published=YESTERDAY, says="does not say yet"
    ),
    "a name in a spec that cannot be written": Case(
        names=(f"{TPU}={A}",), published=READ_ONLY, says="Read-only file system"
    ),
    "a name that somebody else's file explains too": Case(
        names=(f"{TPU}={A}",), published=AMBIGUOUS, says="remove that file"
    ),
    "another chip's name": Case(
        names=(f"{TPU}={B}",), published=TODAY, says="delete the pod", final=True
    ),
    "another chip's name beside its own": Case(
        names=(f"{TPU}={A}", f"{TPU}={B}"), published=TODAY, says="delete the pod", final=True
    ),
    "a former plugin's name, of which nothing is known": Case(names=("vendor.com/tpu=0",)),
    "node and name together, both right": Case(
        paths=("/dev/vfio/10",), names=(f"{TPU}={A}",), published=TODAY
    ),
    "node and name together, the node wrong": Case(
        paths=("/dev/vfio/11",),
        names=(f"{TPU}={A}",),
        published=TODAY,
        says="/dev/vfio/11",
        final=True,
    ),
    "node and name together, the name unexplained": Case(
        paths=("/dev/vfio/10",), names=(f"{TPU}={A}",), says="does not say yet"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_container_starts_only_on_an_answer_that_still_leads_to_its_devices(case: Case) -> None:
    entry = CheckpointEntry(
        pod=PodUid("pod"),
        container="main",
        resource=TPU,
        devices=frozenset({DeviceId(A)}),
        promised=case.paths,
        promised_names=case.names,
    )

    found = breach(entry, (_chip(A, 10),), inventory=NODE, published=case.published)

    if case.says is None:
        assert found is None
    else:
        assert found is not None
        assert case.says in found.reason
        assert found.final is case.final


GPU = ResourceName("nvidia.com/gpu")
NAMES = GpuNames(
    devices={f"{GPU_KIND}=GPU-a": DeviceId("GPU-a"), f"{GPU_KIND}=0": DeviceId("GPU-a")}
    | {f"{GPU_KIND}=GPU-b": DeviceId("GPU-b"), f"{GPU_KIND}=1": DeviceId("GPU-b")},
    beside=frozenset({"k8s.device-plugin.nvidia.com/gds=all"}),
)
_OWN, _OTHER = f"{GPU_KIND}=GPU-a", f"{GPU_KIND}=GPU-b"
_GDS, _MOFED = "k8s.device-plugin.nvidia.com/gds=all", "k8s.device-plugin.nvidia.com/mofed=all"
_UNEXPLAINED = GpuNames(problem="read-only file system")
GPU_CASES: dict[str, tuple[tuple[str, ...], GpuNames, str | None, bool]] = {
    "its UUID": ((_OWN,), NAMES, None, False),
    "its index": ((f"{GPU_KIND}=0",), NAMES, None, False),
    "its UUID and a mode": ((_OWN, _GDS), NAMES, None, False),
    "an index that is another's since the boot": (
        (f"{GPU_KIND}=1",),
        NAMES,
        "delete the pod",
        True,
    ),
    "another's beside its own": ((_OWN, _OTHER), NAMES, "delete the pod", True),
    "a mode without the GPU": ((_GDS,), NAMES, "delete the pod", True),
    "its UUID, which no spec explains": ((_OWN,), _UNEXPLAINED, "read-only file system", False),
    "a mode that no spec explains": ((_OWN, _MOFED), NAMES, "mofed=all by name, and no CDI", False),
    "the name of another vendor's spec": (("vendor.com/gpu=0",), GpuNames(), None, False),
}


@pytest.mark.parametrize("case", GPU_CASES)
def test_a_container_starts_on_a_gpus_name_only_where_a_spec_leads_it_to_its_own(case: str) -> None:
    names, found, says, final = GPU_CASES[case]
    device = device_of(
        name("GPU-a", GPU), kind=DeviceKind.DRIVER, nodes=(DeviceNode(path="/dev/nvidia0", rdev=1),)
    )
    entry = CheckpointEntry(
        pod=PodUid("pod"),
        container="main",
        resource=GPU,
        devices=frozenset({DeviceId("GPU-a")}),
        promised_names=names,
    )

    broken = gpu_breach(entry, (device,), names=found, indexes={})

    if says is None:
        assert broken is None
    else:
        assert broken is not None
        assert says in broken.reason
        assert broken.final is final


@pytest.mark.parametrize(
    ("promised", "today", "kept"),
    [
        ((), {"GPU-a": "1"}, True),
        (("0",), {"GPU-a": "0", "GPU-b": "1"}, True),
        (("0",), {"GPU-a": "1", "GPU-b": "0"}, False),
        (("0",), {}, False),
        (("0", "1"), {"GPU-a": "0", "GPU-b": "1"}, False),
    ],
)
def test_an_index_must_be_that_of_the_gpu_that_the_pod_has(
    promised: tuple[str, ...], today: dict[str, str], kept: bool
) -> None:
    device = device_of(name("GPU-a", GPU), kind=DeviceKind.DRIVER)
    entry = CheckpointEntry(
        pod=PodUid("pod"),
        container="main",
        resource=GPU,
        devices=frozenset({DeviceId("GPU-a")}),
        promised_ids=promised,
    )
    indexes = {DeviceId(id_): index for id_, index in today.items()}

    broken = gpu_breach(entry, (device,), names=GpuNames(), indexes=indexes)

    assert (broken is None) == kept
    assert broken is None or (broken.final and "delete the pod" in broken.reason)
