"""Each known way to misconfigure gVisor, as the node has it and as the doctor names it."""

from collections.abc import Mapping

import pytest

from fakes.doctortrees import TREES, bad, tree, with_programs
from holdfast.doctor.containerd.checks import containerd_findings
from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.gvisor import gvisor_findings


def examined(node: Node) -> tuple[Finding, ...]:
    live = with_programs(node)
    return (*containerd_findings(live), *gvisor_findings(live))


def only(name: str, check: str, level: Level) -> Finding:
    """Return the one finding that the tree called *name* has besides what is well."""
    findings = examined(tree(name))
    assert bad(findings) == {check: level}
    return next(finding for finding in findings if finding.level is level)


def test_a_driver_that_is_not_in_runscs_list_keeps_every_pod_with_a_gpu_from_starting() -> None:
    found = only("gvisor-driver-not-listed", "nvproxy-driver", Level.FAIL)
    assert "570.211.01" in found.reason
    assert "waiting for sandbox to start: EOF" in found.reason
    assert "unsupported Nvidia driver version" in found.reason
    assert "install a runsc that lists 570.211.01" in found.remedy


def test_runtime_type_runc_v2_left_by_nvidia_ctk_on_the_runsc_table_lets_containers_hang() -> None:
    findings = examined(tree("gvisor-runc-type"))
    (found,) = (each for each in findings if each.level is Level.FAIL)
    assert found.check == "table"
    assert "io.containerd.runc.v2 and BinaryName /usr/bin/nvidia-container-runtime" in found.reason
    assert "hang or never exit" in found.reason
    assert 'runtime_type = "io.containerd.runsc.v1"' in found.remedy
    assert "ConfigPath" in found.remedy
    assert 'binary_name = "/usr/bin/nvidia-container-runtime"' in found.remedy


def test_a_handler_that_is_not_the_tables_name_has_pods_refused() -> None:
    findings = examined(tree("gvisor-handler-of-another-name", runtime_handlers=("runc", "runsc")))
    assert bad(findings) == {"handlers": Level.FAIL}
    (found,) = (each for each in findings if each.level is Level.FAIL)
    assert "no runtime in /etc/containerd/config.toml is called runsc" in found.reason
    assert "but runc, gvisor" in found.reason
    assert "RuntimeClass" in found.remedy


def test_a_table_with_the_prefix_of_another_config_version_is_silently_ignored() -> None:
    findings = examined(tree("gvisor-wrong-prefix"))
    found = next(each for each in findings if each.check == "tables")
    assert found.level is Level.FAIL
    assert (
        '(version = 3) has runtimes.runc, runtimes.runsc below plugins."io.containerd.grpc.v1.cri"'
        in found.reason
    )
    assert "ignores it silently" in found.reason
    assert 'plugins."io.containerd.cri.v1.runtime"' in found.remedy


def test_without_library_injection_there_are_nodes_but_neither_libcuda_nor_nvidia_smi() -> None:
    found = only("gvisor-no-libraries", "libraries", Level.WARN)
    assert "neither libcuda nor nvidia-smi" in found.reason
    assert "CDI" in found.remedy


def test_a_cdi_spec_of_dras_with_device_nodes_that_lack_a_mode_panics_the_sandbox() -> None:
    found = only("gvisor-cdi-without-mode", "cdi-modes", Level.WARN)
    assert "/var/run/cdi/k8s.gpu.nvidia.com-claim_0c5f7c3e-gpu-0.yaml" in found.reason
    assert "fileMode" in found.remedy


def test_a_low_vm_max_map_count_makes_random_segmentation_faults() -> None:
    found = only("gvisor-low-max-map-count", "max-map-count", Level.WARN)
    assert "65530" in found.reason
    assert "segmentation faults" in found.reason
    assert "1000000" in found.remedy
    assert "host-settings" in found.remedy


def test_a_folder_dev_vfio_devices_keeps_a_sandbox_with_a_tpu_from_starting() -> None:
    found = only("gvisor-vfio-devices", "vfio-devices", Level.FAIL)
    assert "no TPU sandbox starts" in found.reason
    assert "move /dev/vfio/devices aside" in found.remedy


def test_runsc_before_20250326_makes_the_second_tpu_process_find_dev_vfio_n_busy() -> None:
    found = only("gvisor-leaking-runsc", "release", Level.FAIL)
    assert "release-20250319.0" in found.reason
    assert "EBUSY on /dev/vfio/N" in found.reason
    assert "release-20250326.0 or later" in found.remedy


def test_an_nvidia_container_runtime_that_starts_runc_leaves_pods_without_their_sandbox() -> None:
    found = only("gvisor-toolkit-starts-runc", "low-level-runtime", Level.FAIL)
    assert "starts /usr/bin/runc and not runsc" in found.reason
    assert (
        "/etc/nvidia-container-runtime/config.toml has runtimes docker-runc, runc, crun"
        in found.reason
    )
    assert 'runtimes = ["runsc"]' in found.remedy


def test_a_node_with_all_of_it_right_has_nothing_to_mend() -> None:
    findings = examined(tree("gvisor-all-well", runtime_handlers=("runsc",)))
    assert bad(findings) == {}
    assert len(findings) > 10


def test_tpus_and_gpus_are_spoken_of_only_where_there_are_some() -> None:
    of_tpus, of_gpus = {"tpuproxy", "vfio-devices"}, {"nvproxy-driver", "libraries"}
    for name, there in (("gvisor-all-well", of_gpus), ("gvisor-vfio-devices", of_tpus)):
        checks = {each.check for each in examined(tree(name))}
        assert checks & (of_tpus | of_gpus) == there


@pytest.mark.parametrize("name", sorted(path.name for path in TREES.glob("gvisor-*")))
def test_of_a_copy_no_program_is_run_and_what_it_would_say_is_left_open(name: str) -> None:
    node = tree(name)
    findings = (*containerd_findings(node), *gvisor_findings(node))
    release = [each for each in findings if each.check == "release"]
    assert [each.level for each in release] == [Level.WARN]
    assert "is not run: this is a copy of a node" in release[0].reason


def with_gpus_by_cdi() -> Mapping[str, object]:
    return {"deviceListStrategy": "cdi"}


def test_cdi_is_on_where_it_is_asked_for() -> None:
    node = tree("gvisor-all-well", with_gpus_by_cdi())
    assert bad(examined(node)) == {}


def test_gpus_by_claims_are_not_kept_apart_in_sandboxes() -> None:
    by_claims = {
        each.check: each for each in examined(tree("gvisor-all-well", {"gpu": {"api": "dra"}}))
    }
    found = by_claims["dra-gpus"]
    assert found.level is Level.FAIL
    assert "sees every GPU of the node whatever its claim has" in found.reason
    assert "gpu.api: device-plugin" in found.remedy

    by_plugin = examined(tree("gvisor-all-well", {"tpu": {"api": "dra"}}))
    assert "dra-gpus" not in {each.check for each in by_plugin}
