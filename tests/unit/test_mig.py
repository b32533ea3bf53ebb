"""What is advertised of a node's GPUs under each of NVIDIA's strategies for MIG."""

import pytest
from msgspec.structs import replace

from holdfast.model.devices import DeviceNode
from holdfast.model.ids import HardwareKey, PciAddress
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.gpu import NOWHERE, DriverState, Gpu, GpuProblem, GpuReading, MigSlice
from holdfast.model.nvidia.mig import GpuLayout, MigStrategy, lay_out, resource_of, with_known

NONE, SINGLE, MIXED = MigStrategy.NONE, MigStrategy.SINGLE, MigStrategy.MIXED
LOST = GpuProblem(asked="handle", error="NVML_ERROR_GPU_IS_LOST", lost=True)


def _piece(gpu: int, index: int, profile: str, slices: tuple[int, int] | None = None) -> MigSlice:
    count = int(profile.partition("g.")[0].rpartition(".")[2])
    return MigSlice(
        uuid=f"MIG-{gpu}-{index}",
        gi=index + 1,
        ci=0,
        profile=profile,
        slices=slices or (count, count),
        index=index,
    )


def _gpu(index: int, *profiles: str, mig: bool | None = None) -> Gpu:
    pieces = tuple(_piece(index, place, profile) for place, profile in enumerate(profiles))
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        mig=bool(pieces) if mig is None else mig,
        slices=pieces,
    )


def _lay(strategy: MigStrategy, *gpus: Gpu) -> GpuLayout:
    return lay_out(GpuReading(state=DriverState.READY, gpus=gpus), strategy)


_HALVES = ("3g.40gb", "3g.40gb")
_SEVENTHS = ("1g.10gb",) * 7


_LAYOUTS = """
mixed: no GPU | | |
none: whole GPUs | whole / whole | gpu=GPU-0 GPU-1 |
none: also those in MIG mode | 3g.40gb 3g.40gb | gpu=GPU-0 |
single: without MIG | whole / whole | gpu=GPU-0 GPU-1 |
mixed: without MIG | whole | gpu=GPU-0 |
single: all alike | 3g.40gb 3g.40gb / 3g.40gb 3g.40gb | gpu=MIG-0-0 MIG-0-1 MIG-1-0 MIG-1-1 |
single: what most GPUs have stays | 1g.10gb / 3g.40gb 3g.40gb / 3g.40gb 3g.40gb | gpu=MIG-1-0 MIG-1-1 MIG-2-0 MIG-2-1 | MIG 1g.10gb of GPU 0 (GPU-0) not advertised: strategy single needs the same
single: one GPU that is not divided does not take the others away | whole / 3g.40gb 3g.40gb / 3g.40gb 3g.40gb | gpu=MIG-1-0 MIG-1-1 MIG-2-0 MIG-2-1 | the whole of GPU 0 (GPU-0) not advertised: strategy single needs the same on every GPU, and most have MIG 3g.40gb; give all GPUs the same layout, or set gpu.migStrategy to mixed
single: whole GPUs win a tie | 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb / whole | gpu=GPU-1 | MIG 1g.10gb of GPU 0 (GPU-0) not advertised
single: on a tie, what makes most of the GPU useful | 1g.10gb 3g.40gb 3g.40gb | gpu=MIG-0-1 MIG-0-2 | MIG 1g.10gb of GPU 0 (GPU-0) not advertised
single: on a tie, seven small ones before two halves | 3g.40gb 3g.40gb / 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb | gpu=MIG-1-0 MIG-1-1 MIG-1-2 MIG-1-3 MIG-1-4 MIG-1-5 MIG-1-6 | MIG 3g.40gb of GPU 0 (GPU-0) not advertised
single: unlike slices of one GPU | 3g.40gb 2g.20gb 2g.20gb / 2g.20gb | gpu=MIG-0-1 MIG-0-2 MIG-1-0 | MIG 3g.40gb of GPU 0 (GPU-0) not advertised
single: a GPU in MIG mode without slices | none / 7g.80gb | gpu=MIG-1-0 | GPU 0 (GPU-0) is not advertised: MIG mode is on and it has no MIG devices
single: nothing but empty GPUs | none | | GPU 0 (GPU-0) is not advertised: MIG mode is on
single: lost GPUs do not vote | whole / lost / lost | gpu=GPU-0 GPU-1 GPU-2 |
mixed: each profile under its name, and whole GPUs | whole / 3g.40gb 1g.10gb 1g.10gb+me | gpu=GPU-0; mig-3g.40gb=MIG-1-0; mig-1g.10gb=MIG-1-1; mig-1g.10gb.me=MIG-1-2 |
mixed: a GPU without slices | none / whole | gpu=GPU-1 | GPU 0 (GPU-0) is not advertised: MIG mode is on and it has no MIG devices
"""
"""Strategy and case, the slices of each GPU, what is advertised by resource, and what is said."""


