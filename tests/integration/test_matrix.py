"""What the settings accept works: a fixed part of `make matrix`, with the real daemon."""

import random
from itertools import chain, islice
from pathlib import Path

import pytest

from holdfast.model.tpu.generations import GENERATIONS
from matrix import changes, chart, drawn, oracle, run, space, ways
from matrix.__main__ import afterwards, tried
from simulated import nvml


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of NVML."""
    return nvml.build(tmp_path_factory.mktemp("nvml"))


def _of(**changes: object) -> space.Choice:
    return space.usable({**space.plain(), **{k.replace("__", "."): v for k, v in changes.items()}})


_CHOICES = {
    "chips and whole GPUs": _of(
        node__tpus=("v5e", 4), node__gpus=((), ()), gpu__deviceIdStrategy="index"
    ),
    "chips by name, and with functions in a pool": _of(
        node__tpus=("tpu7x", 4),
        node__functions="whole",
        deviceListStrategy="cdi",
        pools=[
            {"resourceName": space.VF, "devices": ["*:*"]},
            {"resourceName": space.MACHINE, "addresses": ["0000:[04]*"]},
        ],
    ),
    "slices of each profile": _of(
        node__tpus=("v4", 4), node__gpus=(space.MIXED, space.WHOLE), gpu__migStrategy="mixed"
    ),
    "GPUs that are shared, from NVIDIA's file": _of(
        node__by="nvidia",
        node__gpus=((), ()),
        sharing__timeSlicing__resources=[{"name": space.GPU, "replicas": 3}],
        sharing__timeSlicing__renameByDefault=True,
        gpu__deviceListStrategy=["volume-mounts"],
    ),
    "slices that are shared, and GPUs beside them": _of(
        node__gpus=(space.MIXED, space.WHOLE),
        gpu__migStrategy="mixed",
        labels__enabled=True,
        sharing__timeSlicing__resources=[
            {"name": "nvidia.com/mig-1g.10gb", "replicas": 2},
            {"name": space.GPU, "replicas": 3},
        ],
    ),
    "chips and virtual functions by claims": _of(
        node__tpus=("v5e", 4),
        node__functions="virtual",
        tpu__api="dra",
        pools=[{"resourceName": space.VF, "devices": ["1234:*"], "api": "dra"}],
    ),
    "a GPU that claims share": _of(
        node__gpus=((),),
        gpu__api="dra",
        sharing__timeSlicing__resources=[{"name": space.GPU, "replicas": 2}],
    ),
    "slices by CDI name, from a document": _of(
        node__by="document",
        node__gpus=(space.MIXED,),
        gpu__migStrategy="mixed",
        gpu__deviceListStrategy=["cdi-cri"],
    ),
    "a sandbox that outlives its pod": _of(
        node__tpus=("v5e", 1),
        node__sandbox="leaks",
        events__enabled=True,
        gate__wait="5s",
    ),
}


@pytest.mark.parametrize("choice", _CHOICES.values(), ids=_CHOICES)
async def test_what_is_accepted_serves(choice: space.Choice, library: Path) -> None:
    assert await run.serves(choice, library, random.Random(1))


async def test_what_pods_have_stays_theirs_when_its_hardware_comes_by_claims(
    library: Path,
) -> None:
    node = {"node__tpus": ("v5e", 4), "node__gpus": ((),)}
    after = _of(**node, tpu__api="dra", gpu__api="dra")
    assert await changes.changes(_of(**node), after, library, random.Random(3))


async def test_a_claims_container_starts_on_its_own_gpu_after_indexes_were_given_anew(
    library: Path,
) -> None:
    before = _of(node__gpus=((), ()), gpu__api="dra", gpu__deviceIdStrategy="index")
    after = {**before, "node.numbers": "turned"}
    assert await changes.changes(before, after, library, random.Random(3))


def test_the_chart_takes_what_the_daemon_takes_and_refuses_what_it_refuses() -> None:
    rule = {"match": {"uuid": "*"}, "resource": "example.com/gpu"}
    choices = (
        _of(tpu__api="dra", devices=[{**rule, "api": "dra"}], events__enabled=True),
        _of(tpu__api="dra", devices=[rule]),
        _of(node__by="nvidia", gpu__migStrategy="mixed", gpu__deviceListStrategy=["cdi-cri"]),
        _of(reclaim__reset="afterForcedRelease"),
        _of(tpu__enabled=False, reclaim__reset="afterForcedRelease", reclaim__rebind=True),
        _of(reclaim__rebind=True),
    )
    verdicts = [drawn.refusal(space.tree(each)) for each in choices]
    assert [each is None for each in verdicts] == [True, False, True, True, True, True]
    for each, verdict in zip(choices, verdicts, strict=True):
        chart.judge(each, verdict)


def test_settings_are_the_same_by_whichever_way_they_are_given() -> None:
    for seed in range(60):
        ways.judge(random.Random(seed))


@pytest.mark.parametrize("wrong", space.WRONG[:3], ids=lambda each: each.path)
async def test_what_cannot_work_is_refused_with_its_key(
    wrong: space.Refused, library: Path
) -> None:
    await run.refuses(space.plain(), wrong, library)


def test_the_oracle_knows_the_chips_of_every_generation() -> None:
    assert oracle.CHIPS.keys() == GENERATIONS.keys()


def test_what_is_drawn_is_taken_and_reaches_the_longest_that_is() -> None:
    chance = random.Random(1)
    paths = [path for path, values in space.axes().items() if space.DRAWN in values]
    taken = {path: [drawn.value(path, chance) for _ in range(20)] for path in paths}

    assert [path for path in taken if len({str(each) for each in taken[path]}) < 3] == []
    texts = {path: [each for each in taken[path] if isinstance(each, str)] for path in paths}
    longest = {path: max(map(len, each)) for path, each in texts.items() if each}
    assert longest["tpu.resourceName"] == 244 + 1 + 63
    assert longest["kubelet.socketPrefix"] == 43
    assert longest["dra.driverName"] == 63
    shared = chain.from_iterable(taken["sharing.timeSlicing.resources"])
    assert {each["replicas"] for each in shared} >= {2, 256}


def test_a_seed_gives_the_same_combinations_again() -> None:
    for place in (0, 2):
        (first,), (again,) = tried(7, place), tried(7, place)
        assert first == again


def test_a_change_leads_to_another_choice() -> None:
    drawn = [(place, choice) for place, kind, choice in islice(tried(7), 16) if kind == "change"]
    assert drawn
    for place, choice in drawn:
        assert changes.another(choice, afterwards(f"7.{place}")) != choice


def test_the_first_pairs_are_all_there_within_some_combinations() -> None:
    made, pairs = space.by_pairs(random.Random(1)), set[tuple[str, str]]()
    for _ in range(120):
        choice = next(made)
        pairs.add((str(choice["node.tpus"]), str(choice["node.root"])))
    space_ = space.axes()
    assert len(pairs) == len(space_["node.tpus"]) * len(space_["node.root"])


def test_the_oracle_tells_replicas_by_the_name_that_nvidias_file_means() -> None:
    shared = [{"name": space.GPU, "replicas": 2, "rename": space.SHARED}]
    ours = _of(node__gpus=((),), sharing__timeSlicing__resources=shared)
    assert set(oracle.foretold(ours)) == {space.SHARED}
    assert set(oracle.foretold({**ours, "node.by": "nvidia"})) == {space.GPU}
