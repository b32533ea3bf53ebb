"""What the doctor says of gVisor, for what it may find: one table of cases for each rule."""

import pytest
from msgspec.structs import replace

from holdfast.doctor.containerd.facts import RuntimeTable
from holdfast.doctor.finding import Finding, Level
from holdfast.doctor.gvisor import (
    LEAK_FIXED,
    TPU_BY_ITSELF,
    GvisorFacts,
    Release,
    SandboxRuntime,
    ShimConfig,
    gpu_findings,
    is_gvisor,
    mappings_finding,
    program_findings,
    release_findings,
    release_of,
    shim_config_findings,
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
FACTS = GvisorFacts(
    runtimes=(SandboxRuntime(table=TABLE, config=CONFIG),),
    containerd_config="/c.toml",
    folders=("/usr/bin",),
    shim="/usr/bin/containerd-shim-runsc-v1",
    runsc="/usr/bin/runsc",
    release=TPU_BY_ITSELF,
    max_map_count=1_000_000,
    tpus=4,
)
OLD, BETWEEN = Release(date=20250319), Release(date=20260601, count=1)


def with_flags(**flags: str) -> GvisorFacts:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    config = replace(CONFIG, flags=named)
    return replace(FACTS, runtimes=(SandboxRuntime(table=TABLE, config=config),))


def passing(*annotations: str) -> GvisorFacts:
    table = replace(TABLE, annotations=annotations)
    return replace(FACTS, runtimes=(SandboxRuntime(table=table, config=CONFIG),))


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
    facts = replace(FACTS, release=release, release_problem="it is odd", tpus=tpus)
    (found,) = release_findings(facts)
    assert found.level is level


@pytest.mark.parametrize(
    ("facts", "release", "level"),
    [
        pytest.param(FACTS, TPU_BY_ITSELF, Level.OK, id="by itself"),
        pytest.param(FACTS, BETWEEN, Level.FAIL, id="not yet, and nobody turns it on"),
        pytest.param(with_flags(tpuproxy="true"), BETWEEN, Level.OK, id="by a flag"),
        pytest.param(with_flags(tpuproxy="false"), BETWEEN, Level.FAIL, id="the flag is off"),
        pytest.param(passing("dev.gvisor.*"), BETWEEN, Level.WARN, id="by each pod"),
        pytest.param(passing("example.com/*"), BETWEEN, Level.FAIL, id="other annotations"),
        pytest.param(FACTS, None, Level.WARN, id="of no known release"),
        pytest.param(with_flags(tpuproxy="true"), None, Level.OK, id="by a flag, whatever it is"),
    ],
)
def test_tpuproxy_must_be_on_where_there_are_tpus(
    facts: GvisorFacts, release: Release | None, level: Level
) -> None:
    assert levels(*tpu_findings(replace(facts, release=release)))["tpuproxy"] is level
    assert not list(tpu_findings(replace(facts, release=release, tpus=0)))


@pytest.mark.parametrize(("there", "level"), [(True, Level.FAIL), (False, Level.OK)])
def test_a_folder_of_vfio_devices_stops_sandboxes_with_tpus(there: bool, level: Level) -> None:
    found = levels(*tpu_findings(replace(FACTS, vfio_devices=there)))
    assert found["vfio-devices"] is level


@pytest.mark.parametrize(
    ("count", "facts", "level"),
    [
        (1_000_000, FACTS, Level.OK),
        (999_999, FACTS, Level.WARN),
        (65_530, with_flags(host_settings="enforce"), Level.OK),
        (65_530, with_flags(host_settings="check"), Level.WARN),
        (None, FACTS, Level.WARN),
    ],
)
def test_a_sandbox_needs_many_mappings(count: int | None, facts: GvisorFacts, level: Level) -> None:
    assert mappings_finding(replace(facts, max_map_count=count)).level is level


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
    (found,) = table_findings(replace(FACTS, runtimes=(SandboxRuntime(table=table),)))
    assert found.level is level


def test_a_runsc_that_no_table_starts_is_named() -> None:
    (found,) = table_findings(replace(FACTS, runtimes=()))
    assert found.level is Level.WARN
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
    found = shim_config_findings(SandboxRuntime(table=table, config=config))
    assert [(each.check, each.level) for each in found] == [("shim-config", level)]


def test_programs_that_are_not_there_are_named_with_where_they_are_looked_for() -> None:
    config = replace(CONFIG, binary="/usr/bin/nvidia-container-runtime", binary_missing=True)
    runtimes = (SandboxRuntime(table=TABLE, config=config),)
    found = list(program_findings(replace(FACTS, shim="", runsc="", runtimes=runtimes)))
    assert [each.check for each in found] == ["shim", "runsc", "runsc"]
    assert {each.level for each in found} == {Level.FAIL}
    assert "/usr/bin" in found[0].reason
    assert "binary_name /usr/bin/nvidia-container-runtime" in found[1].reason
    assert all(each.level is Level.OK for each in program_findings(FACTS))


LISTED = ("535.183.06", "580.126.09")


@pytest.mark.parametrize(
    ("facts", "driver", "drivers", "level"),
    [
        pytest.param(FACTS, "580.126.09", LISTED, Level.OK, id="listed"),
        pytest.param(FACTS, "580.126.20", LISTED, Level.FAIL, id="near is not enough"),
        pytest.param(FACTS, "580.126.09", (), Level.WARN, id="no list"),
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
    facts: GvisorFacts, driver: str, drivers: tuple[str, ...], level: Level
) -> None:
    facts = replace(facts, driver=driver, drivers=drivers)
    assert levels(*gpu_findings(facts, convert({})))["nvproxy-driver"] is level
    assert not list(gpu_findings(replace(facts, driver=""), convert({})))


@pytest.mark.parametrize(
    ("binary", "level"),
    [
        ("", Level.WARN),
        ("/usr/bin/runsc", Level.WARN),
        ("/usr/bin/nvidia-container-runtime", Level.OK),
    ],
)
def test_something_must_bring_the_drivers_libraries(binary: str, level: Level) -> None:
    config = replace(CONFIG, binary=binary)
    facts = replace(
        FACTS, runtimes=(SandboxRuntime(table=TABLE, config=config),), driver="580.126.09"
    )
    assert levels(*gpu_findings(facts, convert({})))["libraries"] is level
    off = convert({"gpu": {"enabled": False}})
    assert "libraries" not in levels(*gpu_findings(facts, off))


@pytest.mark.parametrize("strategy", ["cdi-annotations", "cdi-cri"])
def test_cdi_brings_the_drivers_libraries_too(strategy: str) -> None:
    settings = convert({"gpu": {"deviceListStrategy": [strategy]}})
    facts = replace(FACTS, driver="580.126.09")
    assert levels(*gpu_findings(facts, settings))["libraries"] is Level.OK
