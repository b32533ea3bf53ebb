"""What can be wrong with kubelet's folder, checkpoint and sockets, on copied trees and on live sockets."""

import binascii
import json
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fakes.doctortrees import without_rights, worst
from fakes.listener import listening
from fakes.needs import root_with
from fakes.nodetree import CHIP, NodeTree
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.kubelet import kubelet_findings, root_dir, stranger
from holdfast.names import CONTROL_SOCKET
from holdfast.settings import convert

_TPU = "google.com/tpu"
_OWN_NAME = ("--set", "dra.driverName=gpu.nvidia.com", "--set", "tpu.api=dra")


def _entry(ids: object, *, pod: str = "u-1") -> dict[str, Any]:
    return {"PodUID": pod, "ContainerName": "c", "ResourceName": _TPU, "DeviceIDs": ids}


def test_a_kubelet_in_order_has_nothing_to_mend(node: NodeTree) -> None:
    node.checkpoint({_TPU: [CHIP]}, [_entry({"0": [CHIP]})])

    told = node.told()

    assert told.bad("kubelet") == {}
    assert "kubelet_internal_checkpoint: 1; only" in told.of("kubelet", "checkpoint")["reason"]
    assert "so it was not asked" in told.of("kubelet", "kubelet-socket")["reason"]


def test_a_node_without_kubelet_is_only_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = NodeTree(tmp_path / "empty", capsys)
    subprocess.run(["rm", "-r", str(empty.folder / "var")], check=True)

    told = empty.told()

    assert told.bad("kubelet") == {"plugin-folder": "WARN"}
    empty.close()


def test_before_kubelets_first_start_the_doctor_says_to_start_it_and_not_to_set_a_folder(
    node: NodeTree,
) -> None:
    shutil.rmtree(node.plugins)

    told = node.told()

    found = told.of("kubelet", "plugin-folder")
    assert told.bad("kubelet") == {"plugin-folder": "WARN"}
    assert "kubelet has not started on this node yet" in found["reason"]
    assert "start kubelet" in found["remedy"]
    assert "pluginDir" not in found["remedy"]


def test_a_kubelet_whose_plugin_folder_is_elsewhere_fails(node: NodeTree) -> None:
    found = node.told("--set", "kubelet.pluginDir=/opt/kubelet/device-plugins").of(
        "kubelet", "plugin-folder"
    )

    assert found["level"] == "FAIL"
    assert "does not follow kubelet's --root-dir" in found["remedy"]


@pytest.mark.parametrize(
    ("mount", "level", "words"),
    [
        ("/ overlay", "FAIL", "it is a container's own"),
        ("/var/lib/kubelet overlay", "OK", "on overlay"),
        ("/var/lib/kubelet/device-plugins tmpfs", "WARN", "a reboot loses kubelet's checkpoint"),
        ("/var/lib/kubelet/device-plugins xfs", "OK", "on xfs"),
    ],
)
def test_the_filesystem_of_the_plugin_folder_is_told(
    mount: str, level: str, words: str, node: NodeTree
) -> None:
    node.mounts("/ ext4", mount)

    found = node.told().of("kubelet", "plugin-folder")

    assert found["level"] == level
    assert words in found["reason"]


@pytest.mark.parametrize(
    ("path", "check"),
    [("kubelet.sock", "kubelet-socket"), ("../pod-resources/kubelet.sock", "pod-resources")],
)
def test_a_socket_of_kubelets_that_is_not_there_fails(
    path: str, check: str, node: NodeTree
) -> None:
    (node.plugins / path).unlink()

    told = node.told()

    assert told.bad("kubelet") == {check: "FAIL"}
    assert "set kubelet." in told.of("kubelet", check)["remedy"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is empty"),
        ('{"Data": {"PodDeviceEntries": [', "it is not whole JSON"),
        ("[]", "it is of no known version"),
        ('{"Data": {}, "Checksum": 1}', "`PodDeviceEntries`"),
        ('{"Data": {"PodDeviceEntries": null}}', "it has no checksum"),
        ('{"Data": {"PodDeviceEntries": null}, "Checksum": "1"}', "it has no checksum"),
        ('{"Data": {"PodDeviceEntries": null}, "Checksum": true}', "it has no checksum"),
        ('{"Data": {"PodDeviceEntries": [{}]}, "Checksum": 1}', "`PodUID`"),
        ('{"Data": {"PodDeviceEntries": {}}, "Checksum": 1}', "PodDeviceEntries"),
        (
            '{"Data": {"PodDeviceEntries": null, "RegisteredDevices": [1]}, "Checksum": 1}',
            "RegisteredDevices",
        ),
        ('{"x": ' + "[" * 200_000, "it is nested too deep"),
        ('{"Data": {"PodDeviceEntries": null, "RegisteredDevices": null}, "Checksum": 1}', None),
    ],
)
def test_a_checkpoint_that_makes_no_sense_fails_with_what_to_do(
    content: str, reason: str | None, node: NodeTree
) -> None:
    (node.plugins / "kubelet_internal_checkpoint").write_text(content)

    found = node.told().of("kubelet", "checkpoint")

    assert found["level"] == ("OK" if reason is None else "FAIL")
    if reason is not None:
        assert reason in found["reason"]
        assert "a kubelet that starts with it forgets who has which device" in found["reason"]
        assert "move the file away" in found["remedy"]


