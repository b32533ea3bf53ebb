"""What can never work is refused at once, with the reason; everything else waits its turn."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.allocators import allocator
from fakes.books import device_of, name
from fakes.ledgers import ledger_in
from fakes.opener import stranger
from fakes.stage import CHIPS, TPU, Stage, pod, stage
from fakes.tpus import plain_tpus
from holdfast.discovery.source import Sources
from holdfast.errors import AllocationRefusedError
from holdfast.model.devices import DeviceKind, Inventory
from holdfast.model.ids import (
    DeviceId,
    ResourceName,
)
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched

A, B, C, D = CHIPS


async def test_any_number_of_ids_is_granted_once_or_refused_with_the_known_ones(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        answer = await node.allocate()
        assert (list(answer.devices), dict(answer.envs)) == ([], {})
        assert await node.pre_start() == ""

        said = await node.refusal(A, "0000:99:00.0")
        assert "cannot allocate google.com/tpu/0000:99:00.0: the node has no such device" in said
        assert A in said
        said = await node.refusal(*(f"0000:{number:02x}:1f.7" for number in range(256)))
        assert "the node has no such device" in said
        assert await node.locks() == {}

        answer = await node.allocate(A, A, A)
        paths = [each.host_path for each in answer.devices]
        assert paths == ["/dev/vfio/10", "/dev/vfio/vfio"]
        assert await node.locks() == {A: "held"}
        answer = await node.allocate(*(CHIPS * 200))
        assert len(answer.devices) == len(CHIPS) + 1


async def test_a_topology_that_cannot_be_is_told_with_each_chip(
    short_path: Path,
) -> None:
    async with stage(short_path, own_process=True, tpu={"topology": "3x5"}) as node:
        rows = await node.asked("devices")
        reasons = {row["id"]: row["reasons"] for row in rows}
        assert {row["health"] for row in rows} == {"Healthy"}
        assert "TPU host fact not used" in node.log
    assert reasons.keys() == set(CHIPS)
    assert all(
        "topology '3x5' of the configuration is not used" in str(r) for r in reasons.values()
    )


async def test_of_many_devices_a_refusal_names_some_and_counts_the_rest(tmp_path: Path) -> None:
    resource = ResourceName("nvidia.com/gpu")
    devices = tuple(
        device_of(name(f"MIG-{place}", resource), f"part/{place}", kind=DeviceKind.DRIVER)
        for place in range(500)
    )
    inventory = Watched(Inventory(resources=(resource,), devices=devices))

    with contextlib.closing(Lane("kubelet", deadline=60.0)) as lane:
        async with ledger_in(tmp_path) as ledger:
            made = allocator(ledger, inventory, Sources(), lane)
            with pytest.raises(AllocationRefusedError) as refusal:
                await made.allocate(resource, (DeviceId("MIG-x"),))

    assert "MIG-0, " in str(refusal.value)
    assert str(refusal.value).endswith(": MIG-0, MIG-1, MIG-2 and 497 more)")
    assert len(str(refusal.value)) < 400


async def test_a_disk_that_does_not_answer_makes_no_allocate_wait(tmp_path: Path) -> None:
    """The gate writes it down later; what is recorded without a look could be over at once."""
    resource, answers = ResourceName("google.com/tpu"), threading.Event()
    device = device_of(name("a", resource), "pci/a", source="tpu")

    with contextlib.closing(Lane("kubelet", deadline=60.0)) as stuck:
        async with ledger_in(tmp_path) as ledger:
            limit = Watched(3600.0)
            inventory = Watched(Inventory(resources=(resource,), devices=(device,)))
            made = allocator(
                ledger, inventory, Sources([plain_tpus()]), stuck, commit_timeout=limit
            )
            limit.set(0.05)
            hanging = asyncio.create_task(stuck.run(answers.wait))
            await asyncio.sleep(0)  # it is in the queue before the look
            try:
                answer = await made.allocate(resource, (DeviceId("a"),))
            finally:
                answers.set()
                await hanging
            assert answer.envs
            assert ledger.book.value.allocations == {}


async def test_a_group_with_a_member_on_a_native_driver_is_refused(short_path: Path) -> None:
    async with stage(short_path) as node:
        node.node.tree.function("0000:00:05.1", vendor=0x8086, driver="e1000e", group=10)
        await node.until(lambda: A not in node.healthy(), "the chip to become Unhealthy")
        assert "0000:00:05.1" in await node.refusal(A)


async def test_a_node_with_another_devices_number_is_refused(short_path: Path) -> None:
    async with stage(short_path, discovery={"rescan": "1h"}) as node:
        path = node.node.tree.node("/dev/vfio/10")
        path.unlink()
        path.symlink_to("/dev/null")
        said = await node.refusal(A)
        assert "/dev/vfio/10 is not this device any more" in said
        assert "remove the stale node" in said


async def test_a_device_in_foreign_hands_is_queued_and_not_refused(short_path: Path) -> None:
    async with stage(short_path) as node:
        with stranger(node.node, "/dev/vfio/10") as holder:
            await node.until_locks({A: "foreign"})
            await _expect_queued(node, holder.pid)


async def test_a_device_in_passing_ill_health_is_queued_and_not_refused(short_path: Path) -> None:
    async with stage(short_path) as node:
        node.node.tree.unbind(A)
        await node.until(lambda: A not in node.healthy(), "the chip to become Unhealthy")
        await node.allocate(A)
        node.kubelet.count(TPU, A)
        assert "waiting for google.com/tpu: " in await node.pre_start(A)
        node.node.tree.bind(A, "vfio-pci")
        await node.until(lambda: A in node.healthy(), "the chip to come back")
        assert await node.pre_start(A) == ""


async def test_a_ledger_that_cannot_commit_delays_starts_and_loses_no_pod(
    short_path: Path,
) -> None:
    async with stage(short_path, allocate={"commitTimeout": "1s"}, withholdAfter="2s") as node:
        with _locked(node.state / "ledger.db"):
            answer = await node.allocate(A)
            assert [each.host_path for each in answer.devices][:1] == ["/dev/vfio/10"]
            uid = node.kubelet.count(TPU, A).uid
            said = await node.pre_start(A)
            assert "cannot write the ledger" in said
            assert "database is locked" in said
            await node.until(lambda: node.healthy() == {A}, "what no pod has to be withheld")
            status = await node.asked("status")
            (ledger,) = (each for each in status["checks"] if each["name"] == "ledger")
            assert not ledger["passes"]
            assert "no write has succeeded for" in ledger["reason"]
        # Nobody asks for anything, and yet it finds out by itself that the disk is well again.
        await node.until(lambda: node.healthy() == set(CHIPS), "everything to be offered again")
        assert await node.pre_start(A) == ""
        (row,) = await node.asked("locks")
        assert (row["state"], row["pod"]) == ("held", uid)


@pytest.mark.parametrize("content", [b"no database at all" * 300, b"\0" * 8192, None])
async def test_a_damaged_or_newer_ledger_is_kept_beside_and_the_checkpoint_says_who_has_what(
    short_path: Path, content: bytes | None
) -> None:
    async with stage(short_path) as node:
        running = await node.run(pod("a"))
        await node.stop()
        ledger = node.state / "ledger.db"
        if content is not None:
            ledger.write_bytes(content)
        else:
            with contextlib.closing(sqlite3.connect(ledger)) as db:
                db.execute("PRAGMA user_version = 99")
        before = ledger.read_bytes()
        await node.start_and_register()
        await node.until_locks(dict.fromkeys(node.ids(running), "held"))
        assert (node.state / "ledger.db.unreadable-1").read_bytes() == before
        await node.run(pod("b"))


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep everybody else from writing the database, as a backup or a hung disk does."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            db.execute("ROLLBACK")


async def _expect_queued(node: Stage, holder: int) -> None:
    """Allocate, and be told at the gate which process is waited for."""
    await node.allocate(A)
    node.kubelet.count(TPU, A)
    assert f"pid {holder}" in await node.pre_start(A)
    assert "queued" in [row["state"] for row in await node.asked("locks")]