def _gpu_with(index: int, slices: str) -> Gpu:
    if slices == "lost":
        return replace(_gpu(index), problems=(LOST,))
    return (
        _gpu(index, *slices.split())
        if slices not in {"whole", "none"}
        else _gpu(index, mig=slices == "none")
    )


@pytest.mark.parametrize("row", _LAYOUTS.strip().splitlines())
def test_the_layout(row: str) -> None:
    case, gpus, expected, problem = (cell.strip() for cell in row.split("|"))
    made = [_gpu_with(*each) for each in enumerate(filter(None, gpus.split(" / ")))]
    _lies(
        _lay(MigStrategy(case.partition(":")[0]), *made),
        dict(each.split("=") for each in filter(None, expected.split("; "))),
        *filter(None, [problem]),
    )


def _lies(layout: GpuLayout, expected: dict[str, str], *problems: str) -> None:
    """Require that *layout* advertises what is *expected*, and says *problems*."""
    found: dict[str, str] = {}
    for part in layout.parts:
        name = part.name.resource.removeprefix("nvidia.com/")
        found[name] = f"{found.get(name, '')} {part.name.id}".strip()
    assert found == expected
    assert len(layout.problems) == len(problems), layout.problems
    for told, begins in zip(layout.problems, problems, strict=True):
        assert begins in told
    assert layout.resources == (
        "nvidia.com/gpu",
        *sorted(f"nvidia.com/{name}" for name in found if name != "gpu"),
    )


def _with_slices(gpu: Gpu, *slices: MigSlice) -> Gpu:
    return replace(gpu, mig=True, slices=slices)


@pytest.mark.parametrize(
    ("strategy", "gpus", "expected", "problems"),
    [
        pytest.param(
            SINGLE,
            (
                _gpu(0, "1g.10gb"),
                _gpu(1, "1g.10gb"),
                _with_slices(_gpu(2), replace(_piece(2, 0, "1g.10gb"), memory=5)),
            ),
            {"gpu": "MIG-0-0 MIG-1-0"},
            ["MIG 1g.10gb of GPU 2 (GPU-2) not advertised"],
            id="the same profile with other memory",
        ),
        pytest.param(
            MIXED,
            (_with_slices(_gpu(0), _piece(0, 0, "1c.3g.40gb", (3, 1)), _piece(0, 1, "3g.40gb")),),
            {"mig-3g.40gb": "MIG-0-1"},
            ["MIG 1c.3g.40gb (MIG-0-0) of GPU 0 (GPU-0) is not advertised: strategy mixed has no"],
            id="a part of a GPU instance",
        ),
        pytest.param(
            MIXED,
            (_with_slices(_gpu(0), MigSlice(uuid="MIG-x", gi=1, ci=0, profile="\n")),),
            {},
            ["(MIG-x) of GPU 0 (GPU-0) is not advertised: its profile makes no resource name"],
            id="a profile that is garbage",
        ),
        pytest.param(
            MIXED,
            (_with_slices(_gpu(0), MigSlice(uuid="", gi=1, ci=0, profile="1g.10gb")),),
            {},
            ["a MIG device of GPU 0 (GPU-0) is not advertised: it has no UUID"],
            id="a slice without UUID",
        ),
        pytest.param(
            NONE,
            (_gpu(0), Gpu(index=1, problems=(LOST,))),
            {"gpu": "GPU-0"},
            ["GPU 1 is not advertised: NVML does not report its UUID"],
            id="a GPU without UUID",
        ),
        pytest.param(
            SINGLE,
            (_gpu(0, *_HALVES), replace(_gpu(1), problems=(LOST,))),
            {"gpu": "MIG-0-0 MIG-0-1 GPU-1"},
            [],
            id="a lost GPU of which nothing is known makes no uneven node",
        ),
    ],
)
def test_the_layout_of_odd_gpus(
    strategy: MigStrategy, gpus: tuple[Gpu, ...], expected: dict[str, str], problems: list[str]
) -> None:
    _lies(_lay(strategy, *gpus), expected, *problems)


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.10gb+me.all", "nvidia.com/mig-1g.10gb.me.all"),
        ("1g.5gb-me", "nvidia.com/mig-1g.5gb-me"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        (f"1g.10gb+{'a' * 40}", f"nvidia.com/mig-1g.10gb.{'a' * 40}"),
        (f"1g.10gb+{'a' * 41}", None),
        ("1g.10gb+", None),
        ("1G.10GB", None),
        ("../gpu", None),
        ("", None),
    ],
)
def test_the_name_of_a_profile(profile: str, name: str | None) -> None:
    assert name is None or len(name) <= 63
    assert resource_of(MigSlice(uuid="MIG-x", gi=1, ci=0, profile=profile)) == name


