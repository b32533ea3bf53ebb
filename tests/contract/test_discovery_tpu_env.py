"""Reading /etc/tpu/tpu-env from a host."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fakes.books import inventory, silicon
from fakes.tpus import tpus_of
from holdfast.host.root import HostRoot
from holdfast.model.tpu.env import TpuEnvFile, TpuHostFacts
from holdfast.model.tpu.generations import TPU_RESOURCE
from holdfast.runtime.lane import Lane, Lanes
from holdfast.runtime.watched import Watched
from holdfast.vendors.tpu.adapter import Tpus, read_tpu_env, tpu_env_path
from waiting import until


class _OneLane(Lanes):
    """Opens a lane, once, whose calls may take as long as a test says."""

    lane: Lane

    def __init__(self) -> None:
        self.patience = Watched(60.0)

    def open_lane(self, name: str, deadline: Watched[float]) -> Lane:
        assert deadline.value < 10, "whoever looks for hardware waits for it"
        self.lane = Lane(name, deadline=self.patience)
        return self.lane


@pytest.fixture
def disk() -> Iterator[threading.Event]:
    """Yield what is set while the disk answers."""
    answers = threading.Event()
    answers.set()
    yield answers
    answers.set()


def test_a_host_without_the_file_has_nothing_to_say(tmp_path: Path) -> None:
    assert read_tpu_env(tpu_env_path(HostRoot.under(tmp_path))) == TpuEnvFile()


def test_the_file_is_read(tmp_path: Path) -> None:
    path = tpu_env_path(HostRoot.under(tmp_path))
    path.parent.mkdir(parents=True)
    path.write_text("TOPOLOGY: '2x4'\n")
    assert read_tpu_env(path).facts.topology == "2x4"


def test_a_file_that_is_a_folder_or_no_text_is_a_named_problem(tmp_path: Path) -> None:
    (problem,) = read_tpu_env(tmp_path).problems
    assert str(tmp_path) in problem
    odd = tmp_path / "tpu-env"
    odd.write_bytes(b"\xff\xfe\x00" * 100_000)
    assert read_tpu_env(odd).problems


async def test_a_disk_that_hangs_holds_up_no_grant_and_what_was_read_before_counts(
    disk: threading.Event,
) -> None:
    topologies, lanes = iter(("4x4", "4x8", "8x8")), _OneLane()

    def read() -> TpuEnvFile:
        disk.wait(60)  # if on the loop, this test fails in the end
        return TpuEnvFile(facts=TpuHostFacts(topology=next(topologies)))

    adapter = tpus_of(Tpus, from_file=read, lanes=lanes)
    adapter.generation = "v5e"
    found = inventory({TPU_RESOURCE: silicon(**{f"d{n}": str(n) for n in range(8)})})

    def granted() -> str:
        return adapter.grant(TPU_RESOURCE, found.devices, found, by_claim=False).envs[
            "TPU_TOPOLOGY"
        ]

    await adapter.prepare(found)
    with closing(lanes.lane):
        assert (granted(), any(adapter.notes().values())) == ("4x4", False)
        disk.clear()
        lanes.patience.set(0.05)
        await adapter.prepare(found)
        lanes.patience.set(60.0)
        async with asyncio.timeout(30.0):  # a call that hangs is not waited for again
            await adapter.prepare(found)
        assert granted() == "4x4"
        assert all("its disk does not answer" in text for (text,) in adapter.notes().values())
        disk.set()
        await until(lambda: lanes.lane.stuck_since is None)
        await adapter.prepare(found)
        assert (granted(), any(adapter.notes().values())) == ("8x8", False)
