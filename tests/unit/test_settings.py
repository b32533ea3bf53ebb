"""The configuration: what it takes, what it refuses, and how it says so."""

import ast
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from fakes.refusedsettings import REFUSED, tree
from fakes.settingsfiles import load
from holdfast.errors import SettingsError
from holdfast.model.cards import Sharing
from holdfast.model.nvidia.mig import MigStrategy
from holdfast.settings import Settings, convert, known_paths, plain, schema
from holdfast.settings.types import (
    PATTERN,
    Duration,
    Interval,
    Section,
    entry_of,
    forms,
    is_section,
)


def _file(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def test_without_any_source_every_key_has_its_default() -> None:
    settings = load(None, {})

    assert settings == Settings()
    assert settings.gate.wait == 25.0
    assert settings.reclaim.mode == "terminate"
    assert settings.tpu.resource_name == "google.com/tpu"


def test_the_environment_overrules_the_file_and_flags_overrule_both(tmp_path: Path) -> None:
    file = _file(tmp_path, "gate: {wait: 1s, poll: 10ms, callerLookup: 2s}\n")

    settings = load(
        file,
        {"HOLDFAST_GATE_WAIT": "2s", "HOLDFAST_GATE_POLL": "20ms", "PATH": "/bin"},
        {"gate.wait": "3s"},
    )

    assert (settings.gate.wait, settings.gate.poll) == (3.0, 0.02)
    assert settings.gate.caller_lookup == 2.0, "what nobody overrules stays as the file has it"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("15m", 900),
        ("1h30m", 5400),
        ("1m0.5s", 60.5),
        ("0s", 0),
        ("7", 7),
        ("1.5", 1.5),
        (8, 8),
        (0.5, 0.5),
        (0, 0),
    ],
)
def test_a_duration_is_text_with_units_or_a_number_of_seconds(text: object, seconds: float) -> None:
    assert Duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("given", [10**30, 1e300, 10_000_000_000, "20000000000", "876001h"])
def test_no_duration_is_longer_than_programs_can_wait(given: object) -> None:
    """Such as ten seconds in nanoseconds: gRPC takes that many seconds for a time that is over."""
    assert Duration.parse(given) == Duration.parse("876000h") == 36_500 * 86_400.0


@pytest.mark.parametrize(
    "given",
    [
        "",
        "s",
        "5 s",
        "5x",
        "-5s",
        "s5",
        "5s!",
        "1d",
        "٣s",
        -1,
        True,
        None,
        [],
        float("nan"),
        float("inf"),
        "9" * 400 + "s",
    ],
)
def test_anything_else_is_no_duration(given: object) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 30s or 250ms"):
        Duration.parse(given)


@pytest.mark.parametrize("given", [0, "0s", "00", "0ms", 0.0])
def test_what_is_done_again_and_again_has_an_interval_above_zero(given: object) -> None:
    with pytest.raises(ValueError, match="above zero"):
        Interval.parse(given)


def test_an_interval_leaves_time_for_all_else() -> None:
    assert Interval.parse("0.000001ms") == Interval.parse(0.001) == 0.001


