"""Which folder has the driver's device nodes: the kernel's word, and never a path that exists."""

from pathlib import Path

import pytest

from holdfast.model.nvidia_roots import DriverFacts, RootFacts, device_root

DEV = Path("/dev")
OPERATOR = Path("/run/nvidia/driver/dev")


def root(folder: Path, control: int | None) -> RootFacts:
    return RootFacts(folder=folder, host=str(folder), control=control)


@pytest.mark.parametrize(
    ("dev", "operator", "major", "chosen"),
    [
        pytest.param(195, None, None, DEV, id="a driver on the host"),
        pytest.param(None, 195, None, OPERATOR, id="GPU Operator's, and /dev has none"),
        pytest.param(195, 195, None, DEV, id="both: the first"),
        pytest.param(10, 195, None, OPERATOR, id="a /dev with something else of that name"),
        pytest.param(195, 236, 236, OPERATOR, id="a former driver's nodes are left in /dev"),
        pytest.param(236, None, 236, DEV, id="the kernel gave another number"),
        pytest.param(10, None, None, None, id="only something else of that name"),
        pytest.param(None, None, None, None, id="no nodes at all"),
    ],
)
def test_a_root_counts_only_if_its_nvidiactl_is_the_drivers(
    dev: int | None, operator: int | None, major: int | None, chosen: Path | None
) -> None:
    facts = DriverFacts(present=True, roots=(root(DEV, dev), root(OPERATOR, operator)), major=major)
    found = device_root(facts)
    assert (found.root.folder if found.root else None) == chosen
    assert bool(found.reason) == (chosen is None)


def test_without_the_kernels_driver_no_folder_counts() -> None:
    found = device_root(DriverFacts(present=False, roots=(root(DEV, 195),)))
    assert found.root is None
    assert found.reason == "the kernel has no NVIDIA driver"


def test_where_no_folder_counts_each_is_named_with_what_it_has_and_what_to_set() -> None:
    facts = DriverFacts(present=True, roots=(root(DEV, 10), root(OPERATOR, None)))
    reason = device_root(facts).reason
    assert "that of /dev has major 10" in reason
    assert "/run/nvidia/driver/dev has none" in reason
    assert "gpu.devRoot" in reason
