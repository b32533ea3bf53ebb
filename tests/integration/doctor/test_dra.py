"""What can be wrong with what claims need: kubelet's folders, the driver's sockets, the API server."""

import binascii
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.controlplane import NODE, ControlPlane, control_plane
from fakes.doctortrees import worst
from fakes.listener import listening
from fakes.nodetree import NodeTree
from holdfast.doctor.apiserver import RIGHTS, Right
from holdfast.doctor.cluster import dra_findings
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.kubelet import claim_findings
from holdfast.settings import convert
from simulated.cluster.objects import NODES, SLICES
from simulated.cluster.server import Rudeness
from simulated.cluster.store import Place

_DRA = ("--set", "tpu.api=dra")
_DRIVER = "holdfast.dev"
_CLAIMS = json.dumps(
    {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": None,
    }
)
_RECORD = json.dumps({"Data": _CLAIMS, "Checksum": binascii.crc32(_CLAIMS.encode())})


@pytest.fixture
def claims(node: NodeTree) -> NodeTree:
    """A node whose kubelet knows DRA."""
    for name in ("plugins", "plugins_registry"):
        (node.folder / "var/lib/kubelet" / name).mkdir()
    return node


def test_without_hardware_for_claims_nothing_is_asked_of_kubelet(node: NodeTree) -> None:
    told = node.told()

    assert told.bad("dra") == {}
    assert told.of("dra", "api")["reason"] == "no hardware is served by DRA"
    assert [each["check"] for each in told.findings if each["area"] == "dra"] == ["api"]


def test_a_node_in_order_has_nothing_to_mend(claims: NodeTree) -> None:
    told = claims.told(*_DRA)

    assert told.bad("dra") == {}
    assert "the daemon makes it" in told.of("dra", "driver-folder")["reason"]
    (claims.folder / f"var/lib/kubelet/plugins/{_DRIVER}").mkdir()
    assert claims.told(*_DRA).of("dra", "driver-folder")["reason"].endswith("is there")


@pytest.mark.parametrize(
    ("folder", "check"), [("plugins_registry", "registry"), ("plugins", "driver-folder")]
)
def test_a_folder_of_kubelets_that_is_not_there_fails(
    folder: str, check: str, claims: NodeTree
) -> None:
    claims.remove(f"var/lib/kubelet/{folder}")

    told = claims.told(*_DRA)

    assert told.bad("dra") == {check: "FAIL"}
    assert "dra.enabled of the chart" in told.of("dra", check)["remedy"]


@pytest.mark.parametrize(
    ("folder", "check"),
    [("plugins_registry", "registry"), (f"plugins/{_DRIVER}", "driver-folder")],
)
def test_a_folder_of_kubelets_that_is_read_only_fails(
    folder: str, check: str, claims: NodeTree
) -> None:
    (claims.folder / "var/lib/kubelet" / folder).mkdir(exist_ok=True)
    claims.write(
        "proc/1/mountinfo",
        "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/x rw\n"
        f"21 20 8:2 / /var/lib/kubelet/{folder} ro,relatime - ext4 /dev/y ro\n",
    )

    told = claims.told(*_DRA)

    assert told.bad("dra") == {check: "FAIL"}
    assert "is mounted read-only" in told.of("dra", check)["reason"]


def test_another_root_of_kubelet_is_looked_at_where_it_is(claims: NodeTree) -> None:
    told = claims.told(*_DRA, "--set", "dra.kubeletRoot=/data/kubelet")

    assert set(told.bad("dra")) == {"registry", "driver-folder"}
    assert "/data/kubelet/plugins_registry is not there" in told.of("dra", "registry")["reason"]


def test_where_claims_are_served_kubelets_record_of_them_must_be_seen(
    claims: NodeTree,
) -> None:
    assert claims.told(*_DRA).bad("kubelet") == {"claim-state": "WARN"}
    assert claims.told().bad("kubelet") == {}
    # In a copied node it is where kubelet writes it, whatever the daemon reads it through.
    elsewhere = ("--set", "dra.claimState=/proc/1/root/var/lib/kubelet/dra_manager_state")
    claims.write("var/lib/kubelet/dra_manager_state", _RECORD)
    assert claims.told(*_DRA, *elsewhere).bad("kubelet") == {}


# From here on the node is live: real sockets, and real processes behind them.


