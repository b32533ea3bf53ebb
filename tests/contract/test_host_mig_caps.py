"""The capability nodes of MIG slices, from files as NVIDIA's driver writes them."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.host.nvidia.driver import NvidiaFiles
from holdfast.host.root import HostRoot
from holdfast.model.devices import DeviceNode
from holdfast.model.nvidia.roots import RootFacts

DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidiactl
236 nvidia-caps-imex-channels
237 nvidia-caps
511 nvidia-uvm

Block devices:
  8 sd
"""
MINORS = """\
config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi1/ci1/access 14
gpu0/gi11/access 102
gpu10/gi1/ci0/access 1400
"""


def _root(folder: Path, *, devices: str | None = DEVICES, minors: str | None = MINORS) -> HostRoot:
    root = HostRoot.under(folder)
    caps = root.proc / "driver/nvidia-caps"
    caps.mkdir(parents=True)
    if devices is not None:
        (root.proc / "devices").write_text(devices)
    if minors is not None:
        (caps / "mig-minors").write_text(minors)
    return root


def _found(root: HostRoot) -> Mapping[tuple[int, int, int], tuple[DeviceNode, ...]]:
    folder = RootFacts(host="/run/nvidia/dev", folder=root.dev, control=195)
    return NvidiaFiles(root).mig_nodes(folder)


def test_a_slice_has_the_node_of_its_gpu_instance_and_its_own(tmp_path: Path) -> None:
    assert _found(_root(tmp_path))[0, 1, 1] == (
        DeviceNode(path="/run/nvidia/dev/nvidia-caps/nvidia-cap12", rdev=os.makedev(237, 12)),
        DeviceNode(path="/run/nvidia/dev/nvidia-caps/nvidia-cap14", rdev=os.makedev(237, 14)),
    )


def test_a_slice_that_the_driver_could_not_have_has_no_nodes(tmp_path: Path) -> None:
    assert _found(_root(tmp_path)).keys() == {(0, 1, 0), (0, 1, 1)}, "one lacks its GPU instance"


@pytest.mark.parametrize(("devices", "minors"), [(None, None), (DEVICES, None), (None, MINORS)])
def test_without_the_drivers_files_there_are_no_nodes(
    tmp_path: Path, devices: str | None, minors: str | None
) -> None:
    assert not _found(_root(tmp_path, devices=devices, minors=minors))


def test_lines_that_say_something_else_are_passed_over(tmp_path: Path) -> None:
    odd = "gpu0/gi1/access\ngpu-1/gi1/access 3\n\x00\ngpu0/gi1/ci0/access 9 9\n" + MINORS
    assert _found(_root(tmp_path, minors=odd)).keys() == {(0, 1, 0), (0, 1, 1)}


def test_a_file_that_cannot_be_read_means_no_nodes(tmp_path: Path) -> None:
    root = _root(tmp_path, minors=None)
    (root.proc / "driver/nvidia-caps/mig-minors").mkdir()
    assert not _found(root)