def test_a_gpu_excludes_its_slices_and_they_do_not_exclude_each_other() -> None:
    gpu = _gpu(0, *_HALVES)
    (whole,) = _lay(NONE, gpu).parts
    one, other = _lay(MIXED, gpu).parts
    assert whole.keys & one.keys
    assert whole.keys & other.keys
    assert one.keys == {HardwareKey("part/GPU-0/1/MIG-0-0")}
    assert not one.keys & other.keys


def test_index_ids_are_those_of_nvml() -> None:
    gpu = _gpu(3, *_HALVES)
    gpu = replace(gpu, slices=(gpu.slices[0], replace(gpu.slices[1], index=5)))
    assert [part.index for part in _lay(MIXED, gpu).parts] == ["3:0", "3:5"]
    assert [part.index for part in _lay(NONE, gpu).parts] == ["3"]


def test_a_gpu_that_is_lost_keeps_its_slices_until_it_is_back() -> None:
    before = GpuReading(state=DriverState.READY, gpus=(_gpu(0, *_HALVES), _gpu(1, *_HALVES)))
    lost = Gpu(index=1, uuid="GPU-1", problems=(LOST,))
    now = replace(before, gpus=(before.gpus[0], lost))
    known = with_known(now, before)
    assert lay_out(known, MIXED).resources == lay_out(before, MIXED).resources
    assert {part.name for part in lay_out(known, MIXED).parts} == {
        part.name for part in lay_out(before, MIXED).parts
    }
    assert (known.gpus[1].problems, known.gpus[1].minor) == ((LOST,), 1)


def test_a_profile_that_was_changed_is_not_held_on_to() -> None:
    before = GpuReading(state=DriverState.READY, gpus=(_gpu(0, *_HALVES),))
    memory = GpuProblem(asked="memory", error="NVML_ERROR_UNKNOWN")
    now = replace(before, gpus=(replace(_gpu(0, *_SEVENTHS), problems=(memory,)),))
    assert with_known(now, before).gpus[0].slices == now.gpus[0].slices
    off = replace(before, gpus=(_gpu(0),))
    assert with_known(off, before) == off


ODD = GpuProblem(asked="minor number", error="NVML_ERROR_UNKNOWN")


def faults(reading: GpuReading) -> dict[str, bool]:
    nodes = {minor: DeviceNode(path=f"/dev/nvidia{minor}", rdev=minor + 1) for minor in range(9)}
    facts = GpuFacts(state=DriverState.READY, layout=lay_out(reading, NONE), nodes=nodes)
    return {each.name.id: bool(each.faults) for each in gpu_devices(facts)}


@pytest.mark.parametrize("asked", ["minor number", "UUID", "MIG mode", "handle"])
def test_one_odd_answer_condemns_no_gpu_and_the_same_again_does(asked: str) -> None:
    odd = replace(ODD, asked=asked)
    before = GpuReading(state=DriverState.READY, gpus=(_gpu(0), _gpu(1)))
    sick = Gpu(index=1, uuid="GPU-1", problems=(odd,))
    now = replace(before, gpus=(before.gpus[0], sick))
    once = with_known(now, before)
    assert faults(once) == {"GPU-0": False, "GPU-1": False}
    assert once.gpus[1].minor == 1
    numbered = replace(now, gpus=(before.gpus[0], replace(sick, minor=1)))
    assert faults(with_known(numbered, before)) == {"GPU-0": False, "GPU-1": False}
    assert faults(with_known(now, once)) == {"GPU-0": False, "GPU-1": True}
    assert faults(with_known(before, once)) == {"GPU-0": False, "GPU-1": False}
    assert faults(now) == {"GPU-0": False, "GPU-1": True}, "nothing better was known of it"
    lost = replace(now, gpus=(before.gpus[0], replace(sick, problems=(replace(odd, lost=True),))))
    assert faults(with_known(lost, before)) == {"GPU-0": False, "GPU-1": True}


