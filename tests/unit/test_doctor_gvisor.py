"""What the doctor says of gVisor, for what it may find: one table of cases for each rule."""

import pytest
from msgspec.structs import replace

from holdfast.doctor.containerd.facts import RuntimeTable
from holdfast.doctor.finding import Finding, Level
from holdfast.doctor.gvisor import (
    LEAK_FIXED,
    TPU_BY_ITSELF,
    Release,
    Runsc,
    SandboxRuntime,
    ShimConfig,
    gpu_findings,
    is_gvisor,
    mappings_finding,
    program_findings,
    release_finding,
    release_of,
    shim_config_finding,
    table_findings,
    tpu_findings,
)
from holdfast.settings import convert

TABLE = RuntimeTable(
    name="runsc",
    path="/c.toml",
    runtime_type="io.containerd.runsc.v1",
    config_path="/r.toml",
    type_url="io.containerd.runsc.v1.options",
)
CONFIG = ShimConfig(path="/r.toml")
PLAIN = (SandboxRuntime(table=TABLE, config=CONFIG),)
OLD, BETWEEN = Release(date=20250319), Release(date=20260601, count=1)


Runtimes = tuple[SandboxRuntime, ...]


def with_flags(**flags: str) -> Runtimes:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return (SandboxRuntime(table=TABLE, config=replace(CONFIG, flags=named)),)


def passing(*annotations: str) -> Runtimes:
    return (SandboxRuntime(table=replace(TABLE, annotations=annotations), config=CONFIG),)


def levels(*findings: Finding) -> dict[str, Level]:
    return {each.check: each.level for each in findings}


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ("runsc version release-20250326.0\nspec: 1.1.0\n", LEAK_FIXED),
        ("runsc version release-20260608.0-12-g0123456789ab\n", TPU_BY_ITSELF),
        ("runsc version 0.0~20221219.0\nspec: 1.0.2-dev\n", Release(date=20221219)),
        ("runsc version VERSION_MISSING\n", None),
        ("runsc version google-712345678\n", None),
        ("", None),
    ],
)
def test_the_release_is_read_from_what_runsc_says_of_itself(
    said: str, release: Release | None
) -> None:
    assert release_of(said) == release


def test_releases_of_one_day_are_told_apart_by_their_count() -> None:
    assert Release(date=20250326) < Release(date=20250326, count=1) < Release(date=20250327)
    assert str(Release(date=20250326, count=1)) == "release-20250326.1"


@pytest.mark.parametrize(
    ("release", "tpus", "level"),
    [
        pytest.param(OLD, 4, Level.FAIL, id="leaks, and there are TPUs"),
        pytest.param(OLD, 0, Level.WARN, id="leaks, without TPUs"),
        pytest.param(Release(date=20250325, count=9), 4, Level.FAIL, id="the day before"),
        pytest.param(LEAK_FIXED, 4, Level.OK, id="the first with the fix"),
        pytest.param(None, 4, Level.WARN, id="it does not say"),
    ],
)
def test_runsc_must_give_a_tpu_back(release: Release | None, tpus: int, level: Level) -> None:
    runsc = Runsc(path="/usr/bin/runsc", release=release, release_problem="it is odd")
    assert release_finding(runsc, tpus=tpus).level is level


@pytest.mark.parametrize(
    ("runtimes", "release", "level"),
    [
        pytest.param(PLAIN, TPU_BY_ITSELF, Level.OK, id="by itself"),
        pytest.param(PLAIN, BETWEEN, Level.FAIL, id="not yet, and nobody turns it on"),
        pytest.param(with_flags(tpuproxy="true"), BETWEEN, Level.OK, id="by a flag"),
        pytest.param(with_flags(tpuproxy="false"), BETWEEN, Level.FAIL, id="the flag is off"),
        pytest.param(passing("dev.gvisor.*"), BETWEEN, Level.WARN, id="by each pod"),
        pytest.param(passing("example.com/*"), BETWEEN, Level.FAIL, id="other annotations"),
        pytest.param(PLAIN, None, Level.WARN, id="of no known release"),
        pytest.param(with_flags(tpuproxy="true"), None, Level.OK, id="by a flag, whatever it is"),
    ],
)
def test_tpuproxy_must_be_on_where_there_are_tpus(
    runtimes: Runtimes, release: Release | None, level: Level
) -> None:
    found = levels(*tpu_findings(runtimes, release, vfio_devices=False))
    assert found["tpuproxy"] is level


@pytest.mark.parametrize(("there", "level"), [(True, Level.FAIL), (False, Level.OK)])
def test_a_folder_of_vfio_devices_stops_sandboxes_with_tpus(there: bool, level: Level) -> None:
    found = levels(*tpu_findings(PLAIN, TPU_BY_ITSELF, vfio_devices=there))
    assert found["vfio-devices"] is level


@pytest.mark.parametrize(
    ("count", "runtimes", "level"),
    [
        ("1000000", PLAIN, Level.OK),
        ("999999", PLAIN, Level.WARN),
        ("65530", with_flags(host_settings="enforce"), Level.OK),
        ("65530", with_flags(host_settings="check"), Level.WARN),
        ("", PLAIN, Level.WARN),
        ("-1", PLAIN, Level.WARN),
    ],
)
def test_a_sandbox_needs_many_mappings(count: str, runtimes: Runtimes, level: Level) -> None:
    assert mappings_finding(count, runtimes).level is level


