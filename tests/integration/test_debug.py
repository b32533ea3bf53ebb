"""What a developer is told at night: everything, as JSON, on the control socket and nowhere else."""

import asyncio
import enum
import json
import math
import os
from pathlib import Path

import pytest

from fakes.http import served
from fakes.stage import CHIPS, TPU, stage
from holdfast.app.answers.debug import as_json
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from ports import free_port

_PARTS = {
    "versions",
    "process",
    "settings",
    "checks",
    "inventory",
    "discovery",
    "book",
    "claims",
    "ledger",
    "dra",
    "kubelet",
    "cdi",
    "gate",
    "watch",
    "resets",
    "scan",
    "lanes",
    "drift",
    "adapters",
}


async def test_everything_is_told_as_json(short_path: Path) -> None:
    async with stage(short_path) as node:
        await node.allocate(CHIPS[0])
        state = await node.asked("debug")

    assert set(state) == _PARTS
    assert state["process"]["pid"] == os.getpid()
    assert state["settings"]["stateDir"] == str(node.state)
    assert [each["name"]["id"] for each in state["inventory"]["devices"]] == list(CHIPS)
    assert state["book"]["locks"][f"{TPU}/{CHIPS[0]}"]["state"] == "held"
    assert state["kubelet"]["registrations"][TPU]["registered"] is True
    assert state["lanes"]["ledger"]["stuckFor"] is None
    assert state["scan"]["last"]["gaps"] == []
    assert any("reclaim/watcher.py" in each for each in state["process"]["tasks"]["watcher"])
    assert any("lane.py" in each for each in state["process"]["threads"]["lane-scan"])
    assert state["versions"]["holdfast"]
    json.dumps(state, allow_nan=False)


async def test_nothing_of_it_is_served_over_http(short_path: Path) -> None:
    port = free_port()
    hidden = ("/debug", "/debug/state", "/debug/pprof", "/state", "/config")
    async with stage(short_path, http={"port": port}) as node:
        await node.allocate(CHIPS[0])
        pod = node.kubelet.count(TPU, CHIPS[0]).uid

        async def known() -> bool:
            return pod in json.dumps((await node.asked("debug"))["book"]["locks"])

        await node.until(known, "the pod to be known")
        answers = {path: await asyncio.to_thread(served, port, path) for path in hidden}
        others = ("/readyz", "/livez", "/metrics")
        shown = [await asyncio.to_thread(served, port, path) for path in others]

    assert {status for status, _ in answers.values()} == {404}
    for _, text in (*answers.values(), *shown):
        assert pod not in text, "pods are the node's business"


async def test_the_command_prints_it(short_path: Path) -> None:
    async with stage(short_path) as node:
        told = await node.command("debug")

    assert set(json.loads(told.stdout)) == _PARTS


class _Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (DeviceName(ResourceName("r"), DeviceId("d")), {"resource": "r", "id": "d"}),
        ({DeviceName(ResourceName("r"), DeviceId("d")): (1, None)}, {"r/d": [1, None]}),
        (frozenset({"b", "a"}), ["a", "b"]),
        (_Colour.RED, "red"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (Path("/x"), "/x"),
        (True, True),
    ],
)
def test_every_kind_of_value_becomes_json(value: object, told: object) -> None:
    assert as_json(value) == told
