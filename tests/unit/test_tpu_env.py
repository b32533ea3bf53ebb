"""What libtpu in a container is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.model.tpu.env import TpuHostFacts, environment, resolve
from holdfast.model.tpu.generations import GENERATIONS

_NO_WRAP = "false,false,false"
_WRAP = "true,true,true"


_HOSTS = [
    ("v2", "2x2", 4, "v2-8", "1,1,1", "2,2,1", _NO_WRAP),
    ("v4i", "2x2x1", 4, "v4lite-4", "1,1,1", "2,2,1", _NO_WRAP),
    ("v5e", "1x1", 1, "v5litepod-1", "1,1,1", "1,1,1", _NO_WRAP),
    ("v5e", "2x2", 4, "v5litepod-4", "1,1,1", "2,2,1", _NO_WRAP),
    ("v5e", "2x4", 8, "v5litepod-8", "1,1,1", "2,4,1", _NO_WRAP),
    ("v5e", "2x4", 4, "v5litepod-8", "1,2,1", "2,2,1", _NO_WRAP),
    ("v5e", "4x4", 4, "v5litepod-16", "2,2,1", "2,2,1", _NO_WRAP),
    ("v5e", "16x16", 4, "v5litepod-256", "8,8,1", "2,2,1", "true,true,false"),
    ("v5e", "8x16", 8, "v5litepod-128", "4,4,1", "2,4,1", "false,true,false"),
    ("v6e", "1x1", 1, "v6e-1", "1,1,1", "1,1,1", _NO_WRAP),
    ("v6e", "2x2", 4, "v6e-4", "1,1,1", "2,2,1", _NO_WRAP),
    ("v6e", "2x4", 8, "v6e-8", "1,1,1", "2,4,1", _NO_WRAP),
    ("v3", "2x2", 4, "v3-8", "1,1,1", "2,2,1", _NO_WRAP),
    ("v4", "2x2x1", 4, "v4-8", "1,1,1", "2,2,1", _NO_WRAP),
    ("v4", "2x2x2", 4, "v4-16", "1,1,2", "2,2,1", _NO_WRAP),
    ("v4", "4x4x4", 4, "v4-128", "2,2,4", "2,2,1", _WRAP),
    ("v5p", "2x2x1", 4, "v5p-8", "1,1,1", "2,2,1", _NO_WRAP),
    ("tpu7x", "2x2x1", 4, "tpu7x-8", "1,1,1", "2,2,1", _NO_WRAP),
]


def test_every_generation_has_its_row() -> None:
    assert {name for name, *_ in _HOSTS} == GENERATIONS.keys()


@pytest.mark.parametrize(("name", "topology", "chips", "kind", "hosts", "per_host", "wrap"), _HOSTS)
def test_a_whole_host_is_told_its_place_in_the_slice(  # noqa: PLR0917 - the columns of the table
    name: str, topology: str, chips: int, kind: str, hosts: str, per_host: str, wrap: str
) -> None:
    env = environment(
        GENERATIONS[name], granted=chips, on_host=chips, facts=TpuHostFacts(topology=topology)
    )
    assert env["TPU_SKIP_MDS_QUERY"] == "true"
    assert env["TPU_TOPOLOGY"] == topology
    assert env["TPU_ACCELERATOR_TYPE"] == kind
    assert env["TPU_HOST_BOUNDS"] == env["HOST_BOUNDS"] == hosts
    assert env["TPU_CHIPS_PER_HOST_BOUNDS"] == env["CHIPS_PER_HOST_BOUNDS"] == per_host
    assert env["TPU_TOPOLOGY_WRAP"] == env["WRAP"] == wrap
    assert env["TPU_TOPOLOGY_ALT"] == env["ALT"] == "false"
    for absent in (
        "TPU_VISIBLE_CHIPS",
        "TPU_PROCESS_BOUNDS",
        "TPU_CHIPS_PER_PROCESS_BOUNDS",
        "VBAR_CONTROL_SERVICE_URL",
    ):
        assert absent not in env


@pytest.mark.parametrize(
    ("name", "topology", "chips", "worker"),
    [
        ("v5e", "2x4", 8, ("0", "localhost")),
        ("v5e", "2x4", 4, (None, None)),
        ("tpu7x", "2x2x1", 4, (None, None)),
    ],
)
def test_only_a_lone_host_before_tpu7x_is_told_that_it_is_worker_zero(
    name: str, topology: str, chips: int, worker: tuple[str | None, str | None]
) -> None:
    env = environment(
        GENERATIONS[name], granted=chips, on_host=chips, facts=TpuHostFacts(topology=topology)
    )
    assert (env.get("TPU_WORKER_ID"), env.get("TPU_WORKER_HOSTNAMES")) == worker


def test_a_configured_worker_is_told_its_id_and_its_peers() -> None:
    facts = TpuHostFacts(topology="2x4", worker_id="1", worker_hostnames=("a", "b"))
    env = environment(GENERATIONS["v5e"], granted=4, on_host=4, facts=facts)
    assert (env["TPU_WORKER_ID"], env["TPU_WORKER_HOSTNAMES"]) == ("1", "a,b")


@pytest.mark.parametrize(
    ("name", "chips", "ports"),
    [
        ("v5e", 1, "8431"),
        ("v5e", 4, "8431,8432,8433,8434"),
        ("tpu7x", 1, "8431,8432"),
        ("tpu7x", 4, "8431,8432,8433,8434,8435,8436,8437,8438"),
    ],
)
def test_each_chip_has_its_metrics_ports(name: str, chips: int, ports: str) -> None:
    env = environment(GENERATIONS[name], granted=chips, on_host=8, facts=TpuHostFacts())
    assert env["TPU_RUNTIME_METRICS_PORTS"] == ports


@pytest.mark.parametrize(
    ("name", "topology", "known", "expected"),
    [
        ("v4", "4x4x4", None, "true"),
        ("v5p", "4x4x8", False, "false"),
        ("tpu7x", "4x4x4", True, "true"),
        ("v4", "2x2x4", True, None),
        ("v6e", "16x16", True, None),
    ],
)
def test_large_slices_of_three_dimensions_have_ici_resiliency(
    name: str, topology: str, known: bool | None, expected: str | None
) -> None:
    env = environment(
        GENERATIONS[name],
        granted=4,
        on_host=4,
        facts=TpuHostFacts(topology=topology, ici_resiliency=known),
    )
    assert env.get("ENABLE_ICI_RESILIENCY") == expected


@pytest.mark.parametrize(
    ("granted", "bounds", "visible"),
    [(1, "1,1,1", "0"), (2, "1,2,1", "0,1"), (4, "2,2,1", "0,1,2,3"), (3, None, "0,1,2")],
)
def test_a_part_of_a_host_is_a_process_of_its_own_that_counts_chips_from_zero(
    granted: int, bounds: str | None, visible: str
) -> None:
    facts = TpuHostFacts(
        topology="2x4", accelerator_type="v5litepod-8", worker_id="3", worker_hostnames=("a", "b")
    )
    env = environment(GENERATIONS["v5e"], granted=granted, on_host=8, facts=facts)
    assert env.get("TPU_CHIPS_PER_PROCESS_BOUNDS") == env.get("TPU_CHIPS_PER_HOST_BOUNDS") == bounds
    assert (
        env.get("TPU_PROCESS_BOUNDS")
        == env.get("TPU_HOST_BOUNDS")
        == (None if bounds is None else "1,1,1")
    )
    assert env["TPU_VISIBLE_CHIPS"] == visible
    assert (env["TPU_WORKER_ID"], env["TPU_WORKER_HOSTNAMES"]) == ("0", "localhost")
    assert env["TPU_SKIP_MDS_QUERY"] == "true"


@pytest.mark.parametrize(
    ("name", "granted", "topology", "kind"),
    [
        ("v5e", 1, "1x1", "v5litepod-1"),
        ("v6e", 4, "2x2", "v6e-4"),
        ("v5e", 2, None, None),
        ("v4", 1, None, None),
        ("tpu7x", 2, None, None),
    ],
)
def test_a_part_of_a_host_claims_a_type_only_where_machines_of_that_size_exist(
    name: str, granted: int, topology: str | None, kind: str | None
) -> None:
    env = environment(GENERATIONS[name], granted=granted, on_host=8, facts=TpuHostFacts())
    assert (env.get("TPU_TOPOLOGY"), env.get("TPU_ACCELERATOR_TYPE")) == (topology, kind)


def test_eight_chips_of_a_larger_host_are_not_counted_for_libtpu() -> None:
    """Eight are all that libtpu opens; it takes no list of them."""
    env = environment(GENERATIONS["v5e"], granted=8, on_host=16, facts=TpuHostFacts())
    assert "TPU_VISIBLE_CHIPS" not in env
    assert env["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,4,1"


@pytest.mark.parametrize("chips", [1, 2])
def test_the_bounds_of_a_part_have_three_dimensions_on_tpu7x_too(chips: int) -> None:
    """torch_xla reads three and adds the cores of a chip itself; four it refuses."""
    env = environment(GENERATIONS["tpu7x"], granted=chips, on_host=4, facts=TpuHostFacts())
    for name in ("TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS"):
        assert len(env[name].split(",")) == 3
    assert (env["TPU_WORKER_ID"], env["TPU_WORKER_HOSTNAMES"]) == ("0", "localhost")


def test_a_lone_device_gets_no_torus() -> None:
    facts = TpuHostFacts(topology="2x2", accelerator_type="v5lite-4")
    env = environment(GENERATIONS["v5e"], granted=4, on_host=4, facts=facts)
    assert env["TPU_ACCELERATOR_TYPE"] == "v5lite-4"
    assert not {"HOST_BOUNDS", "WRAP", "ALT", "TPU_HOST_BOUNDS"} & set(env)


def test_vbar_is_named_only_where_it_is_configured() -> None:
    url = "unix:///var/run/tpu-plugin/vbar.sock"
    for granted in (1, 8):
        env = environment(
            GENERATIONS["v6e"], granted=granted, on_host=8, facts=TpuHostFacts(vbar_url=url)
        )
        assert env["VBAR_CONTROL_SERVICE_URL"] == url


def test_only_tpu7x_is_told_the_numa_nodes_of_its_chips() -> None:
    for name, expected in (("tpu7x", "0,1"), ("v5e", None)):
        env = environment(
            GENERATIONS[name], granted=4, on_host=4, facts=TpuHostFacts(), numa_nodes=(1, 0, 1, 0)
        )
        assert env.get("WORKLOAD_NIC_PREFERRED_NUMA") == expected


@given(
    name=st.sampled_from(sorted(GENERATIONS)),
    granted=st.integers(0, 20),
    on_host=st.integers(0, 20),
    topology=st.text(max_size=8) | st.sampled_from(["", "2x4", "2x2x1", "4x4x4", "0x0", "3x5"]),
)
def test_any_facts_give_an_environment_of_plain_text(
    name: str, granted: int, on_host: int, topology: str
) -> None:
    generation = GENERATIONS[name]
    facts, _ = resolve(
        generation,
        on_host=on_host,
        configured=TpuHostFacts(topology=topology),
        from_file=TpuHostFacts(),
    )
    for known in (facts, TpuHostFacts(topology=topology)):
        env = environment(generation, granted=granted, on_host=on_host, facts=known)
        assert all(
            key.isidentifier() and value.isprintable()
            for key, value in env.items()
            if key != "TPU_TOPOLOGY"
        )


def test_configuration_wins_over_the_file_and_the_file_over_the_hardware() -> None:
    v5e = GENERATIONS["v5e"]
    unknown = TpuHostFacts()
    configured = TpuHostFacts(topology="4x4", worker_id="2")
    from_file = TpuHostFacts(topology="2x4", worker_id="1", worker_hostnames=("a", "b"))
    facts, problems = resolve(v5e, on_host=4, configured=unknown, from_file=unknown)
    assert (facts.topology, problems) == ("2x2", ())
    facts, problems = resolve(v5e, on_host=4, configured=unknown, from_file=from_file)
    assert (facts.topology, facts.worker_id, facts.worker_hostnames, problems) == (
        "2x4",
        "1",
        ("a", "b"),
        (),
    )
    facts, problems = resolve(v5e, on_host=4, configured=configured, from_file=from_file)
    assert (facts.topology, facts.worker_id, problems) == ("4x4", "2", ())


def test_what_the_file_says_of_another_slice_is_not_mixed_into_the_configured_one() -> None:
    from_file = TpuHostFacts(topology="2x4", worker_id="1", accelerator_type="v5litepod-8")
    facts, _ = resolve(
        GENERATIONS["v5e"], on_host=4, configured=TpuHostFacts(topology="2x2"), from_file=from_file
    )
    assert (facts.topology, facts.worker_id, facts.accelerator_type) == ("2x2", "", "")


@pytest.mark.parametrize("written", [("2X4", "2x4"), ("2x4", " 02X4")])
def test_one_topology_in_two_spellings_is_one_slice(written: tuple[str, str]) -> None:
    configured, of_file = (TpuHostFacts(topology=each) for each in written)
    from_file = replace(of_file, worker_id="1", ici_resiliency=False)
    facts, problems = resolve(
        GENERATIONS["v5e"], on_host=4, configured=configured, from_file=from_file
    )
    assert facts == replace(from_file, topology="2x4")
    assert problems == ()


@pytest.mark.parametrize(
    ("topology", "on_host", "reason"),
    [
        ("banana", 4, "does not read like"),
        ("2x2", 8, "do not divide it"),
        ("2x4", 3, "this host has 3 chips"),
    ],
)
def test_a_topology_that_cannot_be_is_named_and_set_aside(
    topology: str, on_host: int, reason: str
) -> None:
    facts, problems = resolve(
        GENERATIONS["v5e"],
        on_host=on_host,
        configured=TpuHostFacts(topology=topology, worker_id="3", worker_hostnames=("a", "b")),
        from_file=TpuHostFacts(),
    )
    assert facts.topology != topology
    assert (facts.worker_id, facts.worker_hostnames) == ("", ())
    (problem,) = problems
    assert "nor its hosts and type" in problem
    assert topology in problem
    assert "the configuration" in problem
    assert reason in problem