@given(st.from_regex(re.compile(rf"\A(?:{PATTERN})\Z")))
def test_the_schema_and_the_parser_agree_on_what_a_duration_is(text: str) -> None:
    assert Duration.parse(text) >= 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gate: {wiat: 1s}", "gate.wiat: there is no such key; did you mean gate.wait?"),
        ("gates: {wait: 1s}", "gates: there is no such key; did you mean gate?"),
        ("kubelet: {question: {setle: 1s}}", "did you mean kubelet.question.settle?"),
        ("zzzz: 1", "zzzz: there is no such key"),
        (
            "pools: [{resourceName: a.b/c, adresses: [x]}]",
            "pools[0].adresses: there is no such key; did you mean pools[0].addresses?",
        ),
        ("gate: {wait: soon}", "gate.wait: expected a duration such as 30s or 250ms, got 'soon'"),
        ("withholdAfter: " + "9" * 5000, "30s or 250ms, got '" + "9" * 59 + "... (4942 more"),
        ("gate: {poll: 0}", "gate.poll: expected a duration above zero"),
        ("gate: 5", "gate: Expected `object`, got `int`"),
        ("gate: {exclusiveOpen: 1}", "gate.exclusiveOpen: Expected `bool`, got `int`"),
        ("http: {port: 70000}", "http.port: Expected `int` <= 65535"),
        ("http: {port: eighty}", "http.port: Expected `int`, got `str`"),
        ("history: {perDevice: 0}", "history.perDevice: Expected `int` >= 1"),
        ("history: {perDevice: 1000000001}", "history.perDevice: Expected `int` <= 1000000000"),
        ("reclaim: {mode: kill}", "reclaim.mode: Invalid enum value 'kill'"),
        ("log: {level: loud}", "log.level: Invalid enum value 'loud'"),
        ("pools: [{devices: ['1:2']}]", "pools[0]: Object missing required field `resourceName`"),
        ("pools: {resourceName: x}", "pools: Expected `array`, got `object`"),
        ("gate: 5\non: 1", "line 2: a key is not text: YAML reads on as another type"),
        ("gate: {7: 1}", "line 1: a key is not text: YAML reads 7 as"),
        ("tpu: {workerId: -1}", "tpu.workerId: Expected `int` >= 0"),
        (
            "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replica: 4}]}}",
            "did you mean sharing.timeSlicing.resources[0].replicas?",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}",
            "sharing.timeSlicing.resources[0].replicas: Expected `int` >= 2",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: [0]}]}}",
            "sharing.timeSlicing.resources[0].devices: ",
        ),
        ("sharing: {mps: {resources: []}}", "sharing.mps: MPS is not served"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_path_of_its_key(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(_file(tmp_path, text), {})


@pytest.mark.parametrize(("paths", "message"), REFUSED, ids=str)
def test_what_is_well_formed_and_cannot_work_is_refused_with_the_reason(
    paths: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        convert(tree(paths))


def test_each_resource_is_served_by_the_api_of_its_hardware() -> None:
    settings = load(
        None,
        {},
        {
            "tpu.api": "dra",
            "pools": "[{resourceName: a.b/c, addresses: ['*'], api: dra},"
            " {resourceName: a.b/d, addresses: ['*']}]",
        },
    )
    served = ("google.com/tpu", "a.b/c", "a.b/d", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb")
    assert [settings.is_dra(each) for each in served] == [True, True, False, False, False]
    assert settings.has_dra()
    gpus = load(None, {}, {"gpu.api": "dra"})
    mine = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb")
    assert all(map(gpus.is_dra, mine))
    assert [gpus.api_of(each) for each in ("google.com/tpu", "a.b/c")] == ["device-plugin", None]
    assert not gpus.is_dra("a.b/c"), "what no section has comes by the device plugin"
    assert not load(None, {}).has_dra()
    assert not load(None, {}, {"tpu.api": "dra", "tpu.enabled": "false"}).has_dra()


def test_of_a_name_that_two_sections_have_the_enabled_one_counts() -> None:
    pool = "[{resourceName: google.com/tpu, addresses: ['*'], api: dra}]"
    assert load(None, {}, {"tpu.enabled": "false", "pools": pool}).is_dra("google.com/tpu")
    assert load(None, {}, {"tpu.enabled": "false", "tpu.api": "dra"}).is_dra("google.com/tpu")
    with pytest.raises(SettingsError, match=r"pools: google\.com/tpu is served by both APIs"):
        load(None, {}, {"pools": pool})


def test_a_node_may_offer_gpus_and_nothing_else() -> None:
    assert load(None, {}, {"tpu.enabled": "false"}).gpu.enabled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gate: {wait: 1s}\ngate: {wait: 2s}\n", "line 2: the key gate is there twice"),
        ("gate:\n  wait: 1s\n  wait: 2s\n", "line 3: the key wait is there twice"),
        ("gate: [\n", "line 2: "),
        ("- a\n", "it must be a mapping of keys to values"),
        ("stateDir: !!python/object:os.system x\n", "line 1: could not determine a constructor"),
        ("a: \x00\n", "unacceptable character"),
        ('gate: {}\nstateDir: "/a\\ud800"\n', "line 2: "),
        ("[" * 1000, "it is nested too deep"),
        ("gate: &a\n  wait: *a\n", "line 1: it contains itself"),
        ("devices: &a [*a]\n", "line 1: it contains itself"),
        ("a: 1\nb: !!int ''\n", "line 2: '' is no int"),
        ("a: !!timestamp now\n", "line 1: 'now' is no timestamp"),
        ("a: !!bool sure\n", "line 1: 'sure' is no bool"),
        ("#" * (1 << 20) + "\n", "it is longer than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_sound_yaml_is_refused_with_the_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = _file(tmp_path, text)

    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        load(file, {})

    assert str(file) in str(caught.value)


def test_what_has_a_colon_is_text_and_no_number_to_base_60(tmp_path: Path) -> None:
    text = "devices:\n- match: {index: 1:0}\n- match: {pci: 0000:05:00.0}\n"

    first, second = load(_file(tmp_path, text), {}).devices

    assert first.match.given() == {"index": "1:0"}, "the first slice of GPU 1, not GPU 60"
    assert second.match.given() == {"pci": "0000:05:00.0"}


@pytest.mark.parametrize(
    "text", ["0x" + "f" * 17, "0x_", "1.0e+999", ".1_0", "2001-99-99", "2001-01-01", "=", "<<"]
)
def test_what_64_bits_and_floats_do_not_hold_is_text_as_are_dates(
    tmp_path: Path, text: str
) -> None:
    assert load(_file(tmp_path, f"gpu: {{displays: [{text}]}}"), {}).gpu.displays == (text,)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0x10", 16), ("1_0", 10), ("017", 15), ("5e-07", 5e-7)]
)
def test_a_number_may_be_to_another_base_or_have_an_exponent(
    tmp_path: Path, text: str, seconds: float
) -> None:
    assert load(_file(tmp_path, f"withholdAfter: {text}"), {}).withhold_after == seconds


@pytest.mark.parametrize("last", ["{x: *a29, y: *a29}", "[*a29, *a29]", "{<<: [*a29, *a29]}"])
def test_a_file_that_aliases_make_immense_is_refused_before_it_is(
    tmp_path: Path, last: str
) -> None:
    sort = last[0]
    lines = [f"a0: &a0 {'[1]' if sort == '[' else '{x: 1}'}"]
    lines += [f"a{n}: &a{n} {last}".replace("*a29", f"*a{n - 1}") for n in range(1, 30)]

    with pytest.raises(SettingsError, match="line 1[0-9]: it has more than 50000 values"):
        load(_file(tmp_path, "\n".join(lines)), {})


@pytest.mark.slow
def test_a_pipe_is_read_to_its_end_and_one_that_nobody_writes_to_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SettingsError, match=r"cannot read .*/pipe: nothing has been written"):
        load(pipe, {})

    writer = threading.Thread(target=lambda: pipe.write_text("gate: {wait: 7s}\n"))
    writer.start()
    assert float(load(pipe, {}).gate.wait) == 7
    writer.join()


def test_a_path_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"named\.folder: expected an absolute path"):
        load(_file(tmp_path, 'named: {folder: "/a\\0b"}\n'), {})


def test_a_file_that_is_not_there_or_is_no_text_is_refused_by_its_path(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00gate")

    for file in (tmp_path / "none.yaml", tmp_path, binary):
        with pytest.raises(SettingsError, match=f"cannot read {re.escape(str(file))}: "):
            load(file, {})


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "gate:\n  # wait: 1s\n", "reclaim:\n  retry:\n"]
)
def test_an_empty_file_or_section_leaves_the_defaults(tmp_path: Path, text: str) -> None:
    assert load(_file(tmp_path, text), {}) == Settings()


def test_an_empty_key_that_does_not_exist_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gate\.retry: there is no such key"):
        load(_file(tmp_path, "gate:\n  retry:\n"), {})


def test_a_variable_that_names_no_key_is_refused_with_a_hint() -> None:
    with pytest.raises(
        SettingsError, match=r"HOLDFAST_GATE_WIAT: .* did you mean HOLDFAST_GATE_WAIT\?"
    ):
        load(None, {"HOLDFAST_GATE_WIAT": "5s"})


def test_a_flag_that_names_no_key_is_refused_with_a_hint() -> None:
    with pytest.raises(SettingsError, match=r"cannot set gate\.wiat: .* did you mean gate\.wait\?"):
        load(None, {}, {"gate.wiat": "5s"})


def test_a_section_of_the_wrong_type_is_an_error_even_where_a_variable_sets_a_key_in_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="gate: Expected `object`"):
        load(_file(tmp_path, "gate: 5"), {"HOLDFAST_GATE_WAIT": "3s"})


