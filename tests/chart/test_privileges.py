"""The daemon may do what the table in deploy/README.md explains, when it says so, and nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from chart.rendering import REPOSITORY, container, objects, one, pod, settings
from holdfast.model.node.privileges import Visibility
from holdfast.settings import convert
from holdfast.settings.needs import NEEDS

_ROW = re.compile(r"^\| `(?P<what>[^`]+)` \| (?P<when>.+?) \| (?P<why>.+) \|$", re.MULTILINE)

_ALL: dict[str, Any] = {
    "dra": {"enabled": True},
    "config": {
        "map": {"default": ""},
        "deviceListStrategy": "cdi",
        "events": {"enabled": True},
        "labels": {"enabled": True},
        "reclaim": {"reset": "afterForcedRelease", "rebind": True},
        "tpu": {"envFile": "/etc/tpu/tpu-env", "api": "dra"},
        "gpu": {
            "migStrategy": "single",
            "driverRoot": "/run/nvidia/driver",
            "devRoot": "/run/nvidia/dev",
        },
    },
}
"""Everything turned on that makes it may more; but for `host.dev`, which takes /dev/vfio's place."""
_FIRST: dict[str, Any] = {"match": {"index": 0}}
_WHOLE_DEV: dict[str, Any] = {"config": {"host": {"dev": "/host/dev"}}}


def _table() -> dict[str, str]:
    text = (REPOSITORY / "deploy/README.md").read_text("utf-8")
    return {row["what"]: row["when"] for row in _ROW.finditer(text)}


def _may(values: dict[str, Any]) -> Iterator[str]:
    found, whole = container(values), pod(values)
    yield from found["securityContext"]["capabilities"]["add"]
    yield from (mount["mountPath"] for mount in found["volumeMounts"])
    yield from (str(port["containerPort"]) for port in found.get("ports", []))
    yield from (key for key in ("hostPID", "hostIPC", "hostNetwork") if whole.get(key))
    if whole["automountServiceAccountToken"]:
        yield "/var/run/secrets/kubernetes.io/serviceaccount"
    for role in (each for each in objects(values) if each["kind"] == "ClusterRole"):
        for rule in role["rules"]:
            yield f"{', '.join(rule['verbs'])} {', '.join(rule['resources'])}"


def test_whatever_is_turned_on_it_may_what_the_table_explains_and_the_table_has_no_more() -> None:
    assert {*_may(_ALL), *_may(_WHOLE_DEV)} == set(_table())


def test_by_default_it_may_what_the_table_says_is_so_always_or_by_default() -> None:
    by_default = {
        "hostPID",
        "SYS_PTRACE",
        "DAC_READ_SEARCH",
        "KILL",
        "/etc/holdfast",
        "/var/lib/holdfast",
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/host/cgroup",
        "/dev/vfio",
        "/run/containerd",
        "8008",
    }

    assert set(_may({})) == by_default
    assert {what for what, when in _table().items() if when.startswith("always")} < by_default


def test_what_the_table_calls_read_only_is_mounted_read_only() -> None:
    said = {what for what, when in _table().items() if re.search("read-only(;|$)", when)}
    for values in (_ALL, _WHOLE_DEV):
        for mount in container(values)["volumeMounts"]:
            assert mount.get("readOnly", False) == (mount["mountPath"] in said), mount


def test_it_has_the_capabilities_whose_lack_the_daemon_tells() -> None:
    told = Visibility(capabilities=0, in_init_pid_namespace=True).lacking

    assert {f"CAP_{name}" for name in _may({}) if name.isupper()} == set(told)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"reclaim": {"mode": "observe"}},
        {"reclaim": {"mode": "observe"}, "devices": [{**_FIRST, "reclaimMode": "terminate"}]},
        {"gpu": {"migStrategy": "mixed"}},
        {"reclaim": {"mode": "observe"}, "gpu": {"enabled": False, "migStrategy": "mixed"}},
    ],
)
def test_its_capabilities_are_those_that_the_doctor_says_these_settings_ask_for(
    config: dict[str, Any],
) -> None:
    asked = [need for need in NEEDS if need.asked(convert(config))]

    found = container({"config": config})["securityContext"]["capabilities"]["add"]
    assert set(found) == {need.privilege for need in asked if need.privilege.isupper()}