def test_a_node_that_never_had_a_plugin_has_no_checkpoint_and_nothing_is_wrong(
    node: NodeTree,
) -> None:
    (node.plugins / "kubelet_internal_checkpoint").unlink()
    assert node.told().bad("kubelet") == {}


_SHARED = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}


def _claims(*claims: dict[str, Any]) -> bytes:
    data = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": claims,
        }
    )
    return json.dumps({"Data": data, "Checksum": binascii.crc32(data.encode())}).encode()


def test_kubelets_record_of_claims_is_told_or_fails_with_what_to_do(node: NodeTree) -> None:
    path = node.plugins.parent / "dra_manager_state"
    claim = {"ClaimUID": "u", "ClaimName": "c", "Namespace": "n", "PodUIDs": {"p": {}, "q": {}}}
    path.write_bytes(_claims(claim))
    well = node.told().of("kubelet", "claim-state")
    path.write_bytes(_claims(claim)[:-3])
    damaged = node.told().of("kubelet", "claim-state")
    path.unlink()
    without = node.told()

    assert (well["level"], ": 1; pods with them: 2" in well["reason"]) == ("OK", True)
    assert damaged["level"] == "FAIL"
    assert "kubelet does not start with it" in damaged["reason"]
    assert "move the file away" in damaged["remedy"]
    assert "claim-state" not in without.bad("kubelet")


def test_another_plugin_that_has_our_resource_fails_by_its_devices(node: NodeTree) -> None:
    node.checkpoint({_TPU: ["0", "1", "2", "3"]}, [_entry({"-1": ["2"]}, pod="u-7")])

    findings = [each for each in node.told().findings if each["check"] == "other-devices"]

    assert [each["level"] for each in findings] == ["FAIL", "WARN"]
    assert "with the devices 0, 1, 2 and 1 more" in findings[0]["reason"]
    assert "pods u-7 have google.com/tpu from another plugin" in findings[1]["reason"]
    assert "delete these pods once" in findings[1]["remedy"]


def test_a_pod_that_shares_a_gpu_by_another_plugin_is_no_stranger(node: NodeTree) -> None:
    entry = {**_entry({"-1": ["GPU-5a8f::3"]}, pod="u-7"), "ResourceName": "nvidia.com/gpu"}
    node.checkpoint({"nvidia.com/gpu": ["GPU-5a8f"]}, [entry])

    assert "other-devices" not in node.told().bad("kubelet")


@pytest.mark.parametrize(
    ("resource", "id_", "settings", "verdict"),
    [
        (_TPU, "0000:00:05.0", {}, False),
        (_TPU, "0000:c0:02", {}, False),
        (_TPU, "10000:00:05.0", {}, False),
        (_TPU, "0", {}, True),
        (_TPU, "accel0", {}, True),
        (_TPU, "0", {"tpu": {"enabled": False}}, False),
        ("example.com/chip", "0", {}, False),
        ("example.com/chip", "0", {"tpu": {"resourceName": "example.com/chip"}}, True),
        (
            "example.com/nic",
            "eth0",
            {"pools": [{"resourceName": "example.com/nic", "classes": ["02"]}]},
            True,
        ),
        ("nvidia.com/gpu", "GPU-5a8f", {}, False),
        ("nvidia.com/gpu", "GPU-5a8f::3", {}, True),
        ("nvidia.com/gpu", "GPU-5a8f::3", {"gpu": {"enabled": False}}, False),
        ("nvidia.com/gpu", "GPU-5a8f::3", _SHARED, False),
        ("nvidia.com/gpu", "GPU-5a8f", _SHARED, False),
        ("nvidia.com/mig-1g.5gb", "MIG-77", {}, False),
    ],
)
def test_an_id_is_a_strangers_when_holdfast_would_never_give_it(
    resource: str, id_: str, settings: dict[str, Any], verdict: bool
) -> None:
    assert stranger(resource, id_, convert(settings)) is verdict


