"""The real pynvml on a real library: a stub that answers from a control file, errors included.

Each test runs the adapter in a process of its own: pynvml has one library for all of a process.
What a real driver does is looked at by `make gpu`. It has the values of an H100 and an H200 right;
faults, MIG and Xids were not seen there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.nvml import build
from forked import Template
from holdfast.host.nvidia.nvml import Nvml
from holdfast.model.devices import Device, DeviceNode
from holdfast.model.ids import DeviceName
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.gpu import NOWHERE, Gpu, GpuReading
from holdfast.model.nvidia.mig import MigStrategy, lay_out, with_known
from simulated.nvml import CONTROL, GIB, Event, Node, Slice, cards, uuid, write

GPU_IS_LOST, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, UNKNOWN = 15, 3, 6, 13, 999
Ask = Callable[..., Any]

_PRELUDE = """
import enum, json, sys
from pathlib import Path
import msgspec
from holdfast.errors import HostError
from holdfast.host.nvidia.nvml import Nvml

def plain(value):
    if isinstance(value, msgspec.Struct):
        return {name: plain(each) for name, each in msgspec.structs.asdict(value).items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [plain(each) for each in value]
    return value

nvml = Nvml(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
def tell(value):
    print(json.dumps(plain(value)), flush=True)
"""


@pytest.fixture
def ask(library: Path, template: Template, tmp_path: Path) -> Ask:
    """Run some code with `nvml` on a node, and return what it told, one value for each `tell`."""

    def asked(node: Node, code: str, *, after: Node | None = None) -> Any:
        control = tmp_path / "node"
        write(control, node)
        process = template.start(_PRELUDE + code, library, environment={CONTROL: str(control)})
        told = []
        for line in process.stdout:
            if line == "next\n":
                assert after is not None
                write(control, after)
                process.stdin.write("\n")
                process.stdin.flush()
            else:
                told.append(json.loads(line))
        assert process.wait() == 0
        return told[0] if len(told) == 1 else told

    return asked


REPLACED = (
    "cannot start NVML: NVML_ERROR_LIB_RM_VERSION_MISMATCH; the kernel's driver is of another "
    "version than the library: reload the driver or reboot the node; if gpu.driverRoot is not set, "
    "also restart holdfast"
)
READ = "nvml.open(); tell(nvml.read())"
NEXT = "print('next', flush=True); sys.stdin.readline()\n"


def test_eight_gpus_are_told_with_all_that_identifies_them(ask: Ask) -> None:
    reading = ask(Node(cards=cards(8)), READ)
    assert reading["state"] == "ready"
    assert reading["driver_version"] == "550.54.15"
    assert [gpu["uuid"] for gpu in reading["gpus"]] == [uuid(index) for index in range(8)]
    last = reading["gpus"][7]
    assert (last["index"], last["minor"], last["pci"]) == (7, 7, "0000:17:00.0")
    assert (last["name"], last["memory"]) == ("NVIDIA H100 80GB HBM3", 80 * GIB)
    assert (last["mig"], last["slices"], last["problems"]) == (False, [], [])


def test_a_lost_gpu_is_told_as_lost_and_the_others_go_on(ask: Ask) -> None:
    whole = cards(8)
    broken = (*whole[:3], replace(whole[3], errors={"*": GPU_IS_LOST}), *whole[4:])
    before, after = ask(
        Node(cards=whole),
        f"nvml.open(); tell(nvml.read())\n{NEXT}tell(nvml.read())",
        after=Node(cards=broken),
    )
    lost = after["gpus"][3]
    assert lost["uuid"] == before["gpus"][3]["uuid"], "it is known from before"
    assert [problem["lost"] for problem in lost["problems"]] == [True]
    assert lost["problems"][0]["error"] == "NVML_ERROR_GPU_IS_LOST"
    assert [gpu["problems"] for gpu in after["gpus"] if gpu["index"] != 3] == [[]] * 7


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode"])
def test_what_a_gpu_does_not_have_is_no_problem(ask: Ask, function: str) -> None:
    (card,) = cards(1, errors={function: NOT_SUPPORTED})
    (gpu,) = ask(Node(cards=(card,)), READ)["gpus"]
    assert gpu["problems"] == []


ANSWERS = [
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "*",
]
TRUE_ALL_THE_SAME = {
    ("nvmlDeviceGetMigMode", NOT_SUPPORTED),
    ("nvmlDeviceGetMigDeviceHandleByIndex", NOT_FOUND),
}
"""What says that a GPU has no MIG, or no slice at that place."""


@pytest.mark.parametrize("strategy", [MigStrategy.NONE, MigStrategy.MIXED])
@pytest.mark.parametrize("divided", [False, True])
def test_no_odd_answer_of_a_gpu_has_another_given_or_it_given_in_another_way(
    nvml: Nvml, tmp_path: Path, monkeypatch: Any, divided: bool, strategy: MigStrategy
) -> None:
    monkeypatch.setenv(CONTROL, str(tmp_path / "node"))
    slices = tuple(Slice(f"MIG-{number}", gi=number) for number in (1, 2))
    odd, other = cards(2, mig=0)
    odd = replace(odd, mig=1, slices=slices) if divided else odd

    def read(before: GpuReading, errors: Mapping[str, int]) -> GpuReading:
        write(tmp_path / "node", Node(cards=(replace(odd, errors=errors), other)))
        return with_known(nvml.read(), before, on_driver=lambda _: True)

    def offered(reading: GpuReading) -> dict[DeviceName, Device]:
        nodes = {
            0: DeviceNode(path="/dev/nvidia0", rdev=1),
            1: DeviceNode(path="/dev/nvidia1", rdev=2),
        }
        layout = lay_out(reading, strategy)
        devices = gpu_devices(GpuFacts(state=reading.state, layout=layout, nodes=nodes))
        return {each.name: each for each in devices if each.healthy}

    true = read(GpuReading(), {})
    was = offered(true)
    others = {name: each for name, each in was.items() if other.uuid in str(each.keys)}
    nowhere = tuple(Gpu(index=NOWHERE, uuid=each.uuid, pci=each.pci) for each in true.gpus)
    for function, error in product(ANSWERS, (NOT_SUPPORTED, NOT_FOUND, UNKNOWN, GPU_IS_LOST)):
        if (function, error) in TRUE_ALL_THE_SAME:
            continue
        for before in (GpuReading(), GpuReading(gpus=nowhere), true):
            once = read(before, {function: error})
            for reading in (once, read(once, {function: error})):
                found = offered(reading)
                assert others.items() <= found.items(), (function, error)
                assert {(name, each.keys, each.nodes) for name, each in found.items()} <= {
                    (name, each.keys, each.nodes) for name, each in was.items()
                }, (function, error)


def test_text_that_is_garbage_costs_only_that_answer(ask: Ask) -> None:
    (card,) = cards(1, name="\udcff\udcfe")
    (gpu,) = ask(Node(cards=(card,)), READ)["gpus"]
    assert (gpu["uuid"], gpu["name"], gpu["minor"]) == (uuid(0), "", 0)
    assert [each["asked"] for each in gpu["problems"]] == ["name"]


@pytest.mark.parametrize("bus", ["\udcff\udcfe", "garbage:00:00.0", "../../..", ":"])
def test_a_pci_address_that_is_garbage_costs_only_that_answer(ask: Ask, bus: str) -> None:
    one, two = cards(2)
    odd, other = ask(Node(cards=(replace(one, bus=bus), two)), READ)["gpus"]
    assert (odd["uuid"], odd["pci"], odd["minor"]) == (uuid(0), None, 0)
    assert [each["asked"] for each in odd["problems"]] == ["PCI address"]
    assert other["problems"] == []


def test_the_card_that_drives_a_monitor_is_left_out(ask: Ask) -> None:
    one, two = cards(2)
    reading = ask(Node(cards=(one, replace(two, name="NVIDIA DGX Display"))), READ)
    assert [gpu["uuid"] for gpu in reading["gpus"]] == [uuid(0)]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (9, "is the driver being loaded"),
        (18, "of another version than the library"),
        (4, "/dev/nvidia*"),
    ],
)
def test_a_library_that_does_not_start_says_why_and_what_to_do(
    ask: Ask, code: int, told: str
) -> None:
    said = ask(
        Node(init=code),
        "try:\n    nvml.open()\nexcept HostError as error:\n    tell(str(error))",
    )
    assert said.startswith("cannot start NVML: NVML_ERROR_")
    assert told in said


def test_a_driver_that_comes_later_is_found_by_the_same_process(ask: Ask) -> None:
    code = (
        "try:\n    nvml.open()\nexcept HostError:\n    tell('not yet')\n"
        f"{NEXT}nvml.open(); tell(len(nvml.read().gpus))"
    )
    assert ask(Node(init=9), code, after=Node(cards=cards(2))) == ["not yet", 2]


def test_mig_devices_are_told_with_profile_instances_and_slices(ask: Ask) -> None:
    slices = (
        Slice("MIG-1", gi=7),
        Slice("MIG-2", gi=2, ci=1, profile="1c.3g.40gb", slices=(3, 1), mib=40448),
    )
    (card,) = cards(1, mig=1, slices=slices)
    (gpu,) = ask(Node(cards=(card,)), READ)["gpus"]
    assert gpu["mig"]
    assert [(each["uuid"], each["profile"]) for each in gpu["slices"]] == [
        ("MIG-1", "1g.10gb"),
        ("MIG-2", "1c.3g.40gb"),
    ]
    assert [(each["gi"], each["ci"], each["slices"]) for each in gpu["slices"]] == [
        (7, 0, [1, 1]),
        (2, 1, [3, 1]),
    ]
    assert [each["engines"] for each in gpu["slices"]] == [
        {"multiprocessors": 16, "copy": 1, "decoder": 1, "encoder": 0, "jpeg": 1, "ofa": 0},
        {"multiprocessors": 16, "copy": 3, "decoder": 3, "encoder": 0, "jpeg": 3, "ofa": 0},
    ]


LISTS = [f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")]


@pytest.mark.parametrize("lacks", ["v3", "v2"])
def test_processes_of_every_kind_and_the_memory_in_use_are_told(ask: Ask, lacks: str) -> None:
    """Drivers of R470, and 535.98, have the second version of each list and not the third."""
    processes = (("compute", 100, GIB), ("graphics", 200, -1), ("mps", 300, 5))
    lacking = {f"{each}_{lacks}": FUNCTION_NOT_FOUND for each in LISTS}
    (card,) = cards(1, used=2 * GIB, processes=processes, errors=lacking)
    use = ask(Node(cards=(card,)), f"nvml.open(); tell(nvml.use('{uuid(0)}'))")
    assert [(each["kind"], each["pid"], each["memory"]) for each in use["processes"]] == [
        ("compute", 100, GIB),
        ("graphics", 200, None),
        ("mps", 300, 5),
    ]
    assert (use["memory_used"], use["problem"]) == (2 * GIB, "")


_MEANWHILE = """
import pynvml
ask = pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3
def meanwhile(handle):
    print("next", flush=True)
    sys.stdin.readline()
    return ask(handle)
pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3 = meanwhile
nvml.open()
"""


@pytest.mark.parametrize("used", [(2 * GIB, GIB), (GIB, 2 * GIB)])
def test_memory_that_changes_while_processes_are_listed_is_told_at_its_most(
    ask: Ask, used: tuple[int, int]
) -> None:
    before, after = (Node(cards=cards(1, used=each)) for each in used)
    use = ask(before, f"{_MEANWHILE}tell(nvml.use('{uuid(0)}'))", after=after)
    assert use["memory_used"] == 2 * GIB


def test_a_slices_processes_are_asked_of_the_slice(ask: Ask) -> None:
    slices = (Slice("MIG-1", gi=1, processes=(("compute", 42, 7),)), Slice("MIG-2", gi=2))
    (card,) = cards(1, mig=1, slices=slices)
    one, two = ask(
        Node(cards=(card,)), "nvml.open(); tell(nvml.use('MIG-1')); tell(nvml.use('MIG-2'))"
    )
    assert [each["pid"] for each in one["processes"]] == [42]
    assert (two["processes"], two["problem"]) == ([], "")


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo", "*"]
)
def test_an_error_about_use_is_never_nobody(ask: Ask, function: str) -> None:
    (card,) = cards(1, errors={function: UNKNOWN})
    use = ask(Node(cards=(card,)), f"nvml.open(); tell(nvml.use('{uuid(0)}'))")
    assert "NVML_ERROR_UNKNOWN" in use["problem"]


def test_an_xid_is_heard_once_with_its_gpu_and_its_slice(ask: Ask) -> None:
    node = Node(cards=cards(2))
    heard = ask(
        node,
        f"nvml.open(); tell(nvml.subscribe(['{uuid(0)}', '{uuid(1)}']))\n"
        f"tell(nvml.wait_event(0.05))\n{NEXT}"
        "tell(nvml.wait_event(20)); tell(nvml.wait_event(20)); tell(nvml.wait_event(0.05))",
        after=replace(node, events=(Event(uuid(1), 79), Event(uuid(0), 94, gi=3, ci=0))),
    )
    unheard, nothing, first, second, again = heard
    assert (unheard, nothing, again) == ({}, None, None)
    assert (first["kind"], first["uuid"], first["xid"], first["gi"]) == ("xid", uuid(1), 79, None)
    assert (second["uuid"], second["xid"], second["gi"], second["ci"]) == (uuid(0), 94, 3, 0)


def test_a_gpu_whose_events_cannot_be_heard_is_named_and_the_others_are_heard(ask: Ask) -> None:
    one, two = cards(2)
    (unheard,) = [
        ask(
            Node(cards=(replace(one, events=0), two)),
            f"nvml.open(); tell(nvml.subscribe(['{uuid(0)}', '{uuid(1)}']))",
        )
    ]
    assert list(unheard) == [uuid(0)]


def test_an_event_of_a_gpu_that_is_lost_by_now_has_its_uuid_all_the_same(ask: Ask) -> None:
    (card,) = cards(1)
    event = ask(
        Node(cards=(card,)),
        f"nvml.open(); nvml.subscribe(['{uuid(0)}'])\n{NEXT}tell(nvml.wait_event(20))",
        after=Node(cards=(replace(card, errors={"*": GPU_IS_LOST}),), events=(Event(uuid(0), 79),)),
    )
    assert (event["uuid"], event["xid"]) == (uuid(0), 79)


def test_closing_one_leaves_the_others_of_the_process_open(ask: Ask) -> None:
    code = (
        "other = Nvml(Path(sys.argv[1])); other.open(); nvml.open(); nvml.close(); nvml.close()\n"
        "tell(len(other.read().gpus))"
    )
    assert ask(Node(cards=cards(2)), code) == 2


@pytest.fixture
def replaced(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Run code with `nvml` and `other` of version 1, in which `replace()` brings version 2."""
    old, new, control = tmp_path / "old", tmp_path / "new", tmp_path / "node"
    for folder, version in ((old, "1"), (new, "2")):
        folder.mkdir()
        build(folder, version=version)
    write(control, Node(cards=cards(1), driver="1"))
    write(tmp_path / "after", Node(cards=cards(2), driver="2"))
    begin = (
        "import os\nother = Nvml(Path(sys.argv[1]))\n"
        "def replace():\n"
        f"    os.replace('{new}/libnvidia-ml.so.1', sys.argv[1])\n"
        f"    os.replace('{tmp_path}/after', '{control}')\n"
    )

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _PRELUDE + begin + code, str(old / "libnvidia-ml.so.1")],
            env={**os.environ, CONTROL: str(control)},
            check=False,
            capture_output=True,
            text=True,
        )

    return run