def test_with_everything_turned_on_it_has_all_that_the_doctor_looks_for() -> None:
    whole, only = pod(_ALL), container(_ALL)
    context = only["securityContext"]
    mounts = {mount["name"]: mount for mount in only["volumeMounts"]}
    has = {
        "runAsUser": context["runAsUser"] == 0,
        "hostUsers": whole.get("hostUsers", True),
        "hostPID": whole["hostPID"],
        "procMount": "procMount" not in context,
        "appArmorProfile": context["appArmorProfile"] == {"type": "Unconfined"},
        "volumes.cgroup": "cgroup" in mounts,
        "volumeMounts.cgroup.readOnly": mounts["cgroup"]["readOnly"] is False,
        "volumeMounts.sys-devices": not mounts["sys-devices"].get("readOnly", False),
        "volumeMounts.sys-bus-pci": not mounts["sys-bus-pci"].get("readOnly", False),
        **dict.fromkeys(context["capabilities"]["add"], True),
    }

    assert {need.privilege for need in NEEDS} == set(has)
    assert all(has.values())


def test_where_nothing_is_ended_it_may_neither_signal_others_nor_write_to_cgroups() -> None:
    values: dict[str, Any] = {"config": {"reclaim": {"mode": "observe"}}}

    assert "KILL" not in set(_may(values))
    assert _mount(values, "/host/cgroup")["readOnly"] is True
    values["config"]["devices"] = [{**_FIRST, "reclaimMode": "terminate"}]
    assert _mount(values, "/host/cgroup")["readOnly"] is False
    assert _mount({}, "/host/cgroup")["readOnly"] is False


_RESETS: dict[str, Any] = {"reset": "afterForcedRelease"}
_NO_TPUS: dict[str, Any] = {"tpu": {"enabled": False}}
_POOL: dict[str, Any] = {"pools": [{"resourceName": "a.b/c", "devices": ["*:*"]}]}
_DEVICES, _BUS = {"/sys/devices"}, {"/sys/devices", "/sys/bus/pci"}


@pytest.mark.parametrize(
    ("config", "writable"),
    [
        ({}, set()),
        ({"reclaim": _RESETS}, _DEVICES),
        ({"devices": [{**_FIRST, **_RESETS}]}, _DEVICES),
        ({"devices": [{**_FIRST, "reset": "never"}]}, set()),
        ({"reclaim": {"rebind": True}}, _BUS),
        ({"reclaim": {**_RESETS, "rebind": True}, **_NO_TPUS}, set()),
        ({"reclaim": _RESETS, **_NO_TPUS, **_POOL}, _DEVICES),
        ({"reclaim": _RESETS, **_NO_TPUS, "map": {"default": _POOL}}, _DEVICES),
        ({"map": {"default": {"reclaim": _RESETS}}}, _DEVICES),
        (
            {"map": {"default": "devices: [{match: {index: 0}, reset: afterForcedRelease}]"}},
            _DEVICES,
        ),
        ({"map": {"default": {"reclaim": {"rebind": True}}}}, _BUS),
        ({"map": {"default": {"reclaim": {"reset": "never", "rebind": False}}}}, set()),
    ],
)
def test_sys_is_writable_only_where_and_when_something_is_written(
    config: dict[str, Any], writable: set[str]
) -> None:
    def written(**values: Any) -> set[str]:
        mounts = container({"config": config, **values})["volumeMounts"]
        return {each["mountPath"] for each in mounts if each["mountPath"].startswith("/sys/")}

    assert written(privileged=True) == writable
    # No reset without the device's group, which only a privileged container may open.
    assert written() == (writable if writable == _BUS else set())


def test_the_nodes_of_vfio_are_there_also_for_pools_of_a_document() -> None:
    documents = {"map": {"default": {}, "other": _POOL}}

    assert "/dev/vfio" in set(_may({"config": {**_NO_TPUS, **documents}}))


@pytest.mark.parametrize(
    ("config", "mounted"),
    [
        ({}, False),
        ({"deviceListStrategy": "cdi"}, True),
        ({"gpu": {"deviceListStrategy": ["envvar"]}}, False),
        ({"gpu": {"deviceListStrategy": ["envvar", "cdi-cri"]}}, True),
        ({"gpu": {"deviceListStrategy": ["cdi-annotations"]}}, True),
        ({"gpu": {"enabled": False, "deviceListStrategy": ["cdi-cri"]}}, False),
    ],
)
def test_the_folder_of_specs_is_mounted_where_specs_are_written(
    config: dict[str, Any], mounted: bool
) -> None:
    assert ("/var/run/cdi" in set(_may({"config": config}))) == mounted


@pytest.mark.parametrize(
    ("config", "mounted"),
    [
        ({}, {"/dev/vfio"}),
        ({"tpu": {"enabled": False}}, set()),
        (
            {"tpu": {"enabled": False}, "pools": [{"resourceName": "a.b/c", "devices": ["*:*"]}]},
            {"/dev/vfio"},
        ),
        ({"host": {"dev": "/host/dev"}}, {"/host/dev"}),
    ],
)
def test_of_dev_no_more_is_mounted_than_what_is_looked_at(
    config: dict[str, Any], mounted: set[str]
) -> None:
    assert {what for what in _may({"config": config}) if "/dev" in what[:9]} == mounted