def _live(folder: Path) -> dict[str, Finding]:
    settings = {
        "stateDir": str(folder),
        "dra": {"kubeletRoot": str(folder)},
        "tpu": {"api": "dra"},
    }
    found = worst(dra_findings(Node(settings=convert(settings))))
    del found["api-server"]  # there is none
    return found


@pytest.fixture
def folder(short_path: Path) -> Path:
    (short_path / "plugins_registry").mkdir()
    (short_path / "plugins" / _DRIVER).mkdir(parents=True)
    return short_path


def test_kubelets_record_of_claims_is_seen_where_its_folder_is_a_link(folder: Path) -> None:
    root = folder / "proc/1/root"
    (root / "data").mkdir(parents=True)
    (root / "data/dra_manager_state").write_text(_RECORD)
    (root / "kubelet").symlink_to("/data")
    state = f"{root}/kubelet/dra_manager_state"
    settings = {"tpu": {"api": "dra"}, "dra": {"claimState": state}}

    found = worst(claim_findings(Node(settings=convert(settings))))

    assert found["claim-state"].level is Level.OK


def _sockets(folder: Path) -> list[Path]:
    return [
        folder / "plugins" / _DRIVER / "dra.sock",
        folder / f"plugins_registry/{_DRIVER}-reg.sock",
    ]


def test_the_daemon_answers_on_the_drivers_sockets_while_it_runs(folder: Path) -> None:
    sockets = _sockets(folder)
    with listening("holdfast", folder, [folder / "control.sock", *sockets]):
        told = _live(folder)
        assert {each.level for each in told.values()} == {Level.OK}

        sockets[0].unlink()
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(sockets[0]))
        silent = _live(folder)["driver-sockets"]
        assert silent.level is Level.FAIL
        assert f"nobody answers on {sockets[0]} (Connection refused)" in silent.reason

    down = _live(folder)["driver-sockets"]
    assert (down.level, down.reason) == (Level.OK, "no daemon runs that could serve claims")


@pytest.mark.parametrize("runs", [True, False])
def test_a_second_driver_of_the_same_name_is_found(runs: bool, folder: Path) -> None:
    service, registration = _sockets(folder)
    ours = [folder / "control.sock", registration] if runs else [folder / "none.sock"]
    with (
        listening("holdfast", folder, ours),
        listening("another", folder, [service]) as pid,
    ):
        found = _live(folder)["driver-sockets"]

    assert found.level is Level.FAIL
    assert f"pid {pid} answers on {service}, and is not the daemon" in found.reason
    assert "dra.driverName" in found.remedy


def test_a_daemon_that_is_stuck_is_no_second_driver(folder: Path) -> None:
    with (
        listening("holdfast", folder, _sockets(folder)),
        socket.socket(socket.AF_UNIX) as stuck,
        socket.socket(socket.AF_UNIX) as waits,
    ):
        stuck.bind(str(folder / "control.sock"))
        stuck.listen(0)
        waits.connect(str(folder / "control.sock"))

        assert "driver-sockets" not in _live(folder)


# And from here on there is an API server, as the daemon's pod reaches it.


class Cluster:
    """A cluster of one node, and what the doctor says of it from the daemon's pod."""

    def __init__(self, folder: Path, plane: ControlPlane, variables: pytest.MonkeyPatch) -> None:
        self.folder, self.plane = folder, plane
        variables.setenv("KUBERNETES_SERVICE_HOST", plane.access.host)
        variables.setenv("KUBERNETES_SERVICE_PORT", str(plane.access.port))
        variables.setenv("NODE_NAME", NODE)
        self.kubelet("v1.36.2-gke.100", {})

    def kubelet(self, version: str, allocatable: dict[str, str]) -> None:
        place = Place(kind=NODES, name=NODE)
        node = self.plane.store.get(place)
        node["status"] = {
            "nodeInfo": {**_NODE_INFO, "kubeletVersion": version},
            "allocatable": allocatable,
        }
        self.plane.store.update(place, node, subresource="status")

    def publish(self, driver: str, *devices: dict[str, Any]) -> None:
        made = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"00000-{driver}-{NODE}"},
            "spec": {
                "driver": driver,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                "devices": list(devices),
            },
        }
        self.plane.store.create(Place(kind=SLICES), made)

    def findings(self, **changes: object) -> list[Finding]:
        settings: dict[str, object] = {
            "stateDir": str(self.folder),
            "dra": {"kubeletRoot": str(self.folder), "serviceAccount": str(self.plane.account)},
            "tpu": {"api": "dra"},
            "gpu": {"api": "dra"},
            **changes,
        }
        return list(dra_findings(Node(settings=convert(settings))))

    def told(self, **changes: object) -> dict[str, Finding]:
        return worst(self.findings(**changes))

    def bad(self) -> dict[str, Level]:
        told = self.told()
        return {name: each.level for name, each in told.items() if each.level is not Level.OK}


