"""What node labels tell of TPU chips, against files on record."""

from pathlib import Path

import pytest

from fakes.labels import refused, told
from holdfast.model.node.labels import feature_file
from holdfast.model.tpu.env import TpuHostFacts, resolve, tpu_labels
from holdfast.model.tpu.generations import GENERATIONS

NOBODY = TpuHostFacts()
NODES = {
    "v5e-8": ("v5e", 8, NOBODY, True),
    "v6e-4-of-16": (
        "v6e",
        4,
        TpuHostFacts(topology="4x4", accelerator_type="v6e-16", worker_id="2"),
        True,
    ),
    "v5p-own-keys": ("v5p", 4, NOBODY, False),
}


def labels(name: str) -> str:
    generation, chips, known, gke = NODES[name]
    which = GENERATIONS[generation]
    facts, _ = resolve(which, on_host=chips, configured=NOBODY, from_file=known)
    return feature_file(tpu_labels(which, chips=chips, facts=facts, gke=gke), until=1_800_000_000.0)


@pytest.mark.parametrize("name", NODES)
def test_a_tpu_host_has_the_labels_that_are_on_record(name: str, repository: Path) -> None:
    assert labels(name) == (repository / f"tests/golden/labels/{name}.txt").read_text()


@pytest.mark.parametrize("name", GENERATIONS)
@pytest.mark.parametrize("chips", [1, 3, 4, 8])
def test_kubernetes_and_node_feature_discovery_take_every_label_of_tpus(
    name: str, chips: int
) -> None:
    which = GENERATIONS[name]
    facts, _ = resolve(which, on_host=chips, configured=NOBODY, from_file=NOBODY)
    found = told(feature_file(tpu_labels(which, chips=chips, facts=facts, gke=True), until=0.0))
    assert [pair for pair in found.items() if refused(*pair)] == []


def test_the_type_that_is_told_is_better_than_the_one_that_is_worked_out() -> None:
    facts = TpuHostFacts(topology="2x4", accelerator_type="v5lite-8")
    found = tpu_labels(GENERATIONS["v5e"], chips=8, facts=facts, gke=False)
    assert found["holdfast.dev/tpu.accelerator-type"] == "v5lite-8"


def test_a_host_whose_chips_make_no_box_has_no_topology() -> None:
    found = tpu_labels(GENERATIONS["v5e"], chips=3, facts=NOBODY, gke=True)
    assert [key for key in found if "topology" in key] == []


def test_a_generation_that_gke_does_not_have_has_none_of_its_keys() -> None:
    found = tpu_labels(GENERATIONS["v2"], chips=4, facts=NOBODY, gke=True)
    assert [key for key in found if "google" in key] == []
