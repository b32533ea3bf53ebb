"""What NVIDIA's plugin is told, by flag, variable or file, means the same here or is answered."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import device_of, name
from fakes.settingsfiles import load
from holdfast.errors import SettingsError
from holdfast.model.cards import Sharing
from holdfast.model.devicerules import assigned
from holdfast.model.devices import Device, DeviceKind, Identity, Inventory
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.settings.nvidia_plugin import OTHERS, VARIABLES, flags

TEXTS = {
    "MIG_STRATEGY": "mixed",
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    "DRIVER_ROOT_CTR_PATH": "/driver-root",
    "CONTAINER_DRIVER_ROOT": "/driver-root",
    "NVIDIA_DEV_ROOT": "/run/nvidia/driver",
    "DEVICE_LIST_STRATEGY": "envvar,volume-mounts",
    "DEVICE_ID_STRATEGY": "index",
    "CDI_ANNOTATION_PREFIX": "cdi.example.com/",
    "NVIDIA_CTK_PATH": "/usr/bin/nvidia-ctk",
    "NVIDIA_CDI_HOOK_PATH": "/usr/bin/nvidia-cdi-hook",
    "CDI_DISABLE_HOOKS": "all",
    "CDI_FEATURE_FLAGS": "disable-ipc-discoverer,of-tomorrow",
    "IMEX_CHANNEL_IDS": "0",
    "SHARED_DEVICES_ALLOCATION_POLICY": "packed",
}
"""A value of each that is no boolean."""


@pytest.mark.parametrize("name", [name for name in VARIABLES if not name.startswith("DP_")])
def test_a_flag_of_nvidias_plugin_means_what_its_variable_does(name: str) -> None:
    text, flag = TEXTS.get(name, "true"), name.lower().replace("_", "-")
    assert flag in flags()
    by_flag, by_variable = load(None, {}, theirs={flag: text}), load(None, {name: text})
    assert by_flag == by_variable != load(None, {})


def test_flags_win_over_variables_and_ours_over_theirs() -> None:
    theirs = {"mig-strategy": "single", "device-id-strategy": "index", "imex-required": "true"}
    variables = {"MIG_STRATEGY": "mixed", "HOLDFAST_GPU_IMEX_REQUIRED": "false"}
    gpu = load(None, variables, {"gpu.deviceIdStrategy": "uuid"}, theirs=theirs).gpu
    assert (gpu.mig_strategy, gpu.device_id_strategy) == ("single", "uuid")
    assert gpu.imex_required is False, "our variable wins over their flag, too"


@pytest.mark.parametrize(
    ("flag", "key"), [("driver-root", "driver_root_on_host"), ("dev-root", "dev_root")]
)
def test_the_shorter_names_of_the_roots_are_taken(flag: str, key: str) -> None:
    assert getattr(load(None, {}, theirs={flag: "/run/driver"}).gpu, key) == "/run/driver"


def test_a_value_that_is_not_one_of_nvidias_is_told_which_are() -> None:
    with pytest.raises(SettingsError, match=r"gpu\.migStrategy.*use none or single or mixed"):
        load(None, {}, theirs={"mig-strategy": "both"})


def test_the_folder_of_kubelets_socket_is_that_of_ours() -> None:
    socket = "/srv/kubelet/device-plugins/kubelet.sock"
    for found in (
        load(None, {"KUBELET_SOCKET": socket}),
        load(None, {}, theirs={"kubelet-socket": socket}),
    ):
        assert found.kubelet.plugin_dir == "/srv/kubelet/device-plugins"


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("KUBELET_SOCKET", "", "holdfast always registers with kubelet"),
        ("KUBELET_SOCKET", "/srv/other.sock", r"set kubelet\.pluginDir to its folder"),
        ("DEVICE_DISCOVERY_STRATEGY", "tegra", "GPUs are found by NVML alone"),
    ],
)
def test_what_cannot_mean_the_same_is_refused_and_told_what_to_do(
    variable: str, text: str, told: str
) -> None:
    with pytest.raises(SettingsError, match=f"{variable}.*{told}"):
        load(None, {variable: text})
    flag = variable.lower().replace("_", "-")
    with pytest.raises(SettingsError, match=f"--{flag}.*{told}"):
        load(None, {}, theirs={flag: text})


def test_what_charts_set_always_and_asks_for_nothing_is_taken() -> None:
    always = {
        "FAIL_ON_INIT_ERROR": "true",
        "MPS_ROOT": "/run/nvidia/mps",
        "DEVICE_DISCOVERY_STRATEGY": "auto",
        "CONFIG_FILE": "",
        "CDI_FEATURE_FLAGS": "",
    }
    assert load(None, always) == load(None, {})
    named = {name.lower().replace("_", "-"): text for name, text in always.items()}
    assert load(None, {}, theirs=named) == load(None, {})


_BOOLEANS = {
    "PASS_DEVICE_SPECS": "pass_device_specs",
    "GDRCOPY_ENABLED": "gdrcopy_enabled",
    "GDS_ENABLED": "gds_enabled",
    "MOFED_ENABLED": "mofed_enabled",
    "IMEX_REQUIRED": "imex_required",
}


@pytest.mark.parametrize("name", _BOOLEANS)
def test_a_truth_is_read_as_go_reads_it(name: str) -> None:
    def read(text: str) -> object:
        by_variable = load(None, {name: text})
        assert by_variable == load(None, {}, theirs={name.lower().replace("_", "-"): text})
        return getattr(by_variable.gpu, _BOOLEANS[name])

    assert all(read(text) is True for text in ("1", "t", "T", "true", "TRUE", "True"))
    assert all(read(text) is False for text in ("0", "f", "F", "false", "FALSE", "False", ""))


@pytest.mark.parametrize("name", [*_BOOLEANS, "FAIL_ON_INIT_ERROR"])
@pytest.mark.parametrize("text", ["maybe", "yes", "on", "tRUE", " true"])
def test_what_go_takes_for_no_truth_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} with the value {text!r}.*use one of them"):
        load(None, {name: text})


def test_a_policy_for_slices_that_nvidias_plugin_does_not_have_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"gpu\.sharedDevicesAllocationPolicy.*use distributed or packed"
    ):
        load(None, {"SHARED_DEVICES_ALLOCATION_POLICY": "anywhere"})


def test_every_option_without_a_key_says_why() -> None:
    assert all(other.why for other in OTHERS.values())


NVIDIAS = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  gdsEnabled: true
  useNodeFeatureAPI: true
  plugin:
    passdevicespecs: true # Go compares keys whatever their case
    sharedDevicesAllocationPolicy: packed
    deviceListStrategy: [envvar, volume-mounts]
    deviceIDStrategy: index
  gfd:
    oneshot: false
resources:
  gpus: [{pattern: "*", name: nvidia.com/gpu}]
sharing:
  mps: {resources: []}
  timeSlicing:
    renameByDefault: false
    failRequestsGreaterThanOne: true
    resources:
    - {name: gpu, replicas: 10, devices: all}
"""


