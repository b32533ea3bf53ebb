"""Which folder has the driver's device nodes: the kernel's word, and never a path that exists."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.model.nvidia.roots import DriverFacts, RootFacts, device_root

DEV = Path("/dev")
OPERATOR = Path("/run/nvidia/driver/dev")


CONFIGURED = Path("/opt/driver/dev")
_PLACES = {DEV: (5, 1), OPERATOR: (6, 1), CONFIGURED: (7, 1)}


def root(folder: Path, control: int | None = 195, **more: Any) -> RootFacts:
    facts = {"place": _PLACES[folder], "own": folder == DEV, **more}
    return RootFacts(folder=folder, host=str(folder), control=control, **facts)


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


@pytest.mark.parametrize(
    ("roots", "chosen"),
    [
        pytest.param([root(DEV), root(OPERATOR, place=(5, 1))], DEV, id="one folder, two names"),
        pytest.param(
            [root(OPERATOR, place=(5, 1)), root(DEV)],
            DEV,
            id="one folder, configured by the name that goes with the driver's container",
        ),
        pytest.param([root(CONFIGURED), root(DEV)], CONFIGURED, id="two folders: the first"),
        pytest.param(
            [root(CONFIGURED, place=None), root(DEV, place=None)],
            CONFIGURED,
            id="what is not known to be one folder is two",
        ),
        pytest.param(
            [root(OPERATOR, nodev=True), root(DEV)],
            DEV,
            id="nodes that a dead container left on a file system where none can be opened",
        ),
        pytest.param(
            [root(DEV, private=True), root(OPERATOR)],
            OPERATOR,
            id="our own /dev is a container's, and the host calls another one so",
        ),
        pytest.param([root(DEV, private=True)], DEV, id="our own, for want of any other"),
        pytest.param(
            [root(OPERATOR, place=(5, 1)), root(DEV, None)],
            OPERATOR,
            id="a name without nodes is not chosen for its name",
        ),
        pytest.param([root(DEV, nodev=True)], None, id="nothing that can be opened"),
    ],
)
def test_where_roots_overlap_what_they_are_mounted_on_decides(
    roots: list[RootFacts], chosen: Path | None
) -> None:
    found = device_root(DriverFacts(present=True, roots=roots))
    assert (found.root.folder if found.root else None) == chosen


def test_without_the_kernels_driver_no_folder_counts() -> None:
    found = device_root(DriverFacts(present=False, roots=(root(DEV, 195),)))
    assert found.root is None
    assert found.reason == "the kernel has no NVIDIA driver"


def test_where_no_folder_counts_each_is_named_with_what_it_has_and_what_to_set() -> None:
    roots = (root(DEV, 10), root(OPERATOR, None), root(CONFIGURED, nodev=True))
    reason = device_root(DriverFacts(present=True, roots=roots)).reason
    assert "/opt/driver/dev is mounted with nodev" in reason
    assert "that of /dev has major 10" in reason
    assert "/run/nvidia/driver/dev has none" in reason
    assert "gpu.devRoot" in reason