def test_old_kubelets_leave_hints(node: NodeTree) -> None:
    node.write("var/lib/kubelet/device-plugins/DEPRECATION", "")
    found = node.told("--set", "deviceListStrategy=cdi").of("kubelet", "kubelet-version")
    assert (found["level"], found["reason"].partition("by ")[2]) == (
        "WARN",
        "a kubelet of 1.24 or before; deviceListStrategy: cdi needs 1.29",
    )

    node.checkpoint({_TPU: [CHIP]}, [_entry([CHIP])])
    assert "before 1.20" in node.told().of("kubelet", "kubelet-version")["reason"]


@pytest.mark.parametrize(
    ("name", "settings", "who"),
    [
        ("nvidia-gpu.sock", (), "NVIDIA's device plugin"),
        ("nvidia-mig-1g.5gb.sock", (), "NVIDIA's device plugin"),
        ("nvidiaGPU-1700000000.sock", (), "GKE's GPU plugin"),
        ("tpu-1700000000.sock", (), "GKE's TPU plugin"),
        ("nvidia-gpu.sock", ("--set", "gpu.enabled=false"), None),
        ("gpu.intel.com-i915.sock", (), None),
        ("holdfast-google-com_tpu.sock", (), None),
    ],
)
def test_a_socket_of_a_plugin_that_rivals_ours_is_named(
    name: str, settings: tuple[str, ...], who: str | None, node: NodeTree
) -> None:
    node.socket(node.plugins / name)

    found = node.told(*settings).of("kubelet", "other-plugins")

    assert found["level"] == ("OK" if who is None else "WARN")
    if who is not None:
        assert f"{name} is a socket of {who}" in found["reason"]
        assert ".enabled: false" in found["remedy"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("kubelet",), "/var/lib/kubelet"),
        (("kubelet", "--root-dir=/data/k"), "/data/k"),
        (("kubelet", "--v=2", "--root-dir", "/data/k", "--x"), "/data/k"),
        (("/usr/bin/kubelet", "-root-dir=/d"), "/d"),
    ],
)
def test_kubelets_root_folder_is_read_from_what_it_was_started_with(
    arguments: tuple[str, ...], expected: str
) -> None:
    assert root_dir(arguments) == Path(expected)


# From here on the node is live: real sockets, and real processes behind them.


def _live(folder: Path) -> dict[str, Finding]:
    (folder / "dp").mkdir(exist_ok=True)
    settings = {
        "stateDir": str(folder / "state"),
        "kubelet": {
            "pluginDir": str(folder / "dp"),
            "podResourcesSocket": str(folder / "pod-resources/kubelet.sock"),
        },
    }
    return worst(kubelet_findings(Node(settings=convert(settings))))


@pytest.fixture
def folder(short_path: Path) -> Path:
    for name in ("dp", "pod-resources", "state"):
        (short_path / name).mkdir()
    return short_path


def test_a_live_kubelet_is_known_by_its_process_and_its_root_folder(folder: Path) -> None:
    sockets = [folder / "dp/kubelet.sock", folder / "pod-resources/kubelet.sock"]
    with listening("kubelet", folder, sockets, f"--root-dir={folder}") as pid:
        told = _live(folder)

    assert told["kubelet-socket"].level is Level.OK
    assert told["kubelet-process"].reason == f"it is kubelet, pid {pid}"
    assert told["pod-resources"].level is Level.OK


def test_a_live_kubelet_with_another_root_folder_is_warned_of_with_the_right_setting(
    folder: Path,
) -> None:
    with listening("kubelet", folder, [folder / "dp/kubelet.sock"], "--root-dir=/data/k"):
        told = _live(folder)

    assert told["kubelet-process"].level is Level.WARN
    assert "kubelet.podResourcesSocket: /data/k/pod-resources/kubelet.sock" in (
        told["kubelet-process"].remedy
    )
    assert told["pod-resources"].level is Level.FAIL