def test_what_kubernetes_tells_of_a_service_called_holdfast_is_no_setting() -> None:
    told = {
        "HOLDFAST_SERVICE_HOST": "10.0.0.1",
        "HOLDFAST_SERVICE_PORT": "8008",
        "HOLDFAST_SERVICE_PORT_METRICS": "8008",
        "HOLDFAST_PORT": "tcp://10.0.0.1:8008",
        "HOLDFAST_PORT_8008_TCP": "tcp://10.0.0.1:8008",
        "HOLDFAST_PORT_8008_TCP_PROTO": "tcp",
        "HOLDFAST_PORT_8008_TCP_PORT": "8008",
        "HOLDFAST_PORT_8008_TCP_ADDR": "10.0.0.1",
        "HOLDFAST_METRICS_SERVICE_HOST": "10.0.0.1",
        "HOLDFAST_HTTP_PORT": "tcp://10.0.0.1:80",  # a Service called holdfast-http
    }

    assert load(None, told) == Settings()
    assert load(None, {**told, "HOLDFAST_HTTP_PORT": "9000"}).http.port == 9000


def test_text_from_outside_is_read_as_the_type_of_its_key() -> None:
    settings = load(
        None,
        {
            "HOLDFAST_TPU_TOPOLOGY": "2x4",
            "HOLDFAST_TPU_WORKER_ID": "1",
            "HOLDFAST_TPU_WORKER_HOSTNAMES": "a, b",
            "HOLDFAST_TPU_VBAR_URL": "123",
            "HOLDFAST_GATE_EXCLUSIVE_OPEN": "false",
            "HOLDFAST_POOLS": '[{"resourceName": "a.b/c", "devices": ["8086:*"]}]',
        },
    )

    assert settings.tpu.topology == "2x4"
    assert settings.tpu.worker_id == 1
    assert settings.tpu.worker_hostnames == ("a", "b")
    assert settings.tpu.vbar_url == "123", "a string stays a string"
    assert not settings.gate.exclusive_open
    assert settings.pools[0].devices == ("8086:*",)