def test_the_library_of_a_driver_that_was_replaced_is_loaded_by_the_same_process(
    replaced: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    run = replaced(
        "nvml.open(); tell(nvml.read().driver_version); replace(); tell(nvml.read().reason)\n"
        "nvml.close(); nvml.open(); tell([nvml.read().driver_version, len(nvml.read().gpus)])"
    )
    before, between, after = map(json.loads, run.stdout.splitlines())
    assert before == "1"
    assert "NVML_ERROR_LIB_RM_VERSION_MISMATCH" in between
    assert after == ["2", 2]


def test_while_others_have_the_former_library_open_nobody_gets_another(
    replaced: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    """A handle of the one in a call of the other would be the end of the process."""
    run = replaced(
        "nvml.open(); other.open(); replace(); nvml.close(); tell(nvml.in_use)\n"
        "try:\n    nvml.open()\nexcept HostError as error:\n    tell(str(error))\n"
        "other.close(); tell(nvml.in_use); nvml.open(); tell(nvml.read().driver_version)"
    )
    told = [json.loads(line) for line in run.stdout.splitlines()]
    assert [each for each in told if not isinstance(each, str)] == [True, False], told
    assert [each for each in told if isinstance(each, str)] == [REPLACED, "2"]


def test_an_event_of_a_gpu_that_cannot_be_told_has_no_uuid(ask: Ask) -> None:
    node = Node(cards=cards(1), events=(Event("", 79),))
    event = ask(node, f"nvml.open(); nvml.subscribe(['{uuid(0)}']); tell(nvml.wait_event(20))")
    assert (event["uuid"], event["xid"]) == ("", 79)


def test_the_condition_of_a_gpu_is_told_as_far_as_it_is_known(ask: Ask) -> None:
    (sick,) = cards(
        1,
        remap=(1, 1),
        retired=1,
        temperature=(91, 90),
        links={0: (True, "switch", "00000000:05:00.0"), 1: (False, "switch", "00000000:05:00.0")},
    )
    condition = f"nvml.open(); tell(nvml.condition('{uuid(0)}'))"
    told = ask(Node(cards=(sick,)), condition)
    assert (told["remap_pending"], told["remap_failed"], told["retired_pending"]) == (True,) * 3
    assert (told["links_down"], told["temperature"], told["shutdown_temperature"]) == ([1], 91, 90)
    plain = ask(Node(cards=cards(1)), condition)
    assert (plain["remap_failed"], plain["temperature"], plain["links_down"]) == (None, None, [])
    assert told["peers"] == {}
    gone = ask(Node(cards=cards(1, errors={"*": GPU_IS_LOST})), condition)
    assert gone["lost"] == "NVML_ERROR_GPU_IS_LOST"


@pytest.mark.parametrize(
    ("action", "told"),
    [(None, None), (0, ""), (1, "reset the GPU"), (2, "reboot the node"), (99, None)],
)
def test_what_the_driver_asks_for_is_told_where_it_has_words_for_it(
    ask: Ask, action: int | None, told: str | None
) -> None:
    node = Node(cards=cards(1, recovery=action))
    assert ask(node, f"nvml.open(); tell(nvml.condition('{uuid(0)}'))")["recovery"] == told


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetNvLinkState",
    ],
)
@pytest.mark.parametrize("code", [UNKNOWN, 2, 14])  # 2: invalid argument, 14: corrupted InfoROM
def test_an_odd_answer_to_one_question_says_nothing_about_the_gpu(
    ask: Ask, function: str, code: int
) -> None:
    sick = cards(1, remap=(1, 0), errors={function: code})[0]
    told = ask(Node(cards=(sick,)), f"nvml.open(); tell(nvml.condition('{uuid(0)}'))")
    assert told["lost"] == ""
    assert told["remap_pending"] is (None if function == "nvmlDeviceGetRemappedRows" else True)


