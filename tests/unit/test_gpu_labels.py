"""What node labels tell of GPUs, against files on record.

tests/golden/labels was written from a description of what NVIDIA's GPU feature discovery v0.20
does, not recorded from one.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.labels import refused, told
from fakes.vgpu import config_space
from holdfast.model.cards import Sharing
from holdfast.model.ids import DeviceId, PciAddress, ResourceName
from holdfast.model.node.labels import feature_file
from holdfast.model.nvidia.devices import GpuFacts
from holdfast.model.nvidia.gpu import (
    DriverState,
    Gpu,
    GpuProblem,
    GpuReading,
    GpuTraits,
    MigEngines,
    MigSlice,
)
from holdfast.model.nvidia.labels import GpuLabelFacts, gpu_labels
from holdfast.model.nvidia.mig import MigStrategy, lay_out

NONE, SINGLE, MIXED = MigStrategy.NONE, MigStrategy.SINGLE, MigStrategy.MIXED
H100, GPU = "NVIDIA H100 80GB HBM3", ResourceName("nvidia.com/gpu")
CLIQUE = "0d8a4c3e-6f0b-4a57-9a52-31e6f4d7c9aa.32766"
VGPU = config_space(record=b"\0\x16550.54.16\0r550_40\0\0\0")
LOST = GpuProblem(asked="handle", error="NVML_ERROR_GPU_IS_LOST", lost=True)
UNTIL = 1_800_000_000.0


def piece(gpu: int, place: int, profile: str) -> MigSlice:
    count = int(profile.partition("g.")[0])
    return MigSlice(
        uuid=f"MIG-{gpu}-{place}",
        gi=place + 1,
        ci=0,
        profile=profile,
        slices=(count, count),
        memory=9856 * count << 20,
        engines=MigEngines(multiprocessors=16 * count, copy=count, decoder=count, jpeg=count),
        index=place,
    )


def card(index: int, *profiles: str, mig: bool = False, name: str = H100) -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        pci=PciAddress(f"0000:1{index}:00.0"),
        name=name,
        memory=81559 << 20,
        mig=mig or bool(profiles),
        slices=tuple(piece(index, place, each) for place, each in enumerate(profiles)),
    )


def node(strategy: MigStrategy, *gpus: Gpu, capability: str = "9.0") -> GpuLabelFacts:
    reading = GpuReading(state=DriverState.READY, gpus=gpus)
    traits = GpuTraits(capability=capability, cuda_driver="12.8", mig_capable=True)
    return GpuLabelFacts(
        gpus=gpus,
        facts=GpuFacts(
            state=DriverState.READY,
            layout=lay_out(reading, strategy),
            version="570.124.06",
            traits={gpu.uuid: traits for gpu in gpus},
        ),
        strategy=strategy,
        machine="NVIDIA DGX H100 (rev. 2)",
        classes={gpu.pci: "0x030200" for gpu in gpus if gpu.pci is not None},
        since=1_700_000_000,
    )


def labels(known: GpuLabelFacts) -> dict[str, str]:
    return told(feature_file(gpu_labels(known), until=UNTIL))


SEVENTHS = ("1g.10gb",) * 7
DIVIDED = tuple(card(index, "3g.40gb", "2g.20gb", "1g.10gb") for index in range(4))
NODES = {
    "eight-h100": node(NONE, *map(card, range(8))),
    "mig-mixed": node(MIXED, *DIVIDED, *(card(index) for index in range(4, 8))),
    "mig-single": node(SINGLE, *(card(index, *SEVENTHS) for index in range(8))),
    "multi-node": node(NONE, *(replace(card(index), clique=CLIQUE) for index in range(4))),
    "vgpu": replace(node(NONE, card(0, name="NVIDIA A16-4Q")), configs={"0000:10:00.0": VGPU}),
    "time-slicing": replace(node(NONE, card(0), card(1)), sharing={GPU: Sharing(replicas=10)}),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_with_gpus_has_the_labels_that_are_on_record(name: str, repository: Path) -> None:
    text = (repository / f"tests/golden/labels/{name}.txt").read_text()
    assert feature_file(gpu_labels(NODES[name]), until=UNTIL) == text


@pytest.mark.parametrize("name", NODES)
def test_kubernetes_and_node_feature_discovery_take_every_label_of_gpus(name: str) -> None:
    known = replace(NODES[name], machine="  X11 / Ω-42 " + "y" * 80)
    assert [pair for pair in labels(known).items() if refused(*pair)] == []


def test_a_driver_that_is_away_takes_the_labels_of_its_version_along_and_no_others() -> None:
    there = NODES["mig-mixed"]
    away = replace(there, facts=replace(there.facts, state=DriverState.NOT_READY))
    gone = labels(there).keys() - labels(away).keys()
    assert gone
    assert gone == {key for key in labels(there) if key.startswith("nvidia.com/cuda.")}


def test_a_gpu_that_is_lost_does_not_count_nor_do_its_slices() -> None:
    lost = replace(card(1, "1g.10gb"), problems=(LOST,))
    found = labels(node(MIXED, card(0, "1g.10gb", "1g.10gb"), lost))
    assert found["nvidia.com/gpu.count"] == "1"
    assert found["nvidia.com/mig-1g.10gb.count"] == "2"
    assert gpu_labels(node(NONE, lost)) == {}


def test_what_the_settings_leave_out_does_not_count() -> None:
    known = node(MIXED, card(0), card(1), card(2, "1g.10gb", "1g.10gb"), card(3, "1g.10gb"))
    left_out = frozenset(map(DeviceId, ("GPU-1", "MIG-2-0", "MIG-3-0")))
    found = labels(replace(known, left_out=left_out))
    assert found["nvidia.com/gpu.count"] == "2"
    assert found["nvidia.com/mig-1g.10gb.count"] == "1"
    only = replace(node(NONE, card(0), card(1)), left_out=frozenset({DeviceId("GPU-1")}))
    assert labels(only)["nvidia.com/gpu.count"] == "1"
    everything = frozenset(part.name.id for part in known.facts.layout.parts)
    assert gpu_labels(replace(known, left_out=everything)) == {}


@pytest.mark.parametrize(
    ("cliques", "told"),
    [
        ((CLIQUE, CLIQUE), CLIQUE),
        ((CLIQUE, ""), CLIQUE),
        (("", ""), None),
        ((CLIQUE, CLIQUE.replace("32766", "32767")), None),
    ],
)
def test_the_clique_is_told_where_the_gpus_of_the_node_are_in_one(
    cliques: tuple[str, ...], told: str | None
) -> None:
    gpus = [replace(card(index), clique=each) for index, each in enumerate(cliques)]
    assert labels(node(NONE, *gpus)).get("nvidia.com/gpu.clique") == told


def test_a_vgpu_is_told_without_its_configuration_space_and_a_gpu_is_none() -> None:
    known = node(NONE, card(0))
    virtual = {uuid: replace(each, virtual=True) for uuid, each in known.facts.traits.items()}
    guest = replace(known, facts=replace(known.facts, traits=virtual))
    found = {key: value for key, value in labels(guest).items() if "vgpu" in key}
    assert found == {"nvidia.com/vgpu.present": "true"}
    short = replace(guest, configs={"0000:10:00.0": VGPU[:64]})
    assert labels(short) == labels(guest)
    assert labels(known)["nvidia.com/vgpu.present"] == "false"


def test_a_driver_of_two_numbers_has_no_revision() -> None:
    known = NODES["eight-h100"]
    found = labels(replace(known, facts=replace(known.facts, version="470.57")))
    assert found["nvidia.com/cuda.driver-version.minor"] == "57"
    assert found["nvidia.com/cuda.driver-version.revision"] == ""
    assert found["nvidia.com/cuda.driver.rev"] == ""


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("7.0", "volta"),
        ("7.5", "turing"),
        ("8.0", "ampere"),
        ("8.9", "ada-lovelace"),
        ("10.0", "blackwell"),
        ("12.0", "blackwell"),
        ("13.0", "rubin"),
        ("99.0", "undefined"),
        ("", None),
    ],
)
def test_the_family_follows_from_the_compute_capability(
    capability: str, family: str | None
) -> None:
    assert labels(node(NONE, card(0), capability=capability)).get("nvidia.com/gpu.family") == family


@pytest.mark.parametrize(
    ("case", "strategy", "gpus", "told_of_it"),
    [
        ("whole", SINGLE, (card(0), card(1)), ("NVIDIA-H100-80GB-HBM3", "2", "1")),
        ("none: in MIG mode", NONE, (card(0, *SEVENTHS),), ("NVIDIA-H100-80GB-HBM3", "1", "0")),
        (
            "mixed: all in MIG mode",
            MIXED,
            (card(0, *SEVENTHS),),
            ("NVIDIA-H100-80GB-HBM3", "1", "0"),
        ),
        (
            "mixed: one has no slices yet",
            MIXED,
            (card(0), card(1, mig=True)),
            ("NVIDIA-H100-80GB-HBM3", "2", "1"),
        ),
        (
            "single: nothing is divided yet",
            SINGLE,
            (card(0, mig=True), card(1, mig=True)),
            ("NVIDIA-H100-80GB-HBM3-MIG-INVALID", "0", "0"),
        ),
        (
            "single: what most GPUs have is advertised",
            SINGLE,
            (card(0, *SEVENTHS), card(1), card(2)),
            ("NVIDIA-H100-80GB-HBM3", "2", "1"),
        ),
        (
            "single: or the other way round",
            SINGLE,
            (card(0, *SEVENTHS), card(1, *SEVENTHS), card(2)),
            ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "14", "1"),
        ),
        (
            "two models",
            NONE,
            (card(0, name="NVIDIA A100-SXM4-40GB"), card(1), card(2)),
            ("NVIDIA-H100-80GB-HBM3", "2", "1"),
        ),
        ("a name with odd characters", NONE, (card(0, name="GPU (A)  B+"),), ("GPU-A-B", "1", "1")),
    ],
)
def test_the_product_how_many_there_are_and_how_many_pods_share_each(
    case: str, strategy: MigStrategy, gpus: tuple[Gpu, ...], told_of_it: tuple[str, str, str]
) -> None:
    del case
    found = labels(node(strategy, *gpus))
    keys = ("product", "count", "replicas")
    assert tuple(found[f"nvidia.com/gpu.{key}"] for key in keys) == told_of_it
    assert found["nvidia.com/gpu.sharing-strategy"] == "none"


def test_slices_tell_by_how_many_they_are_shared_under_their_own_name() -> None:
    shared = {GPU: Sharing(replicas=4)}
    found = labels(replace(node(MIXED, card(0, "1g.10gb"), card(1)), sharing=shared))
    assert found["nvidia.com/gpu.replicas"] == "4"
    assert found["nvidia.com/mig-1g.10gb.replicas"] == "1"
    assert found["nvidia.com/mig-1g.10gb.sharing-strategy"] == "none"
    of_slices = {ResourceName("nvidia.com/mig-1g.10gb"): Sharing(replicas=3, renamed=True)}
    found = labels(replace(node(MIXED, card(0, "1g.10gb"), card(1)), sharing=of_slices))
    assert found["nvidia.com/gpu.replicas"] == "1"
    assert found["nvidia.com/mig-1g.10gb.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    assert found["nvidia.com/mig-1g.10gb.count"] == "1"
    assert found["nvidia.com/mig-1g.10gb.replicas"] == "3"
    assert found["nvidia.com/mig-1g.10gb.sharing-strategy"] == "time-slicing"
    found = labels(replace(node(SINGLE, card(0, "1g.10gb")), sharing=shared))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED"
    assert found["nvidia.com/gpu.count"] == "1"
    assert found["nvidia.com/gpu.replicas"] == "4"
    assert found["nvidia.com/gpu.sharing-strategy"] == "time-slicing"


def test_a_slice_tells_its_own_part_of_the_compute_slices() -> None:
    part = replace(piece(0, 0, "3g.40gb"), profile="1c.3g.40gb", slices=(3, 1), memory=None)
    found = labels(node(SINGLE, replace(card(0, mig=True), slices=(part,))))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1c.3g.40gb"
    keys = ("slices.gi", "slices.ci", "memory")
    assert [found[f"nvidia.com/gpu.{key}"] for key in keys] == ["3", "1", "0"]


def test_a_compute_slice_is_told_though_no_pod_can_ask_for_it() -> None:
    halves = [
        replace(piece(0, place, "3g.40gb"), profile="1c.3g.40gb", slices=(3, 1))
        for place in range(2)
    ]
    odd = replace(piece(0, 2, "3g.40gb"), profile="?", slices=(3, 1))
    divided = replace(card(0, mig=True), slices=(*halves, odd, piece(0, 3, "1g.10gb")))
    known = node(MIXED, divided, replace(divided, uuid="GPU-1", problems=(LOST,)))
    found = labels(known)
    assert "nvidia.com/mig-1c.3g.40gb" not in known.facts.layout.resources
    expected = {
        "product": "NVIDIA-H100-80GB-HBM3-MIG-1c.3g.40gb",
        "count": "2",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "29568",
        "slices.gi": "3",
        "slices.ci": "1",
    }
    for key, value in expected.items():
        assert found[f"nvidia.com/mig-1c.3g.40gb.{key}"] == value
    assert found["nvidia.com/mig-1g.10gb.count"] == "1"
    assert {key for key in found if not key.startswith("nvidia.com/")} == set()
    assert not any("1c" in key for key in labels(replace(known, strategy=SINGLE)))


def test_what_is_told_of_a_model_is_told_of_its_own_gpus() -> None:
    other = replace(card(0, name="NVIDIA A100"), memory=40960 << 20)
    silent = replace(card(1), memory=None)
    known = node(NONE, other, silent, card(2), card(3))
    traits = {
        "GPU-0": GpuTraits(capability="8.0", cuda_driver=""),
        "GPU-2": GpuTraits(capability="", cuda_driver="12.8", mig_capable=True),
        "GPU-3": GpuTraits(capability="9.0"),
    }
    found = labels(replace(known, facts=replace(known.facts, traits=traits)))
    expected = {
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/cuda.runtime-version.full": "12.8",
        "nvidia.com/mig.capable": "true",
    }
    assert expected.items() <= found.items()


def test_what_the_driver_does_not_tell_has_no_label() -> None:
    known = node(NONE, card(0))
    found = labels(replace(known, facts=replace(known.facts, version="", traits={})))
    assert [key for key in found if "cuda" in key or "family" in key] == []
    assert found["nvidia.com/mig.capable"] == "false"
    incapable = {"GPU-0": GpuTraits(capability="7.5")}
    found = labels(replace(known, facts=replace(known.facts, traits=incapable)))
    assert found["nvidia.com/mig.capable"] == "false"


@pytest.mark.parametrize(
    ("strategy", "gpus", "invalid"),
    [
        (SINGLE, (card(0, mig=True),), True),
        (SINGLE, (card(0, mig=True), replace(card(1), uuid="")), True),
        (SINGLE, (replace(card(0), uuid=""),), False),
        (MIXED, (card(0, mig=True),), False),
        (NONE, (card(0, mig=True),), False),
    ],
)
def test_only_strategy_single_calls_gpus_in_mig_mode_without_slices_invalid(
    strategy: MigStrategy, gpus: tuple[Gpu, ...], invalid: bool
) -> None:
    found = labels(node(strategy, *gpus))
    assert found["nvidia.com/gpu.product"].endswith("-MIG-INVALID") == invalid
    assert (found["nvidia.com/gpu.memory"] == "0") == invalid


def test_a_gpu_that_does_not_tell_its_memory_or_its_class_has_no_such_label() -> None:
    silent = replace(card(0), memory=None, pci=None)
    found = labels(replace(node(NONE, silent), machine=""))
    assert "nvidia.com/gpu.memory" not in found
    assert found["nvidia.com/gpu.mode"] == "unknown"
    assert found["nvidia.com/gpu.machine"] == "unknown"


def test_gpus_of_different_pci_classes_have_no_certain_mode() -> None:
    known = node(NONE, card(0), card(1))
    known = replace(known, classes={card(0).pci or "": "0x030200", card(1).pci or "": "0x030000"})
    assert gpu_labels(known)["nvidia.com/gpu.mode"] == "unknown"


def test_a_slice_with_media_engines_is_called_as_its_resource_is() -> None:
    found = feature_file(gpu_labels(node(SINGLE, card(0, "1g.10gb+me"))), until=UNTIL)
    assert "gpu.product=NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me\n" in found
