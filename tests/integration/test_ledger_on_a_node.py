"""A whole node whose ledger loses its disk or its files: told, withheld, and well again by itself."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest

from fakes.commands import holdfast
from fakes.faultydisk import FaultyDisk
from fakes.http import metrics
from fakes.smalldisk import fill, mounted
from fakes.stage import Stage, pod, stage
from ports import free_port

FILE = "ledger.db"

_FAULTS = {
    "dead": "cannot write the ledger",
    "full": "full",
    "read-only": "cannot write the ledger",
    "hanging": "no answer within",
    "deaf": "replace the disk",
    "forgetful": "replace the disk",
}
"""Each fault of the library, and what is said of it."""


def _told(node: Stage) -> list[str]:
    """Return what the log tells of proofs: why the ledger cannot be written, or that it can."""
    lines = (node.folder / "daemon.log").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [
        each["reason"] if each["event"] == "ledger cannot be written" else each["event"]
        for each in events
        if each["event"] in {"ledger cannot be written", "ledger can be written again"}
    ]


@pytest.mark.parametrize("fault", _FAULTS)
async def test_a_disk_that_fails_is_told_and_withheld_until_a_write_has_reached_it_again(
    short_path: Path, fault: str
) -> None:
    disk = FaultyDisk(short_path / "faulty", short_path / "state")
    port = free_port()
    async with stage(
        short_path,
        chips=3,
        own_process=True,
        environment=disk.environment,
        withholdAfter="1s",
        http={"port": port, "address": "127.0.0.1"},
    ) as node:
        a = await node.run(pod("a"))
        await node.until_problem("ledger", "")
        disk.breaks(fault)
        await node.until_problem("ledger", _FAULTS[fault])
        await node.until(lambda: node.healthy() == node.ids(a), "what no pod has to be withheld")

        async def shown() -> bool:
            seen = await asyncio.to_thread(metrics, port)
            return seen["holdfast_ledger_failing_seconds"] > 0

        await node.until(shown, "the metric to show it")
        assert _FAULTS[fault] in (node.folder / "daemon.log").read_text()
        disk.is_mended()
        await node.until(lambda: len(node.healthy()) == 3, "all of it to be offered again")
        await node.until_problem("ledger", "")
        b = await node.run(pod("b"))
        again = "ledger can be written again"
        await node.until(lambda: again in _told(node), "the log to say so")
        told = _told(node)
        assert "ledger can be written again" in told
        assert all(one != next_ for one, next_ in pairwise(told)), "it is told when it changes"
        await node.kill_and_start()
        assert set(await node.locks()) == node.ids(a) | node.ids(b)


@pytest.mark.parametrize("fault", ["dead", "deaf", "forgetful"])
async def test_no_container_starts_while_what_is_written_does_not_stay(
    short_path: Path, fault: str
) -> None:
    disk = FaultyDisk(short_path / "faulty", short_path / "state")
    async with stage(
        short_path,
        chips=2,
        own_process=True,
        environment=disk.environment,
        withholdAfter="1h",
    ) as node:
        await node.until_problem("ledger", "")
        disk.breaks(fault)
        await node.until_problem("ledger", _FAULTS[fault])
        a = await node.submit(pod("a"))
        await node.waiting(a, "cannot be recorded", _FAULTS[fault])
        await node.for_some_beats()
        await node.waiting(a, "cannot be recorded", _FAULTS[fault])
        disk.is_mended()
        await node.running(a)
        await node.kill_and_start()
        assert set(await node.locks()) == node.ids(a)


# Its files.


async def test_a_daemon_whose_files_were_removed_loses_nothing_and_keeps_a_second_one_out(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, own_process=True) as node:
        a = await node.run(pod("a"))
        (other,) = node.healthy() - node.ids(a)
        await node.asked("quarantine", device=other, reason="it burns")
        await node.until_problem("ledger", "")
        for file in node.state.iterdir():
            if file.name != "control.sock":
                file.unlink()
        await node.until(
            lambda: all((node.state / each).exists() for each in (FILE, f"{FILE}-wal", "lock")),
            "the files to be there again",
        )
        await node.until(
            lambda: "written again" in (node.folder / "daemon.log").read_text(), "it to be told"
        )
        await node.until_problem("ledger", "")
        second = await holdfast("run", "--config", node.config)
        assert second.returncode == 1
        assert "another holdfast is running on it (pid " in second.stderr
        await node.kill_and_start()
        assert await node.locks() == dict.fromkeys(node.ids(a), "held")
        (mark,) = (await node.asked("status"))["byHand"]
        assert mark["reason"].endswith("it burns")


async def test_a_change_that_takes_a_restart_waits_while_the_ledger_is_in_memory_alone(
    short_path: Path,
) -> None:
    disk = FaultyDisk(short_path / "faulty", short_path / "state")
    async with stage(
        short_path, chips=2, own_process=True, environment=disk.environment, withholdAfter="1h"
    ) as node:
        a = await node.run(pod("a"))
        await node.until_problem("ledger", "")
        disk.breaks("nameless")
        (node.state / FILE).unlink()
        node.configure(tpu={"vbarUrl": "http://127.0.0.1:8353"})
        refused = "it is reloaded when the ledger can be written"
        await node.until(lambda: refused in node.log, "the restart to wait")
        assert "restarting with the changed configuration" not in node.log
        disk.is_mended()
        await node.until(
            lambda: "restarting with the changed configuration" in node.log,
            "it to be tried again by itself",
        )
        await node.until(lambda: node.log.count('"event": "started"') == 2, "the next daemon")
        assert await node.locks() == dict.fromkeys(node.ids(a), "held")


async def test_a_ledger_that_was_copied_and_not_yet_put_in_its_place_is_put_there_later(
    short_path: Path,
) -> None:
    """Its old files are closed by then, and the copy is all there is."""
    disk = FaultyDisk(short_path / "faulty", short_path / "state")
    async with stage(
        short_path, chips=2, own_process=True, environment=disk.environment, withholdAfter="1h"
    ) as node:
        a = await node.run(pod("a"))
        await node.until_problem("ledger", "")
        disk.breaks("nameless")
        (node.state / FILE).unlink()
        await node.until_problem("ledger", "again (ledger.db was removed")
        b = await node.submit(pod("b"))
        await node.waiting(b, "cannot be recorded")
        await node.for_some_beats()
        disk.is_mended()
        await node.running(b)
        await node.until_problem("ledger", "")
        await node.kill_and_start()
        assert set(await node.locks()) == node.ids(a) | node.ids(b)


async def test_on_a_full_disk_a_pod_that_ends_is_released_though_another_was_admitted(
    short_path: Path,
) -> None:
    with mounted(short_path / "state") as disk:
        async with stage(short_path, chips=2, withholdAfter="1h") as node:
            ends = await node.run(pod("ends"))
            await node.until_problem("ledger", "")
            filler = fill(disk)
            await node.until_problem("ledger", "full")
            admitted = await node.submit(pod("admitted"))
            await node.waiting(admitted, "cannot be recorded", "full")
            await node.end(ends)
            await node.until_free()
            filler.unlink()
            await node.until_problem("ledger", "")
            await node.running(admitted)