_NODE_INFO = dict.fromkeys(
    (
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ),
    "",
)


def _device(name: str, **attributes: str) -> dict[str, Any]:
    known = {"pci": "resource.kubernetes.io/pciBusID"}
    return {
        "name": name,
        "attributes": {known.get(key, key): {"string": text} for key, text in attributes.items()},
    }


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with control_plane(folder) as plane:
        yield Cluster(folder, plane, monkeypatch)


def test_a_cluster_in_order_has_nothing_to_mend_and_nothing_is_stored(cluster: Cluster) -> None:
    cluster.publish(_DRIVER, _device("tpu-0", pci="0000:00:05.0"))
    before = list(cluster.plane.store.writes)

    told = cluster.told()

    assert {name: each.level for name, each in told.items()} == dict.fromkeys(told, Level.OK)
    assert told["slices"].reason == f"the scheduler knows 1 devices of node {NODE}, 0 with a taint"
    assert cluster.plane.store.writes == before
    assert len(cluster.plane.slices()) == 1


def test_outside_of_a_pod_the_doctor_says_where_to_run_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")

    assert cluster.bad() == {"api-server": Level.WARN}
    assert "kubectl exec" in cluster.told()["api-server"].remedy


def test_a_pod_without_a_token_fails(cluster: Cluster) -> None:
    (cluster.plane.account / "token").unlink()

    assert cluster.bad() == {"api-server": Level.FAIL}
    found = cluster.told()["api-server"]
    assert f"there is no {cluster.plane.account / 'token'}" in found.reason
    assert "dra.enabled: true" in found.remedy


@pytest.mark.parametrize("right", RIGHTS, ids=str)
def test_each_right_that_is_missing_is_named(right: Right, cluster: Cluster) -> None:
    cluster.plane.server.forbidden.add((right.verb, right.resource))

    found = cluster.told()["rbac"]

    assert found.level is Level.FAIL
    assert found.reason == f"the service account may not {right}"
    assert "dra.enabled: true" in found.remedy


def test_a_server_that_cannot_be_asked_is_told_once(cluster: Cluster) -> None:
    cluster.plane.server.be_rude(Rudeness(times=99, cut=3))

    assert cluster.bad() == {"api-server": Level.FAIL}
    assert "network policy" in cluster.told()["api-server"].remedy


@pytest.mark.parametrize("path", ["/nodes/", "/resourceslices"])
@pytest.mark.parametrize("code", [429, 500, 503])
def test_an_answer_that_is_no_word_on_rights_hides_nothing(
    code: int, path: str, cluster: Cluster
) -> None:
    cluster.plane.server.be_rude(Rudeness(path=path, code=code, times=9))

    assert cluster.bad() == {"api-server": Level.FAIL}


def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for(cluster: Cluster) -> None:
    cluster.plane.server.be_rude(Rudeness(path="/nodes/", trickle=True))

    found = cluster.told()["api-server"]

    assert (found.level, "does not answer in time" in found.reason) == (Level.FAIL, True)


def test_a_token_that_the_server_does_not_know_is_told(cluster: Cluster) -> None:
    cluster.plane.server.tokens = {}

    found = cluster.told()["api-server"]

    assert (found.level, "Unauthorized" in found.reason) == (Level.FAIL, True)