@pytest.mark.parametrize(
    ("errors", "lost"),
    [
        ({"nvmlDeviceGetTemperature": GPU_IS_LOST}, "NVML_ERROR_GPU_IS_LOST"),
        ({"nvmlDeviceGetUUID": UNKNOWN}, "NVML_ERROR_UNKNOWN"),
        ({"nvmlDeviceGetHandleByUUID": UNKNOWN}, "NVML_ERROR_UNKNOWN"),
    ],
)
def test_a_gpu_that_says_it_is_lost_or_not_even_who_it_is_does_not_answer(
    ask: Ask, errors: dict[str, int], lost: str
) -> None:
    node = Node(cards=cards(1, errors=errors))
    assert ask(node, f"nvml.open(); tell(nvml.condition('{uuid(0)}'))")["lost"] == lost


def test_the_gpu_at_the_other_end_of_a_link_is_known_while_it_was_ever_up(ask: Ask) -> None:
    one, two = cards(2)
    links = {0: (True, "gpu", two.bus), 1: (False, "gpu", two.bus), 2: (True, "switch", one.bus)}
    told = ask(
        Node(cards=(replace(one, links=links), two)),
        f"nvml.open(); tell(nvml.condition('{uuid(0)}'))",
    )
    assert told["peers"] == {"0": two.bus.lower().removeprefix("0000")}


