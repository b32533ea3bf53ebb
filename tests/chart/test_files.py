"""What lies beside the chart is right too: generated files, examples, helm's test, the unit."""

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from chart.generated import inputs, outputs
from chart.rendering import (
    CHART,
    REPOSITORY,
    RefusedError,
    container,
    objects,
    one,
    pod,
    render,
    settings,
)
from fakes.apischemas import check
from holdfast.model.node.readiness import ReadinessCheck
from holdfast.runtime.watched import Watched
from holdfast.telemetry.probes import ProbeServer
from holdfast.telemetry.readyz import Board

EXAMPLES = sorted((REPOSITORY / "deploy/examples").glob("values-*.yaml"))
UNIT = REPOSITORY / "deploy/systemd/holdfast.service"


def test_every_generated_file_is_as_make_chart_would_write_it_now() -> None:
    stale = [
        str(path)
        for files in (inputs, outputs)
        for path, text in files().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]

    assert not stale, "run make chart"


def test_the_plain_manifests_are_the_defaults_without_helms_own() -> None:
    text = (REPOSITORY / "deploy/manifests/holdfast.yaml").read_text()
    found = list(yaml.safe_load_all(text))

    assert [each["kind"] for each in found] == ["ConfigMap", "ServiceAccount", "DaemonSet"]
    assert found[2]["spec"] == one(objects(), "DaemonSet")["spec"]
    assert "helm" not in text.split("---", 1)[1].lower()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_makes_objects_that_kubernetes_takes_and_a_configuration_that_the_daemon_takes(
    path: Path,
) -> None:
    found = objects(yaml.safe_load(path.read_text()))

    for each in found:
        if each["kind"] != "PodMonitor":
            check(each, 34)
    settings(found)


