"""What the cluster is told by a daemon with `events.enabled`, at both doors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.claimstage import NAMESPACE, claim_stage
from fakes.controlplane import NODE, ControlPlane, control_plane
from fakes.http import served
from fakes.stage import TPU, Stage, end, pod, stage
from ports import free_port
from simulated.cluster.objects import EVENTS, NODES
from simulated.cluster.server import Rudeness
from simulated.cluster.store import Object, Place
from simulated.pods import Pod

CHIP = f"{TPU}/0000:00:05.0"
_AT_ONCE = {
    "mode": "terminate",
    **dict.fromkeys(("letGoGrace", "orphanGrace", "termGrace", "killGrace"), "100ms"),
}


def events(plane: ControlPlane, reason: str) -> list[Object]:
    found = plane.store.every(EVENTS)
    return [each for each in found if each["reason"] == reason]


def condition(plane: ControlPlane) -> Object:
    node = plane.store.get(Place(kind=NODES, name=NODE))
    found = node.get("status", {}).get("conditions", ())
    return next((each for each in found if each["type"] == "HoldfastDevicesHeld"), {})


@dataclass
class Told:
    """A node with one chip that comes by the device plugin, and the cluster that is told of it."""

    node: Stage
    plane: ControlPlane

    async def one_waits(self) -> tuple[Pod, int]:
        """Return a pod that waits for the chip, and the process of a former pod that has it."""
        old = await self.node.run(pod("old", orphan=1))
        await self.node.until_named(old)
        await self.node.end(old)
        following = await self.node.submit(pod("next"))
        return following, await self.node.orphan(old)

    async def until_condition(self, **wanted: str) -> Object:
        def so() -> bool:
            return condition(self.plane).items() >= wanted.items()

        await self.node.until(so, f"the condition with {wanted}")
        return condition(self.plane)


@contextlib.asynccontextmanager
async def telling(folder: Path, **changes: Any) -> AsyncIterator[Told]:
    with control_plane(folder) as plane:
        settings: dict[str, Any] = {
            "events": {"enabled": True},
            "dra": {"nodeName": NODE, "serviceAccount": str(plane.account)},
            "gate": {"wait": "20s"},
            "withholdAfter": "1s",
            "reclaim": {"mode": "observe"},
            **changes,
        }
        async with stage(
            folder, chips=1, own_process=True, environment=plane.server.environment, **settings
        ) as node:
            yield Told(node=node, plane=plane)


async def test_the_pod_that_waits_is_told_for_whom_and_the_node_what_is_held(
    short_path: Path,
) -> None:
    async with telling(short_path) as at:
        following, left = await at.one_waits()
        await at.node.until(
            lambda: events(at.plane, "WaitingForDevice"), "an event of the pod that waits"
        )
        (waits,) = events(at.plane, "WaitingForDevice")
        about = waits["involvedObject"]
        assert (about["kind"], about["namespace"], about["name"]) == ("Pod", "default", "next")
        assert about["uid"]
        assert f"pid {left}" in waits["message"]
        assert "default/old" in waits["message"]
        await at.node.until(lambda: events(at.plane, "DeviceHeld"), "an event of the node")
        (held,) = events(at.plane, "DeviceHeld")
        assert (held["involvedObject"]["kind"], held["involvedObject"]["name"]) == ("Node", NODE)
        assert CHIP in held["message"]
        assert f"pid {left}" in held["message"]
        shown = await at.until_condition(status="True", reason="DeviceHeld")
        assert f"pid {left}" in shown["message"]
        end(left)
        await at.node.running(following)
        await at.until_condition(status="False", reason="NoDeviceHeld")
        assert len(events(at.plane, "WaitingForDevice")) == 1, "one in a minute"
        assert len(events(at.plane, "DeviceHeld")) == 1, "one in a minute"


async def test_the_node_is_told_which_leftover_was_ended(short_path: Path) -> None:
    async with telling(short_path, reclaim=_AT_ONCE) as at:
        _, left = await at.one_waits()
        await at.node.until(lambda: events(at.plane, "DeviceReclaimed"), "an event of the node")
        (told,) = events(at.plane, "DeviceReclaimed")
        assert told["involvedObject"]["kind"] == "Node"
        assert told["type"] == "Normal"
        assert told["message"].startswith(f"{CHIP} is free again after ending pid {left} ")
        assert "left over from pod default/old" in told["message"]


async def test_the_node_is_told_of_a_quarantine_and_of_its_end(short_path: Path) -> None:
    async with telling(short_path) as at:
        await at.until_condition(status="False")
        await at.node.asked("quarantine", device=CHIP, reason="smells of smoke")
        shown = await at.until_condition(status="True", reason="DeviceQuarantined")
        assert "smells of smoke" in shown["message"]
        (told,) = events(at.plane, "DeviceQuarantined")
        assert "smells of smoke" in told["message"]
        await at.node.asked("unquarantine", device=CHIP)
        await at.until_condition(status="False")


async def test_a_restart_keeps_since_when_the_condition_is_as_it_is(short_path: Path) -> None:
    async with telling(short_path) as at:
        await at.until_condition(status="False")
        node = at.plane.store.get(Place(kind=NODES, name=NODE))
        (shown,) = node["status"]["conditions"]
        # Times are in seconds, and a restart takes less than one.
        shown["lastTransitionTime"] = shown["lastHeartbeatTime"] = "2023-11-14T22:13:20Z"
        at.plane.store.update(Place(kind=NODES, name=NODE), node, subresource="status")
        await at.node.kill_and_start()
        await at.node.until(
            lambda: condition(at.plane)["lastHeartbeatTime"] > "2023-11-14T22:13:20Z",
            "the condition to be written again",
        )
        assert condition(at.plane)["lastTransitionTime"] == "2023-11-14T22:13:20Z"


async def test_the_pod_whose_claim_waits_is_told_for_whom(short_path: Path) -> None:
    settings: dict[str, Any] = {
        "events": {"enabled": True},
        "withholdAfter": "1s",
        "reclaim": {"mode": "observe"},
    }
    async with claim_stage(short_path, unprepare_wait="0s", **settings) as at:
        first = at.allocate("first", 0)
        await at.prepared(first)
        held = at.opens(first.pods[0], 0)
        second = at.allocate("second", 0)
        waiting = asyncio.create_task(at.prepare(second))
        await at.node.until(
            lambda: events(at.plane, "WaitingForDevice"), "an event of the pod that waits"
        )
        (waits,) = events(at.plane, "WaitingForDevice")
        about = waits["involvedObject"]
        assert (about["namespace"], about["name"]) == (NAMESPACE, "pod-of-second-0")
        assert about["uid"] == second.pods[0]
        assert waits["message"].startswith("waiting for google.com/tpu: ")
        assert "claim team/first" in waits["message"]
        await at.unprepare(first)
        await at.node.until(lambda: events(at.plane, "DeviceHeld"), "an event of the node")
        (told,) = events(at.plane, "DeviceHeld")
        assert f"pid {held.pid}" in told["message"]
        held.end()
        answer = await waiting
        assert not answer["second"].error


async def test_pods_start_while_the_server_is_away_and_what_was_not_written_is_counted(
    short_path: Path,
) -> None:
    port = free_port()
    http = {"port": port, "address": "127.0.0.1"}
    async with telling(short_path, http=http) as at:
        at.plane.server.be_rude(Rudeness(stall=600, times=1000))
        following, left = await at.one_waits()

        async def failed() -> bool:
            at.plane.server.cut_all()  # calls hang until then, or for 15 s
            _, shown = await asyncio.to_thread(served, port, "/metrics")
            return 'holdfast_notices_total{about="pod",outcome="failed"} 0.0' not in shown

        await at.node.until(failed, "a failure to be counted")
        assert "cannot notify the cluster" in at.node.log
        end(left)
        await at.node.running(following)


async def test_what_is_not_allowed_stops_nothing_else(short_path: Path) -> None:
    async with telling(short_path) as at:
        at.plane.server.forbidden.add(("create", "events"))
        await at.one_waits()
        await at.until_condition(status="True", reason="DeviceHeld")
        assert not events(at.plane, "DeviceHeld")
        assert "cannot create an Event of" in at.node.log
        at.plane.server.forbidden.clear()


async def test_without_a_service_account_the_daemon_does_all_the_rest(short_path: Path) -> None:
    async with telling(short_path, dra={"serviceAccount": str(short_path / "none")}) as at:
        await at.node.run(pod("first"))
        assert "cannot notify the cluster" in at.node.log
        assert not at.plane.server.requests