def test_a_gpu_that_nvml_leaves_out_although_the_driver_has_it_stays_on_the_list_unhealthy() -> (
    None
):
    def on(number: int) -> Gpu:
        return replace(_gpu(number), pci=PciAddress(f"0000:1{number}:00.0"))

    before = GpuReading(state=DriverState.READY, gpus=(on(0), on(1), on(2)))
    left = replace(before, gpus=(on(0), replace(on(2), index=1)))
    known = with_known(left, before, on_driver=lambda _address: True)
    assert faults(known) == {"GPU-0": False, "GPU-1": True, "GPU-2": False}
    assert [part.index for part in lay_out(known, NONE).parts] == ["0", "1", "GPU-1"]
    again = with_known(left, known, on_driver=lambda _address: True)
    assert again == known
    assert with_known(before, known, on_driver=lambda _address: True) == before
    taken_out = with_known(left, before, on_driver=lambda _address: False)
    assert faults(taken_out) == {"GPU-0": False, "GPU-2": False}
    nameless = replace(left, gpus=(*left.gpus, Gpu(index=2)))  # which it may be
    still = with_known(nameless, before, on_driver=lambda _address: True)
    assert faults(still) == {"GPU-0": False, "GPU-1": True, "GPU-2": False}
    assert with_known(left, still, on_driver=lambda _address: True) == known, "and not forgotten"


@pytest.mark.parametrize(
    ("asked", "untold"),
    [
        ("name", {"name": ""}),
        ("PCI address", {"pci": None}),
        ("memory", {"memory": None}),
    ],
)
def test_what_a_gpu_does_not_tell_of_itself_is_as_it_was(
    asked: str, untold: dict[str, object]
) -> None:
    """By its name or its address it may be left out by a rule, or be another resource."""
    pci = PciAddress("0000:3b:00.0")
    gpu = replace(_gpu(0), name="Tesla T4", pci=pci, memory=1)
    before = GpuReading(state=DriverState.READY, gpus=(gpu,))
    problems = (replace(ODD, asked=asked),)
    (told,) = with_known(
        replace(before, gpus=(replace(gpu, problems=problems, **untold),)), before
    ).gpus
    assert replace(told, problems=()) == gpu


def test_a_gpu_whose_place_another_has_was_replaced_and_is_not_missed() -> None:
    slot = PciAddress("0000:3b:00.0")
    former = GpuReading(gpus=(Gpu(index=NOWHERE, uuid="GPU-old", pci=slot),))
    now = GpuReading(state=DriverState.READY, gpus=(replace(_gpu(0), pci=slot),))
    assert with_known(now, former, on_driver=lambda _address: True) == now


def test_of_two_gpus_that_changed_places_neither_is_taken_to_be_in_the_others() -> None:
    """A rule of the settings that leaves out what is in a slot would leave out both."""
    slots = [PciAddress(f"0000:1{number}:00.0") for number in range(2)]

    def on(number: int, slot: int) -> Gpu:
        return replace(_gpu(number), pci=slots[slot])

    before = GpuReading(state=DriverState.READY, gpus=(on(0, 0), on(1, 1)))
    problems = (replace(ODD, asked="PCI address"),)
    untold = replace(on(0, 1), pci=None, problems=problems)
    now = replace(before, gpus=(untold, on(1, 0)))
    known = with_known(now, before)
    assert [gpu.pci for gpu in known.gpus] == [None, slots[0]]
    swapped = replace(before, gpus=(on(0, 1), on(1, 0)))
    assert with_known(swapped, known) == swapped


def test_a_gpu_that_tells_nothing_is_not_reached_by_the_node_that_another_has_now() -> None:
    """The driver counts again when it is loaded anew without a GPU."""

    def on(number: int, minor: int) -> Gpu:
        return replace(_gpu(number), minor=minor, pci=PciAddress(f"0000:1{number}:00.0"))

    before = GpuReading(state=DriverState.READY, gpus=tuple(on(each, each) for each in range(4)))
    silent = Gpu(index=0, uuid="GPU-1", problems=(LOST,))
    now = replace(before, gpus=(silent, on(3, 1)))
    known = with_known(now, before, on_driver=lambda address: address == "0000:12:00.0")
    assert {gpu.uuid: gpu.minor for gpu in known.gpus} == {"GPU-1": None, "GPU-3": 1, "GPU-2": 2}
    assert faults(known) == {"GPU-1": True, "GPU-3": False, "GPU-2": True}
    odd = replace(before, gpus=(replace(silent, problems=(ODD,)), on(3, 1)))
    assert faults(with_known(odd, before)) == {"GPU-1": True, "GPU-3": False}


def test_a_gpu_of_which_only_a_former_daemon_knew_is_not_excused_an_odd_answer() -> None:
    former = GpuReading(gpus=(Gpu(index=NOWHERE, uuid="GPU-1", pci=PciAddress("0000:11:00.0")),))
    sick = Gpu(index=0, uuid="GPU-1", problems=(ODD,))
    now = GpuReading(state=DriverState.READY, gpus=(sick,))
    assert faults(with_known(now, former)) == {"GPU-1": True}
