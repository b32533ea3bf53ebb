"""What a file of NVIDIA's that shares GPUs leads to, beside what it led to with its plugin.

tests/golden/sharing was recorded from NVIDIA's plugin 0.20.0 on its mock of NVML: the files as they
stand, and how many devices of each resource kubelet was told of; null where it did not start.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fakes.settingsfiles import load
from holdfast.errors import SettingsError
from holdfast.model.ids import PciAddress
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.gpu import DriverState, Gpu, GpuReading, MigSlice
from holdfast.model.nvidia.mig import MigStrategy, lay_out

_RECORDED = Path(__file__).parents[1] / "golden/sharing/plugin-0.20.0.json"
_RECORD: dict[str, Any] = json.loads(_RECORDED.read_text())
_SEVENTHS = ("1g.10gb",) * 7
_LAYOUTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "whole": ((),) * 8,
    "all-1g": (_SEVENTHS,) * 2,
    "mixed2": (*((),) * 6, _SEVENTHS, ("3g.40gb",) * 2),
    "single-someoff": (_SEVENTHS, ()),
}
_GPU, _SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
_STARTS = {_GPU: 8}
_REFUSED = "refused"
_DIFFERS: dict[str, Any] = {
    # Fewer GPUs than all, and more replicas than a node can count, are refused by name.
    **dict.fromkeys(("devices-2", "devices-list", "replicas-257"), _REFUSED),
    # A section that says nothing shares nothing.
    **dict.fromkeys(("ts-null", "ts-no-resources", "ts-resources-empty"), _STARTS),
    # Strategy single on GPUs that are divided in more than one way: what most have is offered.
    "mig/mixed2/single/replicas-2": {_GPU: 12},
    "mig/mixed2/single/mig-1g": {_GPU: 6},
    "mig/mixed2/single/gpu-and-mig": {_GPU: 24},
    "mig/mixed2/single/readme-rename": {_SHARED: 60},
    "mig/single-someoff/single/replicas-2": {_GPU: 2},
    "mig/single-someoff/single/mig-1g": {_GPU: 1},
    "mig/single-someoff/single/gpu-and-mig": {_GPU: 4},
    "mig/single-someoff/single/readme-rename": {_SHARED: 10},
}
"""What it leads to here, where that is something else; docs/nvidia.md says why."""


def _gpu(index: int, profiles: tuple[str, ...]) -> Gpu:
    pieces = (
        MigSlice(uuid=f"MIG-{index}-{place}", gi=place + 1, ci=0, profile=profile, index=place)
        for place, profile in enumerate(profiles)
    )
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        pci=PciAddress(f"0000:{index + 1:02x}:00.0"),
        mig=bool(profiles),
        slices=tuple(pieces),
    )


class _Node:
    """A node with that layout, whose plugin is told what the case says."""

    def __init__(self, case: str, folder: Path) -> None:
        """Read the settings; raise SettingsError."""
        environ: dict[str, str] = {}
        layout, file = "whole", case
        match case.split("/"):
            case ["mig", layout, ("packed" | "distributed") as policy]:
                environ |= {"MIG_STRATEGY": "mixed", "SHARED_DEVICES_ALLOCATION_POLICY": policy}
                file = ""
            case ["mig", layout, strategy, file]:
                environ["MIG_STRATEGY"] = strategy
            case ["strategy", lists, ids]:
                environ |= {"DEVICE_LIST_STRATEGY": lists, "DEVICE_ID_STRATEGY": ids}
                file = "readme-10"
            case [file, policy]:
                environ["SHARED_DEVICES_ALLOCATION_POLICY"] = policy
        if file:
            environ["CONFIG_FILE"] = str(folder / "theirs.yaml")
            (folder / "theirs.yaml").write_text(_RECORD["files"][file])
        self.told: list[str] = []
        self.settings = load(None, environ, told=self.told.append)
        self.shared = self.settings.sharing.by_resource()
        gpus = tuple(_gpu(*each) for each in enumerate(_LAYOUTS[layout]))
        reading = GpuReading(state=DriverState.READY, gpus=gpus)
        self.layout = lay_out(reading, MigStrategy(self.settings.gpu.mig_strategy))

    def offered(self) -> dict[str, int]:
        """Return how many devices of each resource kubelet is told of."""
        facts = GpuFacts(state=DriverState.READY, layout=self.layout)
        found = gpu_devices(facts, shared=self.shared)
        return dict(Counter(each.name.resource for each in found))


@pytest.mark.parametrize("case", _RECORD["registered"])
def test_a_file_that_shares_gpus_leads_to_the_devices_that_it_led_to(
    case: str, tmp_path: Path
) -> None:
    there = _RECORD["registered"][case]
    expected = _DIFFERS.get(case, _REFUSED if there is None else there)
    try:
        found: object = _Node(case, tmp_path).offered()
    except SettingsError:
        found = _REFUSED
    assert found == expected
    assert case not in _DIFFERS or found != there


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("no-such-resource", "resources[0] in {}: there is no nvidia.com/nothing that can be"),
        ("twice", "resources[1] in {}: the first entry with this name counts; leave it out"),
        ("rename-custom", "resources[0].rename in {}: renameByDefault alone decides"),
        ("rename-shared", "resources[0].rename in {}: renameByDefault alone decides"),
        ("case-inside", "RenameByDefault in {}: it is written sharing.timeSlicing.renameByDefault"),
    ],
)
def test_what_has_no_effect_in_a_file_that_shares_is_told(
    case: str, told: str, tmp_path: Path
) -> None:
    (only,) = _Node(case, tmp_path).told
    file = f"{tmp_path / 'theirs.yaml'} has no effect, as with NVIDIA's plugin"
    assert told.format(file) in only


@pytest.mark.parametrize("name", ["gpu", "mig-1g.10gb"])
def test_a_file_that_shares_some_devices_alone_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    entry = f"{{name: {name}, replicas: 2, devices: [0]}}"
    file.write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: [{entry}]}}}}")
    with pytest.raises(
        SettingsError, match=r"resources\[0\].devices in .*: write all|leave it out"
    ):
        load(None, {"CONFIG_FILE": str(file)})