def test_every_single_key_can_be_given_by_a_variable_of_its_own() -> None:
    names = [
        "HOLDFAST_" + re.sub("([A-Z])", r"_\1", path).replace(".", "_").upper()
        for path in known_paths()
    ]
    defaults = plain(Settings())

    assert len(names) == len(set(names))
    for name, path in zip(names, known_paths(), strict=True):
        value: object = defaults
        for part in path.split("."):
            assert isinstance(value, dict)
            value = value[part]
        text = value if isinstance(value, str) else json.dumps(value)
        assert load(None, {name: text}) == Settings(), name


def _sections(section: type[Section] = Settings) -> Iterator[type[Section]]:
    """Yield *section* and each one below it, also those of entries of lists."""
    yield section
    for kind in forms(section).values():
        if (below := kind if is_section(kind) else entry_of(kind)) is not None:
            yield from _sections(below)


@pytest.mark.parametrize("section", [*_sections()], ids=lambda each: each.__name__)
def test_each_default_has_the_form_of_its_key(section: type[Section]) -> None:
    kinds = forms(section)
    for field in msgspec.structs.fields(section):
        if not field.required:
            factory = field.default_factory
            default = field.default if factory is msgspec.NODEFAULT else factory()
            read = msgspec.to_builtins(default, enc_hook=float)
            kind = kinds[field.encode_name]
            assert msgspec.convert(read, kind, dec_hook=lambda of, it: of.parse(it)) == default


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("stateDir", ["/", "/a//b/.", "/.a/...", "/..a"], ["", "a", "/a/..", "/../a", "/a\0"]),
        ("gpu.driverRoot", ["", "/", "/a/../b"], ["a", " /", "/\0", "/a\n", "/\x7f", "/\x85"]),
        ("gpu.cdiHookPath", ["", "/a"], ["/", "a"]),
        ("kubelet.socketPrefix", ["a", "a.b c", "ü"], ["", ".a", "a/b", "a\n", "a\x85", "a\u200b"]),
        (
            "tpu.resourceName",
            ["a/b", "a.b/C_d.e"],
            ["", "a", "A/b", "a/b/c", "a/b\n", "a/" + "b" * 64],
        ),
        (
            "dra.driverName",
            ["a", "a.1-b", "a" * 63],
            ["", "1a", "a.", "a-.b", "A", "a\n", "a" * 64],
        ),
        ("gpu.cdiAnnotationPrefix", ["a/", "a.b/"], ["", "/", "a", "a/b", "a/\n", "A/"]),
    ],
)
def test_text_has_the_form_of_its_key_from_its_first_character_to_its_last(
    key: str, right: list[str], wrong: list[str]
) -> None:
    for text in right:
        load(None, {}, {key: text})
    for text in wrong:
        with pytest.raises(SettingsError, match=rf"{re.escape(key)}: expected .*, got "):
            load(None, {}, {key: text})