def test_links_are_counted_once_for_each_pair_and_switches_are_known(ask: Ask) -> None:
    one, two, three = cards(3)
    joined = (
        replace(one, links={0: (True, "gpu", two.bus), 1: (True, "gpu", two.bus)}),
        replace(two, links={0: (True, "gpu", one.bus), 1: (True, "gpu", one.bus)}),
        replace(three, links={0: (True, "switch", "00000000:05:00.0")}),
    )
    links = ask(
        Node(cards=joined),
        f"nvml.open(); tell(nvml.links(['{uuid(0)}', '{uuid(1)}', '{uuid(2)}']))",
    )
    assert links["nvlinks"] == {str((uuid(0), uuid(1))): 2}
    assert links["switched"] == [uuid(2)]
    assert links["pci"][str((uuid(0), uuid(1)))] == "multi-switch"
    assert links["pci"][str((uuid(1), uuid(2)))] == "cross-cpu"


def test_a_link_to_an_address_that_is_garbage_leads_to_no_gpu_whose_own_is(ask: Ask) -> None:
    one, two = cards(2)
    joined = replace(one, links={0: (True, "gpu", "garbage")}), replace(two, bus="garbage")
    links = ask(Node(cards=joined), f"nvml.open(); tell(nvml.links(['{uuid(0)}', '{uuid(1)}']))")
    assert links["nvlinks"] == {}