def _example(name: str) -> dict[str, object]:
    found = yaml.safe_load((REPOSITORY / f"deploy/examples/values-{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_the_example_of_gke_reads_what_the_runtime_says_of_the_slice_and_knows_no_gpus() -> None:
    values = _example("gke-tpu")
    found = settings(objects(values))

    assert (found.gpu.enabled, found.tpu.env_file) == (False, "/etc/tpu/tpu-env")
    assert _mounts(values) >= {"/etc/tpu", "/dev/vfio"}
    assert one(objects(values), "ResourceQuota")
    assert "NVIDIA" not in str(container(values)["env"])


def test_the_example_of_claims_leaves_gpus_to_the_device_plugin() -> None:
    values = _example("dra")
    found = settings(objects(values))

    assert (found.tpu.api, found.gpu.api) == ("dra", "device-plugin")
    classes = [each for each in objects(values) if each["kind"] == "DeviceClass"]
    assert {each["metadata"]["name"] for each in classes} == {
        "tpu.holdfast.dev",
        "tpu-shape.holdfast.dev",
    }


def test_the_example_of_gpu_operator_has_the_drivers_root_wherever_it_is_mounted_later() -> None:
    values = _example("gpu-operator")
    found = settings(objects(values))

    assert found.gpu.driver_root == "/run/nvidia/driver"
    assert pod(values)["runtimeClassName"] == "nvidia"
    mounts = {each["mountPath"]: each for each in container(values)["volumeMounts"]}
    assert mounts["/run/nvidia/driver"]["mountPropagation"] == "HostToContainer"
    assert "/dev/vfio" not in mounts


def test_the_example_of_gpu_operator_leaves_a_node_when_the_driver_is_to_be_replaced() -> None:
    """The driver manager waits for DaemonSets whose nodeSelector, and not affinity, has its key."""
    operators = "nvidia.com/gpu.deploy.client"
    text = (REPOSITORY / "deploy/examples/values-gpu-operator.yaml").read_text()

    assert pod(_example("gpu-operator"))["nodeSelector"] == {operators: "true"}
    assert "nvidia.com/gpu.deploy.device-plugin" in text, "for operators without that label"
    assert operators in (REPOSITORY / "docs/nvidia.md").read_text()


def test_the_example_of_gvisor_sees_what_runs_in_sandboxes_and_makes_the_class() -> None:
    values = _example("gvisor")
    found = settings(objects(values))

    assert (found.reclaim.mode, found.reclaim.leaked_sandbox) == ("terminate", "restart")
    assert found.gpu.device_list_strategy == ("cdi-cri",)
    assert _mounts(values) >= {"/run/containerd", "/var/run/cdi"}
    assert one(objects(values), "RuntimeClass")["handler"] == "runsc"


def _mounts(values: dict[str, object]) -> set[str]:
    return {each["mountPath"] for each in container(values)["volumeMounts"]}


def _ask(host: str, port: int, patience: str) -> tuple[int, str]:
    """Run the script as the pod does; return its exit code and what it printed."""
    found = one(objects(), "Pod")["spec"]["containers"][0]
    assert found["command"] == ["python", "-c"]
    ended = subprocess.run(
        [sys.executable, "-c", found["args"][0], host, str(port), patience],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_helms_test_passes_when_the_daemon_is_ready_and_else_says_what_is_not() -> None:
    board = Board()
    with contextlib.closing(
        ProbeServer("127.0.0.1", 0, board=board, registry=CollectorRegistry(), stall=Watched(600))
    ) as server:
        said = "no commit for 7 s"
        board.publish((ReadinessCheck(name="ledger", passes=False, reason=said, public=said),))
        code, printed = _ask("127.0.0.1", server.port, "0")
        assert code == 1
        assert re.search(r"FAILED ledger \(for \d+ s\): no commit for 7 s", printed)

        board.publish((ReadinessCheck(name="ledger", passes=True),))
        assert _ask("127.0.0.1", server.port, "60") == (0, "127.0.0.1: ready\n")
        port = server.port

    code, printed = _ask("127.0.0.1", port, "0")
    assert code == 1
    assert "cannot be asked" in printed


def test_helms_test_fails_where_there_is_no_daemon_at_all() -> None:
    code, printed = _ask("nobody.invalid", 8008, "0")

    assert code == 1
    assert "no daemon behind nobody.invalid" in printed


def test_helms_test_asks_every_daemon_with_no_privilege_at_all() -> None:
    found = objects({"nodeSelector": {"pool": "gpu"}})
    service, asking = one(found, "Service"), one(found, "Pod")

    # A Service leaves out who is not ready, and that is whom the test is about.
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["clusterIP"] == "None"
    template = one(found, "DaemonSet")["spec"]["template"]
    labels = template["metadata"]["labels"]
    for place in ("nodeSelector", "affinity", "tolerations"):
        assert asking["spec"][place] == template["spec"][place]
    assert service["spec"]["selector"].items() <= labels.items()
    assert not service["spec"]["selector"].items() <= asking["metadata"]["labels"].items()
    (only,) = asking["spec"]["containers"]
    assert only["args"][1] == f"{service['metadata']['name']}.kube-system.svc"
    assert only["securityContext"]["runAsNonRoot"] is True
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "volumes" not in asking["spec"]
    for each in (service, asking):
        assert each["metadata"]["annotations"]["helm.sh/hook"] == "test"


def _unit(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_is_up_before_kubelet_and_may_what_the_container_may() -> None:
    assert _unit("Before") == ["kubelet.service"]
    added = container()["securityContext"]["capabilities"]["add"]
    assert _unit("CapabilityBoundingSet") == [" ".join(f"CAP_{name}" for name in added)]
    assert _unit("NoNewPrivileges") == ["yes"]
    assert _unit("ProtectSystem") == ["strict"]
    assert _unit("ReadOnlyPaths") == ["/sys"]
    plugins = "/var/lib/kubelet/device-plugins"
    assert _unit("ReadWritePaths") == ["/sys/fs/cgroup", f"-{plugins}"]
    assert _unit("StateDirectory") == ["holdfast"]
    assert _unit("DevicePolicy") == ["closed"]


def test_who_installs_the_unit_makes_its_configuration_once_and_a_repeated_step_leaves_it(
    tmp_path: Path,
) -> None:
    (started,) = _unit("ExecStart")
    program, *_, config = started.split()
    page = (REPOSITORY / "deploy/README.md").read_text("utf-8").partition("## With systemd")[2]
    lines = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    steps = [each for each in lines if not each.startswith("export ")]
    (makes,) = [each for each in steps if config in each]
    file = tmp_path / "holdfast/config.yaml"

    def step() -> str:
        subprocess.run(["sh", "-c", makes.replace(config, str(file))], check=True)
        return file.read_text()

    assert step() == ""
    file.write_text("gate: {wait: 10s}\n")
    assert step() == "gate: {wait: 10s}\n"
    assert program.removesuffix("bin/holdfast").rstrip("/") in steps[0].split()
    assert steps[-1].endswith("systemctl restart holdfast"), "what runs already is replaced"


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("there is no systemd-analyze")
    copy = tmp_path / UNIT.name
    # The daemon need not be installed here.
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))

    ended = subprocess.run([tool, "verify", copy], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_the_chart_carries_of_other_folders_is_what_they_have() -> None:
    for kind in ("alerts", "dashboards"):
        theirs = {each.name for each in (REPOSITORY / "deploy" / kind).glob("*")}
        assert {each.name for each in (CHART / "files" / kind).glob("*")} == theirs


def test_a_helm_binary_renders_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm = tmp_path / "helm"
    # Prints how it was called, as an object.
    helm.write_text('#!/bin/sh\nprintf "kind: Asked\\nargs: %s\\nvalues: " "$*"\ncat\n')
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert objects({"privileged": True}) == [
        {
            "kind": "Asked",
            "args": f"template holdfast {CHART} --namespace kube-system --values -",
            "values": {"privileged": True},
        }
    ]

    helm.write_text('#!/bin/sh\necho "Error: no" >&2\nexit 1\n')
    with pytest.raises(RefusedError, match="Error: no"):
        render()