def test_a_file_of_nvidias_plugin_is_taken_and_variables_and_ours_win_over_it(
    tmp_path: Path,
) -> None:
    theirs, ours = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    theirs.write_text(NVIDIAS)
    ours.write_text("gpu:\n  deviceIdStrategy: uuid\nlog:\n")
    gpu = load(None, {"CONFIG_FILE": str(theirs)}).gpu
    assert (gpu.mig_strategy, gpu.gds_enabled, gpu.pass_device_specs) == ("mixed", True, True)
    assert gpu.shared_devices_allocation_policy == "packed"
    assert (gpu.device_list_strategy, gpu.device_id_strategy) == (
        ("envvar", "volume-mounts"),
        "index",
    )
    sharing = load(None, {"CONFIG_FILE": str(theirs)}).sharing.by_resource()
    assert sharing == {"nvidia.com/gpu": Sharing(replicas=10, single=True)}
    gpu = load(ours, {"MIG_STRATEGY": "single"}, theirs={"config-file": str(theirs)}).gpu
    assert (gpu.mig_strategy, gpu.device_id_strategy, gpu.gds_enabled) == ("single", "uuid", True)


def test_a_section_of_ours_without_a_value_leaves_nvidias_as_it_is(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    theirs.write_text(NVIDIAS)
    ours.write_text("gpu:\n")
    assert load(ours, {"CONFIG_FILE": str(theirs)}).gpu.mig_strategy == "mixed"


@pytest.mark.parametrize(
    "content",
    [
        "flags:",
        "flags: null",
        "flags: {plugin: null}",
        "imex:",
        "sharing:",
        "sharing: {timeSlicing: }",
        "flags: {}",
    ],
)
def test_a_section_of_nvidias_file_without_a_value_says_nothing(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(content)
    assert load(None, {"CONFIG_FILE": str(file)}) == load(None, {})


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("flags: {passDeviceSpecs: true}", r"flags\.plugin\.passDeviceSpecs"),
        (
            "flags: {plugin: {nvidiaCDIHookPath: /usr/bin/nvidia-cdi-hook}}",
            r"flags\.plugin\.nvidiaCTKPath",
        ),
        ("flags: {plugin: {migStrategy: mixed}}", r"flags\.migStrategy"),
        ("flags: {channelIDs: [0]}", r"imex\.channelIDs"),
    ],
)
def test_a_key_in_the_wrong_place_has_no_effect_as_with_nvidias_plugin_and_is_told(
    tmp_path: Path, content: str, place: str
) -> None:
    file, told = tmp_path / "theirs.yaml", list[str]()
    file.write_text(content)

    assert load(None, {"CONFIG_FILE": str(file)}, told=told.append) == load(None, {})
    (only,) = told
    assert re.search(f"has no effect.*belongs at {place}; move it there", only)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("version: v2", "version: 'v2' is not supported; use v1"),
        ("flags: {migStrategies: mixed}", "flags.migStrategies in .*no such key"),
        ("flags: {device_id_strategy: index}", "flags.device_id_strategy in .*no such key"),
        ("flags: {failOnInitError: maybe}", "flags.failOnInitError in .*true or false"),
        ("flags: {failOnInitError: 1}", "flags.failOnInitError in .*true or false"),
        ("flags: {migStrategy: off}", "flags.migStrategy in .*must be text"),
        ("gpu: {migStrategy: mixed}", "gpu.migStrategy in .*file of --config"),
        (
            "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
            "sharing.mps.resources in .*share GPUs by sharing.timeSlicing",
        ),
        ("sharing: {timeSlices: {resources: []}}", "sharing.timeSlices.resources in .*no such key"),
        (
            "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}",
            r"sharing.timeSlicing.resources\[0\].replicas: .*>= 2",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: google.com/tpu, replicas: 2}]}}",
            r"resources\[0\].name: expected nvidia.com/gpu, or MIG slices such as",
        ),
        ("flags: {deviceDiscoveryStrategy: tegra}", "GPUs are found by NVML alone"),
        ("flags: {migStrategy: both}", "gpu.migStrategy.*use none or single or mixed"),
        ("resources: {gpus: [{pattern: '*'}]}", "^cannot use "),
        ("resources: {gpus: [a100]}", "^cannot use "),
        ("resources: {gpus: [{pattern: '*', name: a, replicas: 2}]}", "^cannot use "),
        ("resources: {tpus: []}", "^cannot use "),
        ("resources: {gpus: [{pattern: '*', name: 'a b'}]}", "^cannot use "),
    ],
)
def test_what_a_file_of_nvidias_says_that_cannot_be_done_is_named(
    tmp_path: Path, content: str, told: str
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=told):
        load(None, {"CONFIG_FILE": str(file)})