def test_a_lost_gpu_has_no_links_and_the_others_keep_theirs(ask: Ask) -> None:
    one, two, three = cards(3)
    node = Node(cards=(one, replace(two, errors={"*": GPU_IS_LOST}), three))
    links = ask(node, f"nvml.open(); tell(nvml.links(['{uuid(0)}', '{uuid(1)}', '{uuid(2)}']))")
    assert list(links["pci"]) == [str((uuid(0), uuid(2)))]


def test_what_a_gpu_is_is_told_as_far_as_it_is_known(ask: Ask) -> None:
    one, other, lost = cards(3)
    gone = replace(lost, errors={"*": GPU_IS_LOST})
    old = replace(other, mig=0, errors={"nvmlDeviceGetArchitecture": NOT_SUPPORTED})
    asked = f"nvml.open(); tell(nvml.traits({[uuid(0), uuid(1), uuid(2)]}))"
    told = ask(Node(cards=(one, old, gone)), asked)

    hopper = {
        "brand": "Nvidia",
        "architecture": "Hopper",
        "capability": "9.0",
        "cuda_driver": "12.4",
        "addressing": "",
        "mig_capable": False,
        "virtual": False,
    }
    assert told[uuid(0)] == hopper
    assert told[uuid(1)] == {**hopper, "architecture": "", "mig_capable": True}
    assert (told[uuid(2)]["brand"], told[uuid(2)]["cuda_driver"]) == ("", "12.4")