def test_a_name_that_is_no_nodes_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node-2")

    told = cluster.told()

    assert told["node-name"].level is Level.FAIL
    assert "dra.nodeName" in told["node-name"].remedy
    # And the policy lets nobody write slices of another node.
    assert told["fields"].level is Level.FAIL
    assert "may only modify ResourceSlices that belong to the node" in told["fields"].reason
    assert ", as a dry run: the API server says: " in told["fields"].reason
    named = cluster.told(dra={"nodeName": NODE, "serviceAccount": str(cluster.plane.account)})
    assert named["node-name"].level is Level.OK


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("v1.31.9", Level.FAIL),
        ("v1.32.0", Level.WARN),
        ("v1.33.7-eks-1", Level.WARN),
        ("v1.34.0", Level.OK),
        ("v1.37.0-beta.0", Level.OK),
        ("", Level.WARN),
    ],
)
def test_a_kubelet_that_is_too_old_is_told(version: str, level: Level, cluster: Cluster) -> None:
    cluster.kubelet(version, {})

    assert cluster.told()["kubelet-release"].level is level


def test_a_device_plugin_for_what_dra_serves_is_told(cluster: Cluster) -> None:
    cluster.kubelet("v1.36.0", {"google.com/tpu": "4", "nvidia.com/gpu": "0", "cpu": "8"})

    found = cluster.told()["device-plugin"]
    assert found.level is Level.FAIL
    assert "advertises 4 of google.com/tpu" in found.reason
    assert cluster.told(tpu={})["device-plugin"].level is Level.OK


def test_another_driver_for_the_same_silicon_is_told(cluster: Cluster) -> None:
    cluster.publish(_DRIVER, _device("gpu-1", pci="0000:3b:00.0", uuid="GPU-1"), _device("tpu-0"))
    cluster.publish("nic.example.com", _device("nic-0", pci="0000:01:00.0"))
    assert cluster.told()["rivals"].level is Level.OK

    cluster.publish("vfio.example.com", _device("vfio-7", pci="0000:3b:00.0"))
    cluster.publish("uuid.example.com", _device("card-7", uuid="GPU-1"))
    # Nothing that it tells of chips names one: that driver is known.
    cluster.publish("tpu.google.com", _device("0"), _device("1"))

    told = [each.reason for each in cluster.findings() if each.check == "rivals"]
    assert [reason.split(" offers ")[0] for reason in told] == [
        "the driver tpu.google.com",
        "the driver uuid.example.com",
        "the driver vfio.example.com",
    ]
    assert "on this node: 0, 1. " in told[0]


def test_a_daemon_without_slices_is_told(cluster: Cluster) -> None:
    assert cluster.told()["slices"].level is Level.OK
    sockets = _sockets(cluster.folder)
    with listening("holdfast", cluster.folder, [cluster.folder / "control.sock", *sockets]):
        assert cluster.bad() == {"slices": Level.FAIL}

        cluster.publish(_DRIVER, _device("tpu-0"))
        assert cluster.bad() == {}


@pytest.mark.parametrize(
    ("gates", "lost"),
    [
        (set[str](), {"taints: ", "counters: "}),
        ({"DRADeviceTaints"}, {"counters: "}),
        ({"DRAPartitionableDevices"}, {"taints: "}),
    ],
)
def test_fields_that_the_server_drops_are_told_with_what_is_lost(
    gates: set[str], lost: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control_plane(folder, minor=35, gates=gates) as plane:
        found = Cluster(folder, plane, monkeypatch).told()["fields"]

    assert found.level is Level.WARN
    assert {word for word in ("taints: ", "counters: ") if word in found.reason} == lost


def test_shares_that_the_server_drops_are_told_where_gpus_are_to_be_shared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
    gates = {"DRADeviceTaints", "DRAPartitionableDevices"}
    with control_plane(folder, minor=35, gates=gates) as plane:
        cluster = Cluster(folder, plane, monkeypatch)
        assert cluster.told()["fields"].level is Level.OK
        found = cluster.told(sharing=sharing)["fields"]
        assert found.level is Level.WARN
        assert "a shared GPU is given to one claim at a time" in found.reason
        assert "DRAConsumableCapacity" in found.remedy
        by_plugin = cluster.told(sharing=sharing, gpu={"api": "device-plugin"})["fields"]
        assert by_plugin.level is Level.OK


def test_a_cluster_without_the_api_is_told(cluster: Cluster) -> None:
    cluster.plane.server.be_rude(Rudeness(method="GET", path="resourceslices", code=404))

    found = cluster.told()["slices"]

    assert (found.level, "resource.k8s.io/v1" in found.reason) == (Level.FAIL, True)