def test_a_file_of_nvidias_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*gone\.yaml"):
        load(None, {"CONFIG_FILE": str(tmp_path / "gone.yaml")})


_A100, _L4 = "NVIDIA A100-SXM4-40GB", "NVIDIA L4 [PCIe]"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("resources: {gpus: [{pattern: '*', name: gpu}]}", {}),
        ("resources: {gpus: [{pattern: '*A100*', name: a100}]}", {_A100: "nvidia.com/a100"}),
        ("RESOURCES: {GPUS: [{Pattern: '*A100*', Name: a100}]}", {_A100: "nvidia.com/a100"}),
        (
            "resources: {gpus: [{pattern: 'Tesla T4', name: t4}, {pattern: '*', name: a.b/rest}]}",
            {"Tesla T4": "nvidia.com/t4", _A100: "a.b/rest", _L4: "a.b/rest"},
        ),
        (
            "resources: {gpus: [{pattern: 'Tesla ?4', name: t4}, {pattern: '* [PCIe]', name: l4}]}",
            {_L4: "nvidia.com/l4"},
        ),
        (
            "resources: {mig: [{pattern: '1g.*', name: small}], gpus: [{pattern: '*', name: big}]}",
            {
                "Tesla T4": "nvidia.com/big",
                _A100: "nvidia.com/big",
                _L4: "nvidia.com/big",
                f"{_A100} MIG 1g.5gb": "nvidia.com/small",
            },
        ),
    ],
)
def test_resources_of_nvidias_file_name_gpus_by_their_model_and_slices_by_their_profile(
    tmp_path: Path, content: str, names: dict[str, str]
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(content)
    rules = load(None, {"CONFIG_FILE": str(file)}).device_rules()
    models = ["Tesla T4", _A100, _L4, f"{_A100} MIG 1g.5gb", f"{_A100} MIG 2g.10gb"]
    found = Inventory(devices=(*map(_gpu, models), _chip("v5e")))

    given = {each.model: each.name.resource for each in assigned(found, rules, {}).devices}

    assert {model: name for model, name in given.items() if name != "nvidia.com/gpu"} == names | {
        "v5e": "google.com/tpu"
    }


def _gpu(model: str) -> Device:
    uuid = f"GPU-{model}"
    return device_of(
        name(uuid, ResourceName("nvidia.com/gpu")),
        uuid,
        kind=DeviceKind.DRIVER,
        model=model,
        identity=Identity(uuids=(uuid,)),
    )


def _chip(model: str) -> Device:
    return replace(
        _gpu(model),
        name=DeviceName(ResourceName("google.com/tpu"), DeviceId("chip")),
        identity=Identity(),
    )
