"""GPUs on a whole node: the real daemon, the real pynvml, and a library that does as NVML's says.

The daemon is a process of its own: pynvml has one library for all of a process.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.gpu_health import kept_of_gpus
from fakes.gpustage import GPU, wants
from fakes.ledgers import stored
from fakes.nvml import build
from fakes.stage import TPU, asks, pod
from simulated.nvml import GIB, Node, Slice, uuid
from simulated.pods import PodSpec

NOT_SUPPORTED, LOST = 3, 15


async def test_a_driver_that_comes_after_the_daemon_is_found(gpu_stage: Any) -> None:
    """As if it came after 20 s: the daemon is up, serves its chip, and has looked for it in vain."""
    async with gpu_stage() as node:
        await node.stage.run(pod("tpu"))
        await node.stage.for_some_beats()
        assert list(node.stage.kubelet.devices.endpoints) == [TPU]
        await node.arrive(8)
        made = await node.stage.run(wants("pod", 2))
        (answer,) = node.stage.answers(made)
        had = answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",")
        assert sorted(had) == sorted(node.stage.ids(made, GPU))
        assert [each.container_path for each in answer.devices][:2] == [
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
        ]


async def test_what_goes_with_gpus_and_how_they_are_named_is_as_was_set(gpu_stage: Any) -> None:
    chosen = {
        "deviceListStrategy": ["volume-mounts"],
        "deviceIdStrategy": "index",
        "passDeviceSpecs": False,
        "gdrcopyEnabled": True,
        "gdsEnabled": True,
        "mofedEnabled": True,
    }
    async with gpu_stage(**chosen) as node:
        await node.arrive(1)
        made = await node.stage.run(wants("pod", 1))
        (answer,) = node.stage.answers(made)
        assert dict(answer.envs) == {
            "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices",
            "NVIDIA_GDRCOPY": "enabled",
            "NVIDIA_GDS": "enabled",
            "NVIDIA_MOFED": "enabled",
        }
        assert [(each.host_path, each.container_path) for each in answer.mounts] == [
            ("/dev/null", "/var/run/nvidia-container-devices/0")
        ]
        assert not answer.devices


async def test_a_driver_that_is_replaced_by_another_version_needs_no_restart(
    gpu_stage: Any, short_path: Path
) -> None:
    """The daemon has the former library open thrice: to read, for the health, for the events."""
    root = short_path / "root"
    folders = {version: short_path / version for version in ("550", "570")}
    for version, folder in folders.items():
        folder.mkdir()
        build(folder, version=version)
    mounted = root / "usr/lib64/libnvidia-ml.so.1"
    mounted.parent.mkdir(parents=True)
    (folders["550"] / mounted.name).rename(mounted)
    async with gpu_stage(driverRoot=str(root)) as node:
        node.gpus.show(Node(driver="550"))
        await node.arrive(2)
        (folders["570"] / mounted.name).rename(mounted)
        node.gpus.replace_driver("570")
        await node.until_healthy()
        await node.until_healthy(0, 1)
        node.gpus.xid(uuid(1), 79)  # and its events are heard by the new one
        await node.until_healthy(0)


async def test_of_eight_gpus_one_is_lost_and_seven_go_on_being_allocated(gpu_stage: Any) -> None:
    async with gpu_stage() as node:
        await node.arrive(8)
        node.gpus.change(3, lambda card: replace(card, errors={"*": LOST}))
        await node.until_healthy(0, 1, 2, 4, 5, 6, 7)
        assert any("NVML_ERROR_GPU_IS_LOST" in each for each in await node.reasons(3))
        # Of those behind the one CPU three are left, so that four together are behind the other.
        near = await node.stage.run(wants("four", 4))
        assert node.stage.ids(near, GPU) == {uuid(index) for index in (4, 5, 6, 7)}
        await node.stage.end(near)
        await node.stage.until_free()
        made = await node.stage.run(wants("seven", 7))
        assert node.stage.ids(made, GPU) == {uuid(index) for index in range(8) if index != 3}
        node.gpus.change(3, lambda card: replace(card, errors={}))
        await node.until_healthy(*range(8))


async def test_a_gpu_whose_uuid_is_garbage_is_unhealthy_and_one_whose_name_is_goes_on(
    gpu_stage: Any,
) -> None:
    garbage = "\udcff\udcfe"
    async with gpu_stage() as node:
        await node.arrive(4)
        node.gpus.change(1, lambda card: replace(card, name=garbage))
        node.gpus.change(2, lambda card: replace(card, uuid=garbage))
        await node.until_healthy(0, 1, 3)
        await node.until_said(2, "an answer that is not text")
        made = await node.stage.run(wants("pod", 3))
        assert node.stage.ids(made, GPU) == {uuid(0), uuid(1), uuid(3)}
        node.gpus.change(1, lambda card: replace(card, name="NVIDIA H100 80GB HBM3"))
        node.gpus.change(2, lambda card: replace(card, uuid=uuid(2)))
        await node.until_healthy(0, 1, 2, 3)


async def test_a_gpu_that_supports_next_to_nothing_and_whose_events_cannot_be_heard_is_allocated(
    gpu_stage: Any,
) -> None:
    async with gpu_stage() as node:
        asked = ("MemoryInfo", "MigMode", "Temperature", "RemappedRows", "NvLinkState")
        errors = {f"nvmlDeviceGet{each}": NOT_SUPPORTED for each in asked}
        await node.arrive(1, errors=errors, events=0)
        await node.until_said(0, "events cannot be received")
        made = await node.stage.run(wants("pod", 1))
        await node.stage.end(made)
        await node.stage.until_free()


async def test_a_killed_daemon_does_not_forget_a_fatal_xid(gpu_stage: Any) -> None:
    async with gpu_stage() as node:
        await node.arrive(2)
        node.gpus.xid(uuid(1), 48)
        await node.until_healthy(0)
        await node.stage.until(
            lambda: any(gpu.xids for gpu in kept_of_gpus(node.stage.state).values()),
            lambda: "the mark to be on disk",
        )
        node.gpus.show(replace(node.gpus.stub, events=()))
        await node.stage.kill_and_start()
        await node.until_healthy(0)
        await node.stage.for_some_beats()
        await node.until_healthy(0)
        assert any("Xid 48" in each for each in await node.reasons(1))


async def test_a_person_clears_an_xid_that_nothing_else_clears_and_is_named_for_it(
    gpu_stage: Any,
) -> None:
    async with gpu_stage() as node:
        await node.arrive(2)
        node.gpus.xid(uuid(1), 54)
        await node.until_said(1, "needs a repair by a person")
        node.gpus.leave()
        await node.until_healthy()
        assert any("its driver is away" in each for each in await node.reasons(0))
        node.gpus.arrive(2)
        await node.until_healthy(0)
        await node.stage.for_some_beats()
        assert node.healthy() == {uuid(0)}, "no reload of the driver mends a cable"

        done = await node.stage.asked("unquarantine", device=uuid(1))
        assert "trusted again despite Xid 54" in done["text"]
        await node.until_healthy(0, 1)
        (told,) = [m for m in await node.stage.asked("history") if "Xid 54" in m["evidence"]]
        assert f"asked by uid {os.getuid()}, pid " in told["evidence"]
        assert await node.stage.asked("unquarantine", device=uuid(1)) is None, "nothing is left"
        await node.stage.until(
            lambda: not any(gpu.xids for gpu in kept_of_gpus(node.stage.state).values()),
            lambda: "the mark to be gone from the disk, too",
        )
        node.gpus.xid(uuid(1), 54)
        await node.until_healthy(0)


async def test_a_gpu_that_an_orphan_has_open_is_waited_for_and_the_orphan_is_ended(
    gpu_stage: Any,
) -> None:
    async with gpu_stage() as node:
        await node.arrive(2)
        former = await node.stage.run(wants("former", 2, runs_for=1.0, orphan=1))
        orphan = await node.stage.orphan(former)
        following = await node.stage.submit(wants("next", 2))
        await node.stage.waiting(following, f"pid {orphan}", former)
        await node.stage.running(following)
        assert orphan not in node.stage.orphans(former)
        assert any(row["to"] == "reclaiming" for row in await node.stage.ever("reclaiming"))


async def test_a_killed_daemon_does_not_forget_that_memory_leaked(gpu_stage: Any) -> None:
    async with gpu_stage(memoryDeadline="300ms") as node:
        await node.arrive(1)
        await node.stage.until(
            lambda: "nvidia/idle" in stored(node.stage.state).kept,
            lambda: "its idle memory to be on disk",
        )
        former = await node.stage.run(wants("former", 1))
        node.gpus.change(0, lambda card: replace(card, used=70 * GIB))
        await node.stage.end(former)
        await node.stage.until_locks({uuid(0): "releasing"})
        await node.stage.kill_and_start()
        await node.until_healthy(0)
        following = await node.stage.submit(wants("next", 1))
        await node.stage.waiting(following, "its memory is not freed", "nvidia-smi --gpu-reset")
        assert await node.stage.locks() == {uuid(0): "releasing"}
        node.gpus.change(0, lambda card: replace(card, used=0))
        await node.stage.running(following)


async def test_a_gpu_that_nvml_leaves_out_is_unhealthy_to_the_next_daemon_too(
    gpu_stage: Any,
) -> None:
    """As NVML does that is begun while a GPU is lost; the kernel still has it on the driver."""
    async with gpu_stage() as node:
        node.gpus.arrive(2)
        bound = node.stage.node.root.sys / "bus/pci/devices/0000:11:00.0/driver"
        bound.parent.mkdir(parents=True)
        bound.symlink_to("../../../../bus/pci/drivers/nvidia")
        await node.until_healthy(0, 1)
        await node.stage.until(
            lambda: all(gpu.pci for gpu in kept_of_gpus(node.stage.state).values()),
            lambda: "where the GPUs are to be on disk",
        )
        node.gpus.show(replace(node.gpus.stub, cards=node.gpus.stub.cards[:1]))
        await node.until_said(1, "does not list this GPU any more")
        await node.stage.kill_and_start()
        await node.until_said(1, "does not list this GPU any more")
        await node.until_healthy(0)


@contextlib.contextmanager
def _outside(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_what_computes_outside_of_pods_has_a_gpu_and_a_monitoring_agent_does_not(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(others={"withholdAfter": "1h"}, monitors=["sleep"]) as node:
        await node.arrive(2)
        with (
            _outside("sleep", "600") as agent,
            _outside(sys.executable, "-c", "input()") as trainer,
        ):
            for process in (agent, trainer):
                node.stage.node.add_process(process.pid, "/system.slice")
            for index in range(2):
                uses = (("compute", agent.pid, GIB),)
                node.gpus.change(index, lambda card, uses=uses: replace(card, processes=uses))
            first = await node.stage.run(wants("beside-the-agent", 1))
            left = 1 if uuid(0) in node.stage.ids(first, GPU) else 0
            # A GPU that is known to be foreign is offered to nobody: it is taken during the pull.
            waits = await node.stage.submit(replace(wants("behind-the-trainer", 1), pull=2.0))
            uses = (("compute", trainer.pid, GIB),)
            node.gpus.change(left, lambda card: replace(card, processes=uses))
            await node.stage.waiting(waits, f"pid {trainer.pid}", "outside any pod")
        node.gpus.change(left, lambda card: replace(card, processes=()))
        await node.stage.running(waits)


async def test_a_gpu_divided_anew_is_advertised_anew_without_a_restart(gpu_stage: Any) -> None:
    small, half = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    async with gpu_stage(migStrategy="mixed", passDeviceSpecs=False) as node:
        await node.arrive(2)
        node.gpus.change(
            1,
            lambda card: replace(card, mig=1, slices=(Slice("MIG-a", gi=7), Slice("MIG-b", gi=8))),
        )
        await node.until_offered("MIG-a", "MIG-b", resource=small)
        await node.until_healthy(0)
        models = {row["id"]: row["model"] for row in await node.stage.asked("devices")}
        assert models["MIG-a"] == f"{models[uuid(0)]} MIG 1g.10gb"
        made = await node.stage.run(PodSpec(name="sliced", containers=(asks(small, 1),)))
        (had,) = node.stage.ids(made, small)
        await node.stage.end(made)
        await node.stage.until_free()
        assert had in {"MIG-a", "MIG-b"}
        other = Slice("MIG-c", gi=1, profile="3g.40gb", slices=(3, 3))
        node.gpus.change(1, lambda card: replace(card, slices=(other,)))
        await node.until_offered("MIG-c", resource=half)
        await node.until_offered(resource=small)
        node.gpus.change(1, lambda card: replace(card, mig=0, slices=()))
        await node.until_healthy(0, 1)
        await node.until_offered(resource=half)


async def test_a_pod_starts_again_on_a_slice_that_its_strategy_does_not_advertise_any_more(
    gpu_stage: Any,
) -> None:
    async with gpu_stage(migStrategy="single", passDeviceSpecs=False) as node:
        node.gpus.arrive(3, mig=1)
        for index in range(3):
            node.gpus.change(
                index, lambda card, at=index: replace(card, slices=(Slice(f"MIG-{at}", gi=7),))
            )
        await node.until_offered("MIG-0", "MIG-1", "MIG-2")
        work = asks(GPU, 1, runs_for=1.0)
        made = await node.stage.run(PodSpec(name="works", containers=(work,), restart="Always"))
        (its,) = node.stage.ids(made, GPU)
        others = {0, 1, 2} - {int(its[-1])}
        for index in others:
            new = Slice(f"MIG-{index}b", gi=1, profile="3g.40gb", slices=(3, 3), mib=40000)
            node.gpus.change(index, lambda card, new=new: replace(card, slices=(new,)))
        await node.until_offered(its, *(f"MIG-{index}b" for index in others))
        starts = made.starts
        await node.stage.until(
            lambda: made.starts > starts + 1, lambda: f"it to start again; {made.waiting}"
        )
        await node.stage.end(made)
        await node.stage.until_free()


async def test_a_gpu_is_not_whole_for_others_while_a_pod_has_a_slice_that_it_was_divided_into(
    gpu_stage: Any,
) -> None:
    small = "nvidia.com/mig-1g.10gb"
    async with gpu_stage(migStrategy="mixed", passDeviceSpecs=False) as node:
        await node.arrive(2)
        node.gpus.change(1, lambda card: replace(card, mig=1, slices=(Slice("MIG-a", gi=7),)))
        await node.until_offered("MIG-a", resource=small)
        made = await node.stage.run(PodSpec(name="sliced", containers=(asks(small, 1),)))
        node.gpus.change(1, lambda card: replace(card, mig=0, slices=()))
        await node.until_offered(resource=small)
        await node.stage.until(
            lambda: uuid(1) in node.stage.kubelet.messages[GPU][-1], "the whole GPU to be there"
        )
        await node.stage.for_some_beats()
        await node.until_healthy(0)
        await node.stage.end(made)
        await node.until_healthy(0, 1)
