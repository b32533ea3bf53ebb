"""What the doctor asks the API server: rights, dropped fields, slices, other drivers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.controlplane import NODE, SLICES, ControlPlane, control_plane
from holdfast.doctor.dra.cluster import cluster_findings
from holdfast.doctor.finding import Finding, Level
from holdfast.settings.sections import Dra
from simulated.cluster.server import Rudeness
from simulated.cluster.store import Place


@pytest.fixture
def plane(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ControlPlane]:
    with control_plane(short_path, minor=getattr(request, "param", 36)) as made:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(made.server.port))
        monkeypatch.setenv("NODE_NAME", NODE)
        yield made


def asked(plane: ControlPlane) -> dict[str, Finding]:
    found = cluster_findings(Dra(service_account=str(plane.account)))
    return {each.check: each for each in found}


def bad(plane: ControlPlane) -> dict[str, str]:
    return {each.check: each.level for each in asked(plane).values() if each.level != Level.OK}


def put_slice(plane: ControlPlane, driver: str, bus: str = "0000:00:05.0") -> None:
    device = {
        "name": "one",
        "attributes": {"resource.kubernetes.io/pciBusID": {"string": bus}},
    }
    body: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": driver},
        "spec": {
            "driver": driver,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
    plane.store.create(Place(kind=SLICES), body)


def test_a_cluster_that_is_as_it_should_be_has_nothing_to_mend(plane: ControlPlane) -> None:
    put_slice(plane, "holdfast.dev")
    put_slice(plane, "other.example", "0000:00:06.0")
    before = list(plane.store.writes)
    found = asked(plane)

    assert {each.level for each in found.values()} == {Level.OK}
    assert found["slices"].reason.startswith("1 ResourceSlices of holdfast.dev have 1 devices")
    assert plane.store.writes == before, "nothing is stored by the questions"


def test_rights_that_are_missing_are_listed(plane: ControlPlane) -> None:
    plane.server.forbidden |= {("get", "resourceclaims"), ("update", "resourceslices")}

    found = asked(plane)["rights"]
    assert found.level == Level.FAIL
    assert found.reason.endswith("may not get resourceclaims, update resourceslices")


@pytest.mark.parametrize("plane", [34], indirect=True)
def test_fields_that_the_server_drops_are_named(plane: ControlPlane) -> None:
    found = asked(plane)["fields"]

    assert found.level == Level.WARN
    assert "DRADeviceTaints" in found.reason
    assert "DRAPartitionableDevices" in found.reason


def test_another_driver_with_the_same_hardware_is_a_failure(plane: ControlPlane) -> None:
    put_slice(plane, "holdfast.dev")
    put_slice(plane, "other.example")

    found = asked(plane)["rivals"]
    assert (found.level, "other.example offers 0000:00:05.0 too" in found.reason) == ("FAIL", True)


def test_slices_that_are_missing_or_cannot_be_read_are_a_warning(plane: ControlPlane) -> None:
    assert bad(plane) == {"slices": Level.WARN}
    plane.server.forbidden.add(("list", "resourceslices"))
    assert bad(plane) == {"rights": Level.FAIL, "slices": Level.WARN}


def test_the_policy_of_another_node_shows_in_the_trial(plane: ControlPlane) -> None:
    plane.server.tokens = dict.fromkeys(plane.server.tokens, "node-2")

    found = asked(plane)["fields"]
    assert found.level == Level.WARN
    assert "ValidatingAdmissionPolicy" in found.reason


def test_a_server_that_does_not_know_the_token_is_a_failure(plane: ControlPlane) -> None:
    plane.server.be_rude(Rudeness(code=401, times=9))

    assert bad(plane) == {"api-server": Level.FAIL}


def test_outside_of_a_pod_it_is_said_where_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (found,) = cluster_findings(Dra())

    assert (found.level, "kubectl exec" in found.remedy) == (Level.WARN, True)