def test_every_mount_is_of_the_hosts_folder_of_that_name_but_the_config_and_where_it_cannot_be() -> (
    None
):
    moved = {"/host/cgroup": "/sys/fs/cgroup", "/host/dev": "/dev"}
    for values in (_ALL, _WHOLE_DEV):
        volumes = {each["name"]: each for each in pod(values)["volumes"]}
        mounts = container(values)["volumeMounts"]

        assert set(volumes) == {mount["name"] for mount in mounts}
        for mount in mounts:
            if mount["name"] not in {"config", "named"}:
                path = mount["mountPath"]
                assert volumes[mount["name"]]["hostPath"]["path"] == moved.get(path, path)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"stateDir": "/data/holdfast"}, "/data/holdfast"),
        ({"kubelet": {"pluginDir": "/k/device-plugins"}}, "/k/device-plugins"),
        ({"kubelet": {"podResourcesSocket": "/k/pods/kubelet.sock"}}, "/k/pods"),
        ({"deviceListStrategy": "cdi", "cdi": {"specDir": "/etc/cdi"}}, "/etc/cdi"),
        ({"gpu": {"driverRoot": "/drivers"}}, "/drivers"),
        ({"labels": {"enabled": True, "folder": "/nfd/features.d"}}, "/nfd/features.d"),
    ],
)
def test_a_folder_that_is_moved_in_the_configuration_is_mounted_there(
    config: dict[str, Any], path: str
) -> None:
    assert path in set(_may({"config": config}))


@pytest.mark.parametrize("here", [{}, {"driverRoot": "/driver-root"}])
def test_a_drivers_root_that_the_host_has_elsewhere_is_mounted_from_there(
    here: dict[str, str],
) -> None:
    values = {"config": {"gpu": {**here, "driverRootOnHost": "/"}}}

    assert _mount(values, "/driver-root")["readOnly"] is True
    (volume,) = [each for each in pod(values)["volumes"] if each["name"] == "driver-root"]
    assert volume["hostPath"]["path"] == "/"


def test_the_pod_resources_folder_moves_with_kubelets_root() -> None:
    values = {"kubeletRoot": "/var/lib/k0s/kubelet/"}

    assert "/var/lib/k0s/kubelet/pod-resources" in set(_may(values))
    socket = "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
    assert settings(objects(values)).kubelet.pod_resources_socket == socket


def test_what_is_mounted_later_or_unmounted_on_the_host_is_so_in_the_container() -> None:
    for path in ("/run/nvidia/driver", "/run/nvidia/dev", "/run/containerd"):
        assert _mount(_ALL, path)["mountPropagation"] == "HostToContainer"


def test_the_container_cannot_gain_anything_nor_write_to_its_own_image() -> None:
    found = container()["securityContext"]

    assert found["privileged"] is False
    assert found["allowPrivilegeEscalation"] is False
    assert found["readOnlyRootFilesystem"] is True
    assert found["capabilities"]["drop"] == ["ALL"]
    assert found["runAsUser"] == 0
    assert found["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["seLinuxOptions"] == {"type": "spc_t"}


def test_apparmor_is_told_as_the_cluster_understands_it() -> None:
    assert container()["securityContext"]["appArmorProfile"] == {"type": "Unconfined"}

    for choice, noted in (("annotation", True), ("none", False)):
        template = one(objects({"appArmor": choice}), "DaemonSet")["spec"]["template"]
        name = "container.apparmor.security.beta.kubernetes.io/holdfast"
        assert "appArmorProfile" not in template["spec"]["containers"][0]["securityContext"]
        assert (template["metadata"]["annotations"].get(name) == "unconfined") == noted


def test_privileged_is_a_choice_for_nodes_without_nvidias_runtime() -> None:
    found = container({"privileged": True})["securityContext"]

    assert found["privileged"] is True
    # The API server refuses both together.
    assert "allowPrivilegeEscalation" not in found


def test_without_dra_and_events_there_is_no_token_and_nothing_gives_the_account_rights() -> None:
    config = {**_ALL["config"], "map": {}, "tpu": {}, "events": {}}
    found = objects({**_ALL, "dra": {}, "config": config})

    assert one(found, "ServiceAccount")["automountServiceAccountToken"] is False
    assert one(found, "DaemonSet")["spec"]["template"]["spec"]["automountServiceAccountToken"] is (
        False
    )
    assert not [each for each in found if "Role" in each["kind"] or "Policy" in each["kind"]]


def _mount(values: dict[str, Any], path: str) -> dict[str, Any]:
    mounts = container(values)["volumeMounts"]
    (found,) = [mount for mount in mounts if mount["mountPath"] == path]
    assert isinstance(found, dict)
    return found
