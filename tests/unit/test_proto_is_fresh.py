"""The committed wire code is what the generators write from proto/, and its names are kubelet's."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from holdfast._pb.dra.v1 import api_pb2 as dra
from holdfast._pb.dra.v1beta1 import api_pb2 as dra_beta
from holdfast._pb.drahealth.v1 import api_pb2 as drahealth
from holdfast._pb.drahealth.v1alpha1 import api_pb2 as drahealth_alpha
from holdfast._pb.pluginregistration.v1 import api_pb2 as pluginregistration
from holdfast._pb.podresources.v1 import api_pb2 as podresources

REPOSITORY = Path(__file__).resolve().parents[2]


def _code_below(source_root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(source_root)): path.read_text()
        for path in (source_root / "holdfast/_pb").rglob("*.py*")
        if path.suffix in {".py", ".pyi"}
    }


def test_the_committed_wire_code_is_what_make_proto_writes(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, REPOSITORY / "proto/generate.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr

    committed = _code_below(REPOSITORY / "daemon")
    assert committed == _code_below(tmp_path), "run `make proto` and commit what it writes"
    assert any(name.endswith("api_pb2_grpc.py") for name in committed)


@pytest.mark.parametrize(
    ("module", "service", "methods"),
    [
        (deviceplugin, "v1beta1.Registration", ["Register"]),
        (
            deviceplugin,
            "v1beta1.DevicePlugin",
            [
                "GetDevicePluginOptions",
                "ListAndWatch",
                "GetPreferredAllocation",
                "Allocate",
                "PreStartContainer",
            ],
        ),
        (podresources, "v1.PodResourcesLister", ["List", "GetAllocatableResources", "Get"]),
        (
            pluginregistration,
            "pluginregistration.Registration",
            ["GetInfo", "NotifyRegistrationStatus"],
        ),
        (
            dra,
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            ["NodePrepareResources", "NodeUnprepareResources"],
        ),
        (
            dra_beta,
            "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
            ["NodePrepareResources", "NodeUnprepareResources"],
        ),
        (drahealth, "v1.DRAResourceHealth", ["NodeWatchResources"]),
        (drahealth_alpha, "v1alpha1.DRAResourceHealth", ["NodeWatchResources"]),
    ],
)
def test_services_have_the_names_that_kubelet_calls(
    module: object, service: str, methods: list[str]
) -> None:
    described = module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]  # type: ignore[attr-defined]

    assert described.full_name == service
    assert [method.name for method in described.methods] == methods


def test_an_allocate_answer_has_the_numbers_that_kubelet_reads() -> None:
    answer = deviceplugin.ContainerAllocateResponse(
        envs={"A": "b"},
        mounts=[deviceplugin.Mount(container_path="/c", host_path="/h", read_only=True)],
        devices=[deviceplugin.DeviceSpec(container_path="/d", host_path="/e", permissions="rw")],
        annotations={"k": "v"},
        cdi_devices=[deviceplugin.CDIDevice(name="x/y=z")],
    )

    assert answer.SerializeToString(deterministic=True) == (
        b"\x0a\x06\x0a\x01A\x12\x01b"
        b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"
        b"\x1a\x0c\x0a\x02/d\x12\x02/e\x1a\x02rw"
        b"\x22\x06\x0a\x01k\x12\x01v"
        b"\x2a\x07\x0a\x05x/y=z"
    )


def test_a_prepared_claim_has_the_numbers_that_kubelet_reads() -> None:
    device = dra.Device(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"
    )
    answer = dra.NodePrepareResourceResponse(devices=[device], error="e")
    wire = b"\x0a\x0f\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s\x12\x01e"

    assert answer.SerializeToString() == wire
    assert dra.Claim(namespace="n", uid="u", name="c").SerializeToString() == (
        b"\x0a\x01n\x12\x01u\x1a\x01c"
    )


def test_kubelets_before_1_34_read_the_same_but_for_the_share() -> None:
    old, new = dra_beta.DESCRIPTOR, dra.DESCRIPTOR

    assert set(old.message_types_by_name) == set(new.message_types_by_name)
    for name, message in new.message_types_by_name.items():
        fields = {each.name: each.number for each in message.fields if each.name != "share_id"}
        assert {each.name: each.number for each in old.message_types_by_name[name].fields} == fields


def test_the_health_of_a_device_has_the_numbers_that_every_kubelet_reads() -> None:
    for module in (drahealth, drahealth_alpha):
        health = module.DeviceHealth(
            device=module.DeviceIdentifier(pool_name="p", device_name="d"),
            health=module.UNHEALTHY,
            last_updated_time=3,
            health_check_timeout_seconds=4,
            message="m",
        )

        assert health.SerializeToString() == (
            b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x20\x04\x2a\x01m"
        )