def test_what_is_printed_can_be_read_again() -> None:
    settings = load(None, {"HOLDFAST_GATE_POLL": "10ms", "HOLDFAST_TPU_WORKER_HOSTNAMES": "a,b"})

    assert convert(yaml.safe_load(yaml.safe_dump(plain(settings)))) == settings


def test_the_schema_tells_every_key_with_its_default_and_refuses_others() -> None:
    told = schema()
    sections = told["$defs"]

    assert json.loads(json.dumps(told)) == told
    assert all(section["additionalProperties"] is False for section in sections.values())
    assert sections["Gate"]["properties"]["wait"]["default"] == 25
    assert sections["Gate"]["properties"]["poll"]["anyOf"][0] == {
        "type": "number",
        "exclusiveMinimum": 0,
    }
    assert sections["Http"]["properties"]["port"]["maximum"] == 65535
    for path in known_paths():
        section = sections["Settings"]
        for part in path.split(".")[:-1]:
            section = sections[section["properties"][part]["$ref"].rpartition("/")[2]]
        assert path.split(".")[-1] in section["properties"], path


def test_a_variable_of_nvidias_plugin_sets_its_key_and_ours_wins_over_it() -> None:
    theirs = {"DP_DISABLE_HEALTHCHECKS": "48,94", "DP_ENABLE_HEALTHCHECKS": "31"}
    gpu = load(None, theirs).gpu
    assert (gpu.disable_health_checks, gpu.enable_health_checks) == ("48,94", "31")
    ours = {**theirs, "HOLDFAST_GPU_DISABLE_HEALTH_CHECKS": "all"}
    assert load(None, ours).gpu.disable_health_checks == "all"


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        *(("MIG_STRATEGY", each.value, "mig_strategy", each.value) for each in MigStrategy),
        ("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver", "driver_root_on_host", "/run/nvidia/driver"),
        ("DRIVER_ROOT_CTR_PATH", "/driver-root", "driver_root", "/driver-root"),
        ("CONTAINER_DRIVER_ROOT", "/driver-root", "driver_root", "/driver-root"),
        ("NVIDIA_DEV_ROOT", "/run/nvidia/driver", "dev_root", "/run/nvidia/driver"),
        ("DEVICE_LIST_STRATEGY", "volume-mounts", "device_list_strategy", ("volume-mounts",)),
        (
            "DEVICE_LIST_STRATEGY",
            "envvar,volume-mounts",
            "device_list_strategy",
            ("envvar", "volume-mounts"),
        ),
        ("DEVICE_LIST_STRATEGY", "cdi-cri", "device_list_strategy", ("cdi-cri",)),
        (
            "DEVICE_LIST_STRATEGY",
            "cdi-annotations,cdi-cri",
            "device_list_strategy",
            ("cdi-annotations", "cdi-cri"),
        ),
        (
            "CDI_ANNOTATION_PREFIX",
            "nvidia.cdi.k8s.io/",
            "cdi_annotation_prefix",
            "nvidia.cdi.k8s.io/",
        ),
        ("NVIDIA_CTK_PATH", "/usr/bin/nvidia-ctk", "cdi_hook_path", "/usr/bin/nvidia-ctk"),
        ("NVIDIA_CDI_HOOK_PATH", "/opt/nvidia-cdi-hook", "cdi_hook_path", "/opt/nvidia-cdi-hook"),
        (
            "CDI_DISABLE_HOOKS",
            "update-ldcache,enable-cuda-compat",
            "cdi_disable_hooks",
            ("update-ldcache", "enable-cuda-compat"),
        ),
        ("IMEX_CHANNEL_IDS", "0", "imex_channel_ids", (0,)),
        ("IMEX_CHANNEL_IDS", "[0]", "imex_channel_ids", (0,)),
        ("IMEX_CHANNEL_IDS", "", "imex_channel_ids", ()),
        ("IMEX_REQUIRED", "true", "imex_required", True),
        ("DEVICE_ID_STRATEGY", "index", "device_id_strategy", "index"),
        ("PASS_DEVICE_SPECS", "true", "pass_device_specs", True),
        ("GDRCOPY_ENABLED", "true", "gdrcopy_enabled", True),
        ("GDS_ENABLED", "true", "gds_enabled", True),
        ("MOFED_ENABLED", "true", "mofed_enabled", True),
    ],
)
def test_each_variable_of_nvidias_plugin_for_grants_and_roots_means_the_same(
    variable: str, text: str, key: str, value: object
) -> None:
    assert getattr(load(None, {variable: text}).gpu, key) == value


