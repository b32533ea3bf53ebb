"""What the chart makes of values: what the daemon needs, and nothing more."""

import kubernetes_validate
import pytest

from chart.generated import inputs, outputs
from chart.rendering import container, daemon_set, objects, pod, settings


def test_every_generated_file_is_as_make_chart_would_write_it_now() -> None:
    stale = [
        str(path)
        for files in (inputs, outputs)
        for path, text in files().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]

    assert not stale, "run make chart"


def test_the_daemon_reads_its_configuration_from_the_config_map() -> None:
    found = settings(objects({"config": {"gate": {"wait": "10s"}}}))

    assert float(found.gate.wait) == 10
    assert found.host.cgroup == "/host/cgroup"


def test_never_are_two_daemons_on_a_node() -> None:
    assert daemon_set()["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }


def test_by_default_it_has_the_capabilities_that_code_needs_and_no_more() -> None:
    assert container()["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["SYS_PTRACE", "DAC_READ_SEARCH", "KILL"],
    }


def test_where_nothing_is_ended_it_may_neither_signal_others_nor_write_to_cgroups() -> None:
    found = container({"config": {"reclaim": {"mode": "observe"}}})

    assert found["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE", "DAC_READ_SEARCH"]
    assert [m["readOnly"] for m in found["volumeMounts"] if m["name"] == "cgroup"] == [True]


def test_the_pod_sees_every_process_of_the_node_and_has_no_token() -> None:
    found = pod()

    assert found["hostPID"] is True
    assert "hostNetwork" not in found
    assert found["automountServiceAccountToken"] is False
    assert found["priorityClassName"] == "system-node-critical"


@pytest.mark.parametrize("minor", [30, 31, 33, 37])
def test_the_objects_are_what_kubernetes_takes(minor: int) -> None:
    for each in objects():
        kubernetes_validate.validate(each, f"1.{minor}", strict=True)