@pytest.mark.parametrize(
    ("table", "meant"),
    [
        (RuntimeTable(name="runsc", path="/c"), True),
        (RuntimeTable(name="gVisor", path="/c"), True),
        (RuntimeTable(name="x", path="/c", runtime_type="io.containerd.runsc.v1"), True),
        (RuntimeTable(name="x", path="/c", binary="/usr/local/bin/runsc"), True),
        (RuntimeTable(name="runc", path="/c", runtime_type="io.containerd.runc.v2"), False),
        (RuntimeTable(name="nvidia", path="/c", binary="/opt/runsc/nvidia-x"), False),
    ],
)
def test_a_table_is_meant_for_gvisor_by_its_name_its_type_or_its_program(
    table: RuntimeTable, meant: bool
) -> None:
    assert is_gvisor(table) == meant


@pytest.mark.parametrize(
    ("runtime_type", "level"),
    [
        ("io.containerd.runsc.v1", Level.OK),
        ("/opt/gvisor/containerd-shim-runsc-v1", Level.OK),
        ("io.containerd.runc.v2", Level.FAIL),
        ("", Level.FAIL),
    ],
)
def test_the_table_must_start_gvisors_own_shim(runtime_type: str, level: Level) -> None:
    table = replace(TABLE, runtime_type=runtime_type)
    (found,) = table_findings((SandboxRuntime(table=table),), "/usr/bin/runsc", "/c.toml")
    assert found.level is level


def test_a_runsc_that_no_table_starts_is_named() -> None:
    (found,) = table_findings((), "/usr/bin/runsc", "/c.toml")
    assert found.level is Level.WARN
    assert found.reason.startswith("/usr/bin/runsc is installed, and no runtime in /c.toml is of")
    assert "no runtime for its handler" in found.reason


@pytest.mark.parametrize(
    ("config", "table", "level"),
    [
        pytest.param(CONFIG, TABLE, Level.OK, id="as it should be"),
        pytest.param(ShimConfig(), TABLE, Level.OK, id="none"),
        pytest.param(replace(CONFIG, problem="it is not TOML"), TABLE, Level.FAIL, id="no TOML"),
        pytest.param(replace(CONFIG, odd=("nvproxy",)), TABLE, Level.FAIL, id="not a text"),
        pytest.param(CONFIG, replace(TABLE, type_url=""), Level.FAIL, id="no TypeUrl"),
        pytest.param(
            CONFIG, replace(TABLE, type_url="", config_path=""), Level.OK, id="the shim's own place"
        ),
    ],
)
def test_the_shim_must_be_able_to_read_its_configuration(
    config: ShimConfig, table: RuntimeTable, level: Level
) -> None:
    found = shim_config_finding(SandboxRuntime(table=table, config=config))
    assert (found.check, found.level) == ("shim-config", level)


def test_programs_that_are_not_there_are_named_with_where_they_are_looked_for() -> None:
    config = replace(CONFIG, binary="/usr/bin/nvidia-container-runtime", binary_missing=True)
    runtimes = (SandboxRuntime(table=TABLE, config=config),)
    found = list(program_findings(runtimes, "", "", ("/usr/bin",)))
    assert [each.check for each in found] == ["shim", "runsc", "runsc"]
    assert {each.level for each in found} == {Level.FAIL}
    assert "/usr/bin" in found[0].reason
    assert "binary_name /usr/bin/nvidia-container-runtime" in found[1].reason
    there = program_findings(PLAIN, "/usr/bin/containerd-shim-runsc-v1", "/usr/bin/runsc", ())
    assert all(each.level is Level.OK for each in there)


DRIVER = "580.126.09"
LISTED = ("535.183.06", DRIVER)


@pytest.mark.parametrize(
    ("runtimes", "driver", "drivers", "level"),
    [
        pytest.param(PLAIN, "580.126.09", LISTED, Level.OK, id="listed"),
        pytest.param(PLAIN, "580.126.20", LISTED, Level.FAIL, id="near is not enough"),
        pytest.param(PLAIN, "580.126.09", (), Level.WARN, id="no list"),
        pytest.param(
            with_flags(nvproxy_allow_unsupported_driver="true"),
            "580.126.20",
            LISTED,
            Level.WARN,
            id="others are tried",
        ),
        pytest.param(
            with_flags(nvproxy_driver_version="535.183.06"),
            "580.126.09",
            LISTED,
            Level.FAIL,
            id="told another one",
        ),
        pytest.param(
            with_flags(nvproxy_driver_version="580.126.09"),
            "580.126.09",
            LISTED,
            Level.OK,
            id="told the one that it is",
        ),
    ],
)
def test_runsc_must_know_the_very_driver(
    runtimes: Runtimes, driver: str, drivers: tuple[str, ...], level: Level
) -> None:
    runsc = Runsc(path="/usr/bin/runsc", drivers=drivers)
    assert levels(*gpu_findings(runtimes, runsc, driver, convert({})))["nvproxy-driver"] is level


@pytest.mark.parametrize(
    ("binary", "level"),
    [
        ("", Level.WARN),
        ("/usr/bin/runsc", Level.WARN),
        ("/usr/bin/nvidia-container-runtime", Level.OK),
    ],
)
def test_something_must_bring_the_drivers_libraries(binary: str, level: Level) -> None:
    runtimes = (SandboxRuntime(table=TABLE, config=replace(CONFIG, binary=binary)),)
    assert levels(*gpu_findings(runtimes, Runsc(), DRIVER, convert({})))["libraries"] is level
    off = convert({"gpu": {"enabled": False}})
    assert "libraries" not in levels(*gpu_findings(runtimes, Runsc(), DRIVER, off))


@pytest.mark.parametrize("strategy", ["cdi-annotations", "cdi-cri"])
def test_cdi_brings_the_drivers_libraries_too(strategy: str) -> None:
    settings = convert({"gpu": {"deviceListStrategy": [strategy]}})
    found = levels(*gpu_findings(PLAIN, Runsc(), DRIVER, settings))
    assert found["libraries"] is Level.OK