@pytest.mark.parametrize(("mode", "virtual"), [(2, True), (1, False), (0, False), (-1, False)])
def test_a_vgpu_is_told_from_a_gpu(ask: Ask, mode: int, virtual: bool) -> None:
    node = Node(cards=cards(1, virtualization=mode))
    told = ask(node, f"nvml.open(); tell(nvml.traits({[uuid(0)]}))")
    assert told[uuid(0)]["virtual"] is virtual


@pytest.mark.parametrize(("mode", "told"), [(0, "None"), (1, "HMM"), (2, "ATS"), (7, ""), (-1, "")])
def test_how_a_gpu_reaches_the_hosts_memory_is_told(ask: Ask, mode: int, told: str) -> None:
    node = Node(cards=cards(1, addressing=mode))
    found = ask(node, f"nvml.open(); tell(nvml.traits({[uuid(0)]}))")
    assert found[uuid(0)]["addressing"] == told


@pytest.mark.parametrize(
    ("fabric", "clique"),
    [
        ((3, 0, 7, "0d8a4c3e6f0b4a579a5231e6f4d7c9aa"), "0d8a4c3e-6f0b-4a57-9a52-31e6f4d7c9aa.7"),
        ((3, 0, 7, "0" * 32), ""),  # as on a node alone, with fabric manager
        ((3, 999, 7, "0d8a4c3e6f0b4a579a5231e6f4d7c9aa"), ""),
        ((2, 0, 7, "0d8a4c3e6f0b4a579a5231e6f4d7c9aa"), ""),
        (None, ""),
    ],
)
def test_a_gpu_is_in_a_clique_once_its_fabric_is_up(
    ask: Ask, fabric: tuple[int, int, int, str] | None, clique: str
) -> None:
    (gpu,) = ask(Node(cards=cards(1, fabric=fabric)), READ)["gpus"]
    assert (gpu["clique"], gpu["problems"]) == (clique, [])


def test_a_library_of_another_machine_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_bytes(b"\x7fELF no more")
    code = _PRELUDE + "try:\n    nvml.open()\nexcept HostError as error:\n    tell(str(error))"
    told = subprocess.run(
        [sys.executable, "-c", code, str(broken)], check=True, capture_output=True, text=True
    ).stdout
    assert f"cannot load {broken}" in told