def test_a_socket_that_a_dead_kubelet_left_is_no_kubelet(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / "dp/kubelet.sock"))

    told = _live(folder)

    assert told["kubelet-socket"].level is Level.FAIL
    assert "nobody answers (Connection refused): kubelet is down" in told["kubelet-socket"].reason
    assert "kubelet-process" not in told


def test_what_answers_and_is_no_kubelet_is_named(folder: Path) -> None:
    with listening("imposter", folder, [folder / "dp/kubelet.sock"]) as pid:
        told = _live(folder)

    assert told["kubelet-process"].level is Level.WARN
    assert f"pid {pid}, which answers on kubelet's socket, is imposter" in (
        told["kubelet-process"].reason
    )


def test_the_sockets_of_two_kubelets_do_not_belong_together(folder: Path) -> None:
    with (
        listening("kubelet", folder, [folder / "dp/kubelet.sock"], f"--root-dir={folder}"),
        listening("k3s", folder, [folder / "pod-resources/kubelet.sock"]),
    ):
        told = _live(folder)

    assert told["pod-resources"].level is Level.WARN
    assert "name the same kubelet's" in told["pod-resources"].remedy


def test_a_rival_that_is_served_fails_with_its_pid_and_one_that_is_not_is_forgotten(
    folder: Path,
) -> None:
    rival = folder / "dp/tpu-1700000000.sock"
    with listening("tpu-plugin", folder, [rival]) as pid:
        served = _live(folder)["other-plugins"]
    left = _live(folder)["other-plugins"]

    assert served.level is Level.FAIL
    assert served.reason == f"GKE's TPU plugin serves {rival}, pid {pid}"
    assert "tpu.enabled: false" in served.remedy
    assert rival.exists()
    assert left.level is Level.OK


def test_a_socket_on_which_too_many_wait_is_not_left_over(folder: Path) -> None:
    paths = [folder / "dp/kubelet.sock", folder / "dp/tpu-1.sock", folder / "state/control.sock"]
    with ExitStack() as sockets:
        for path in paths:
            stuck = sockets.enter_context(socket.socket(socket.AF_UNIX))
            stuck.bind(str(path))
            stuck.listen(0)
            waits = sockets.enter_context(socket.socket(socket.AF_UNIX))
            waits.connect(str(path))
        told = _live(folder)

    assert told["kubelet-socket"].level is Level.FAIL
    assert "too many wait for an answer already" in told["kubelet-socket"].reason
    assert "left over" not in told["kubelet-socket"].reason
    assert told["other-plugins"].level is Level.FAIL
    assert told["other-plugins"].reason == f"GKE's TPU plugin serves {paths[1]}"
    assert told["own-sockets"].reason.startswith("the daemon runs")


def test_our_own_sockets_must_answer_while_the_daemon_runs(folder: Path) -> None:
    ours = folder / "dp/holdfast-google-com_tpu.sock"
    control = folder / "state/control.sock"
    with listening("holdfast", folder, [control, ours]):
        assert _live(folder)["own-sockets"].reason == f"somebody answers on {ours.name}"

        ours.unlink()
        nothing = _live(folder)["own-sockets"]
        assert (nothing.level, "`holdfast status`" in nothing.remedy) == (Level.WARN, True)

        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(ours))
        silent = _live(folder)["own-sockets"]
        assert silent.level is Level.FAIL
        assert f"nobody answers on {ours} (Connection refused)" in silent.reason

    down = _live(folder)["own-sockets"]
    assert down.level is Level.OK
    assert down.reason.endswith(f"left over in {folder / 'dp'}: {ours.name}")


@root_with("setpriv", to="take rights away")
def test_a_socket_that_may_not_be_asked_is_no_dead_kubelet(folder: Path) -> None:
    path = folder / "dp/kubelet.sock"
    with listening("kubelet", folder, [path]):
        path.chmod(0)
        found = without_rights(f"kubelet.pluginDir={folder / 'dp'}")
    assert found["kubelet", "rights"]["level"] == "WARN"
    assert f"no permission to connect to {path}" in found["kubelet", "rights"]["reason"]
    assert ("kubelet", "kubelet-socket") not in found


