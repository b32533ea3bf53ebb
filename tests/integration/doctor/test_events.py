"""Whether the API server would take what `events.enabled` writes, and show the node's label."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.controlplane import NODE, ControlPlane, control_plane
from fakes.nodetree import NodeTree
from holdfast.doctor.apiserver import EVENT_RIGHTS, LABEL_RIGHTS, Right
from holdfast.doctor.cluster import events_findings, named_findings
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.settings import convert
from simulated.cluster.objects import NODES
from simulated.cluster.server import Rudeness
from simulated.cluster.store import Place


@pytest.fixture
def plane(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlane]:
    with control_plane(short_path) as made:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", made.access.host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(made.access.port))
        monkeypatch.setenv("NODE_NAME", NODE)
        yield made


def told(plane: ControlPlane) -> dict[str, Finding]:
    settings = convert({"events": {"enabled": True}, "dra": {"serviceAccount": str(plane.account)}})
    return {each.check: each for each in events_findings(Node(settings=settings))}


def test_with_events_off_nobody_is_asked(node: NodeTree) -> None:
    found = node.told()

    assert found.bad("events") == {}
    assert [each["check"] for each in found.findings if each["area"] == "events"] == ["enabled"]


def test_a_cluster_in_order_has_nothing_to_mend(plane: ControlPlane) -> None:
    before = plane.store.get(Place(kind=NODES, name=NODE))
    found = told(plane)

    assert {each.level for each in found.values()} == {Level.OK}
    assert set(found) == {"enabled", "api-server", "rbac", "node"}
    assert plane.store.get(Place(kind=NODES, name=NODE)) == before


@pytest.mark.parametrize("right", EVENT_RIGHTS, ids=str)
def test_each_right_that_is_missing_is_named(right: Right, plane: ControlPlane) -> None:
    resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    plane.server.forbidden.add((right.verb, resource))

    found = told(plane)

    assert found["rbac"].level is Level.FAIL
    assert found["rbac"].reason == f"the service account may not {right}"
    assert "config.events.enabled: true" in found["rbac"].remedy


def test_a_name_that_is_no_nodes_and_one_of_another_node_are_told(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "node-2")
    refused = told(plane)["node"]
    plane.server.tokens = dict.fromkeys(plane.server.tokens, "node-2")
    gone = told(plane)["node"]

    assert refused.level is gone.level is Level.FAIL
    assert "ValidatingAdmissionPolicy" in refused.reason
    assert "dra.nodeName" in gone.remedy


def test_outside_of_a_pod_and_without_an_answer_nothing_is_concluded(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.server.be_rude(Rudeness(code=503, times=100))
    assert told(plane)["api-server"].level is Level.FAIL
    (plane.account / "token").unlink()
    without_token = told(plane)["api-server"]
    assert without_token.level is Level.FAIL
    assert "config.events.enabled: true" in without_token.remedy
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert told(plane)["api-server"].level is Level.WARN


def _told_of_label(plane: ControlPlane, folder: str) -> dict[str, Finding]:
    settings = {"named": {"folder": folder}, "dra": {"serviceAccount": str(plane.account)}}
    return {each.check: each for each in named_findings(Node(settings=convert(settings)))}


def test_without_documents_to_choose_from_no_right_to_read_labels_is_asked_for(
    plane: ControlPlane,
) -> None:
    assert _told_of_label(plane, "").keys() == {"label"}
    assert {each.level for each in _told_of_label(plane, "/named").values()} == {Level.OK}


@pytest.mark.parametrize("right", LABEL_RIGHTS, ids=str)
def test_each_right_to_read_labels_that_is_missing_is_named(
    right: Right, plane: ControlPlane
) -> None:
    plane.server.forbidden.add((right.verb, right.resource))

    found = _told_of_label(plane, "/named")["rbac"]

    assert (found.level, found.reason) == (Level.FAIL, f"the service account may not {right}")
    assert "config.map or config.name" in found.remedy