def test_the_drivers_root_is_where_nvidias_variables_say_that_it_is_mounted(tmp_path: Path) -> None:
    def roots(environ: dict[str, str], file: Path | None = None) -> tuple[str, str]:
        gpu = load(file, environ).gpu
        return gpu.driver_root, gpu.driver_root_on_host

    host = {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"}
    mounted = {"DRIVER_ROOT_CTR_PATH": "/mounted"}
    assert roots({}) == ("", "")
    assert roots(host) == ("", "/run/nvidia/driver")
    assert roots(host | mounted) == ("/mounted", "/run/nvidia/driver")
    assert roots(mounted) == ("/mounted", "/"), "NVIDIA's own default"
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text("flags: {plugin: {containerDriverRoot: /mounted}}\n")
    assert roots({"CONFIG_FILE": str(theirs)}) == ("/mounted", "/")
    assert roots({"CONFIG_FILE": str(theirs), **host}) == ("/mounted", "/run/nvidia/driver")
    theirs.write_text("flags: {nvidiaDriverRoot: /run/nvidia/driver}\n")
    assert roots({"CONFIG_FILE": str(theirs), **mounted}) == ("/mounted", "/run/nvidia/driver")
    theirs.write_text("flags: {migStrategy: mixed}\n")
    assert roots({"CONFIG_FILE": str(theirs), **mounted}) == ("/mounted", "/"), "it says nothing"
    ours = tmp_path / "ours.yaml"
    ours.write_text("gpu: {driverRootOnHost: /run/nvidia/driver}\n")
    assert roots(mounted, ours) == ("/mounted", "/run/nvidia/driver")
    assert roots({"CONFIG_FILE": str(theirs), **mounted}, ours) == roots(mounted, ours)


def test_the_newer_of_nvidias_two_names_for_the_hook_wins() -> None:
    theirs = {"NVIDIA_CDI_HOOK_PATH": "/new", "NVIDIA_CTK_PATH": "/old"}
    assert load(None, theirs).gpu.cdi_hook_path == "/new"


def test_a_strategy_that_is_not_taken_is_told_which_to_use_instead() -> None:
    known = "envvar or volume-mounts or cdi-annotations or cdi-cri"
    with pytest.raises(SettingsError, match=rf"gpu\.deviceListStrategy.*use {known}"):
        load(None, {"DEVICE_LIST_STRATEGY": "cdi"})
    with pytest.raises(SettingsError, match=r"gpu\.deviceIdStrategy.*use uuid or index"):
        load(None, {"DEVICE_ID_STRATEGY": "minor"})


_WHEN = re.compile(r"\b(Add|Change|Choose|Lower|Raise|Set)\b|; (choose|lower|raise)\b")


def test_every_setting_says_what_it_is_and_when_to_change_it() -> None:
    sections = schema()["$defs"]
    for section in sections.values():
        for name, key in section["properties"].items():
            if "$ref" in key:
                continue
            about = f"{section['title']}.{name}: {key.get('description')}"
            assert re.search(r"^[A-Z`].*\.$", key.get("description", "")), about
            assert _WHEN.search(key["description"]), about


_DAEMON = Path(holdfast.__file__).parent


def _names(section: type[Section] = Settings) -> Iterator[tuple[str, type]]:
    """Yield the name of each setting as the code has it, with the type of its default."""
    for field, kind in get_type_hints(section).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _names(kind)
        else:
            number = isinstance(kind, type) and issubclass(kind, int | float)
            yield field, float if number and kind is not bool else str


def _written(tree: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield each parameter and field that has a literal for its default, with that."""
    for node in ast.walk(tree):
        found: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = [*node.args.posonlyargs, *node.args.args][::-1]
            found += [
                (arg.arg, it) for arg, it in zip(last, node.args.defaults[::-1], strict=False)
            ]
            named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            found += [(arg.arg, it) for arg, it in named]
        elif isinstance(node, ast.ClassDef):
            found += [
                (each.target.id, each.value)
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
        yield from ((name, it.value) for name, it in found if isinstance(it, ast.Constant))


def test_no_default_of_a_setting_is_written_again_in_a_part_that_takes_it() -> None:
    """A second one drifts: `reclaim.poll` was 2 s here and 1 s there."""
    names = set(_names())
    twice = [
        f"{file.relative_to(_DAEMON)}: {name} = {default!r}"
        for file in _DAEMON.rglob("*.py")
        if not {"settings", "_pb"} & set(file.relative_to(_DAEMON).parts)
        for name, default in _written(ast.parse(file.read_text("utf-8")))
        if default and not isinstance(default, bool)
        if (name, str if isinstance(default, str) else float) in names
    ]
    assert twice == []


def test_gpus_are_shared_as_nvidias_file_says_it() -> None:
    rules = {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
    shared = convert({"sharing": {"timeSlicing": rules}}).sharing.by_resource()
    assert shared == {"nvidia.com/gpu": Sharing(replicas=4, renamed=True)}
    named = [{"name": "nvidia.com/gpu", "replicas": 4, "rename": "nvidia.com/gpu.shared"}]
    assert (
        convert({"sharing": {"timeSlicing": {"resources": named}}}).sharing.by_resource() == shared
    )
    assert convert({}).sharing.by_resource() == {}


_ANY = {"match": {"model": "*"}}


def test_the_api_of_a_name_is_that_of_its_hardware_or_of_its_rule() -> None:
    rules = [{**_ANY, "resource": "a.b/c", "api": "dra"}, {**_ANY, "resource": "nvidia.com/gpu"}]
    settings = convert({"devices": rules})

    assert [settings.is_dra(each) for each in ("a.b/c", "nvidia.com/gpu", "google.com/tpu")] == [
        True,
        False,
        False,
    ]
    assert settings.has_dra()
    silent = {**_ANY, "resource": "a.b/c"}
    for order in ([silent, rules[0]], [rules[0], silent]):  # whichever of them says it
        assert convert({"devices": order}).is_dra("a.b/c")
        assert convert({"devices": order, "gpu": {"api": "dra"}}).is_dra("a.b/c")
    claims = {"tpu": {"api": "dra"}, "gpu": {"enabled": False}}
    assert convert({"devices": [{**_ANY, "resource": "a.b/d"}], **claims}).is_dra("a.b/d")