@root_with("setpriv", to="take rights away")
def test_a_socket_of_another_plugin_that_may_not_be_asked_is_not_said_to_be_left(
    folder: Path,
) -> None:
    path = folder / "dp/nvidia-gpu.sock"
    with listening("kubelet", folder, [folder / "dp/kubelet.sock", path]):
        path.chmod(0)
        found = without_rights(f"kubelet.pluginDir={folder / 'dp'}")
    assert ("kubelet", "other-plugins") not in found
    assert f"no permission to connect to {path}" in found["kubelet", "rights"]["reason"]


@root_with("setpriv", to="take rights away")
@pytest.mark.parametrize(
    ("area", "check", "shown", "closed"),
    [
        ("kubelet", "other-plugins", "dp/nvidia-gpu.sock", "dp/tpu-1.sock"),
        ("kubelet", "dra-drivers", "gpu.nvidia.com-reg.sock", "tpu.google.com-1-reg.sock"),
        ("kubelet", "own-sockets", "dp/holdfast-a.sock", "dp/holdfast-b.sock"),
        ("dra", "driver-sockets", "../plugins/holdfast.dev/dra.sock", "holdfast.dev-reg.sock"),
    ],
)
def test_what_a_socket_shows_is_told_although_the_next_may_not_be_asked(
    area: str, check: str, shown: str, closed: str, short_path: Path
) -> None:
    registry = short_path / "plugins_registry"
    first, second = registry / shown, registry / closed
    (registry / "dp").mkdir(parents=True)
    first.parent.mkdir(parents=True, exist_ok=True)
    with (
        listening("holdfast", short_path, [short_path / CONTROL_SOCKET, second]),
        listening("another", short_path, [first]),
    ):
        if check == "own-sockets":
            first.unlink()
            with socket.socket(socket.AF_UNIX) as silent:
                silent.bind(str(first))
        second.chmod(0)
        found = without_rights(
            f"kubelet.pluginDir={registry}/dp",
            f"kubelet.podResourcesSocket={short_path}/pod-resources/kubelet.sock",
            f"stateDir={short_path}",
            f"dra.kubeletRoot={short_path}",
            "tpu.api=dra",
        )
    assert found[area, check]["level"] in {"WARN", "FAIL"}
    assert f"{first.parent.resolve()}/{first.name}" in found[area, check]["reason"]
    assert f"no permission to connect to {second}" in found[area, "rights"]["reason"]


@root_with("setpriv", to="take rights away")
def test_a_daemon_that_may_not_be_asked_is_not_said_to_be_down(folder: Path) -> None:
    path = folder / CONTROL_SOCKET
    with listening("holdfast", folder, [path]):
        path.chmod(0)
        found = without_rights(f"kubelet.pluginDir={folder / 'dp'}", f"stateDir={folder}")
    for area, check in (("kubelet", "own-sockets"), ("state", "daemon"), ("privileges", "subject")):
        assert (area, check) not in found
        assert found[area, "rights"]["level"] == "WARN"
        assert f"no permission to connect to {path}" in found[area, "rights"]["reason"]


def test_a_socket_in_no_folder_of_its_own_is_looked_at_as_any_other(node: NodeTree) -> None:
    node.socket(node.folder / "kubelet.sock")

    told = node.told("--set", "kubelet.podResourcesSocket=/kubelet.sock")

    assert told.bad("kubelet") == {}


@pytest.mark.parametrize(
    ("name", "settings", "level"),
    [
        ("gpu.nvidia.com-reg.sock", (), "WARN"),
        ("tpu.google.com-1f0c-reg.sock", (), "WARN"),
        ("gpu.nvidia.com-reg.sock", ("--set", "gpu.enabled=false"), "OK"),
        ("gpu.nvidia.com-reg.sock", _OWN_NAME, "OK"),
        ("gpu.nvidia.com-reg.sock", _OWN_NAME[:2], "WARN"),
        ("csi.example.com-reg.sock", (), "OK"),
    ],
)
def test_a_dra_driver_for_the_same_devices_is_warned_of(
    name: str, settings: tuple[str, ...], level: str, node: NodeTree
) -> None:
    node.socket(node.plugins.parent / "plugins_registry" / name)

    found = node.told(*settings).of("kubelet", "dra-drivers")

    assert found["level"] == level
    assert (name in found["reason"]) is (level == "WARN")
