"""Readiness on a running daemon: each fault of the node fails its check, and mending it mends it."""

import asyncio
import os
import re
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from fakes.control import control_server
from fakes.http import served
from fakes.kubelet_side import TPU, kubelet_below, kubelet_side, registered, registered_side
from fakes.stage import Stage, stage
from holdfast.app.watches.proof import CONTROL, OwnSockets
from holdfast.kubelet.plugin import socket_path
from holdfast.runtime.clock import SystemClock
from manual_clock import ManualClock
from ports import free_port
from waiting import beside, until

_MANIFEST = Path(__file__).parents[2] / "deploy/manifests/holdfast.yaml"
"""What the chart makes of its defaults."""


async def _checks(node: Stage) -> dict[str, dict[str, Any]]:
    status = await node.asked("status")
    return {check["name"]: check for check in status["checks"]}


async def _until_check(node: Stage, name: str, *, passes: bool, reason: str = "") -> None:
    seen: dict[str, Any] = {}

    async def stands() -> bool:
        seen.update((await _checks(node)).get(name, {}))
        return seen.get("passes") is passes and reason in seen["reason"]

    await node.until(stands, f"{name} to stand so")


async def test_a_node_that_works_is_ready_in_every_point(short_path: Path) -> None:
    port = free_port()
    async with stage(short_path, http={"port": port}):

        async def ready() -> tuple[int, str]:
            return await asyncio.to_thread(served, port, "/readyz")

        async with asyncio.timeout(30):
            while (answer := await ready())[0] != 200:
                await asyncio.sleep(0.05)

    assert "FAILED" not in answer[1]
    for name in (
        f"registered {TPU}",
        f"stream {TPU}",
        f"socket {TPU}",
        "socket control",
        "ledger",
        "lane scan",
        "hardware",
        "devices",
        "first process scan",
        "lock reconciliation",
        "process visibility",
        "checks up to date",
    ):
        assert f"ok     {name} (" in answer[1]


async def test_a_configuration_that_cannot_be_used_stops_no_upgrade_and_a_node_without_service_does(
    short_path: Path,
) -> None:
    """The chart's probe decides: pods that are not ready are replaced all at once."""
    port, manifest = free_port(), yaml.safe_load_all(_MANIFEST.read_text())
    (found,) = [each for each in manifest if each["kind"] == "DaemonSet"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    path = container["readinessProbe"]["httpGet"]["path"]
    async with stage(short_path, own_process=True, http={"port": port}) as node:

        async def answers(path: str, status: int) -> None:
            async def so() -> bool:
                return (await asyncio.to_thread(served, port, path))[0] == status

            await node.until(so, f"{path} to answer {status}")

        await answers("/readyz", 200)
        node.config.write_text("gate: {wiat: 1s}\n")
        await answers("/readyz", 503)
        await _until_check(node, "configuration", passes=False, reason="gate.wiat")
        await answers(path, 200)
        await node.kubelet.stop()
        await answers(path, 503)


async def test_a_start_that_hangs_is_alive_and_not_ready(short_path: Path) -> None:
    """A restart would hang there again: /livez must not ask for one."""
    port, stall = free_port(), 2.0
    async with stage(
        short_path, start=False, http={"port": port}, liveness={"loopStall": stall}
    ) as node:
        checkpoint = short_path / "dp" / "kubelet_internal_checkpoint"
        checkpoint.unlink(missing_ok=True)
        os.mkfifo(checkpoint)  # whoever reads it hangs, as on a disk that does not answer
        node.start()
        await until((node.state / "control.sock").exists)
        (up,) = (await node.asked("status"))["checks"]
        assert (up["name"], up["passes"]) == ("up", False), "and to ask makes nothing ready"
        began, alive = time.monotonic(), []
        async with asyncio.timeout(30):
            while "FAILED up" in (told := await asyncio.to_thread(served, port, "/readyz"))[1]:
                assert told[0] == 503
                assert "scanning the node for the first time" in told[1]
                assert "ok     checks up to date" in told[1], "the loop runs"
                alive.append((await asyncio.to_thread(served, port, "/livez"))[0])
                await asyncio.sleep(0.1)
        took = time.monotonic() - began
        _, after = await asyncio.to_thread(served, port, "/readyz")
        checkpoint.unlink()

    assert took > stall, "it did not hang"
    assert set(alive) == {200}
    assert "FAILED lane kubelet" in after


async def test_the_metrics_of_a_daemon_show_the_longest_turn_of_its_loop(short_path: Path) -> None:
    port = free_port()
    async with stage(short_path, own_process=True, http={"port": port}):
        _, metrics = await asyncio.to_thread(served, port, "/metrics")

    (line,) = re.findall(r"^holdfast_event_loop_stall_seconds (.*)$", metrics, re.MULTILINE)
    assert float(line) > 0.0, "the start alone takes turns that can be measured"


async def test_a_node_without_devices_is_ready_and_says_so(short_path: Path) -> None:
    async with stage(short_path, start=False, tpu={"enabled": False}) as node:
        node.start()
        await until((node.state / "control.sock").exists)
        await _until_check(node, "devices", passes=True, reason="no devices on this node")
        assert (await node.asked("status"))["noDevices"] is True


async def test_a_socket_of_ours_that_no_longer_answers_is_found_by_dialling_it(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (_, side):
        control = control_server(short_path, {"ping": lambda _: "ping"})
        await control.start()
        sockets = OwnSockets(side.registrar, short_path, clock=SystemClock())
        before = {name: dial.problem for name, dial in sockets.results.items()}
        await sockets.dial()
        well = {name: dial.problem for name, dial in sockets.results.items()}
        (one,) = side.registrar._each.values()
        assert one.server is not None
        assert one.server.socket._server is not None
        await one.server.socket._server.stop(None)  # the file stays, and nobody listens
        await control.close()
        await sockets.dial()
        dead = {name: dial.problem for name, dial in sockets.results.items()}

    assert before == {CONTROL: "not dialled yet", TPU: "not dialled yet"}
    assert well == {CONTROL: "", TPU: ""}
    assert "cannot reach our own socket" in dead[CONTROL]
    assert "cannot reach our own socket" in dead[TPU]


async def test_a_socket_that_another_has_put_in_place_of_ours_is_not_ours(
    short_path: Path,
) -> None:
    async with registered_side(short_path, interval=60.0) as (_, side):
        path = socket_path(short_path / "dp", "holdfast", TPU)
        with socket.socket(socket.AF_UNIX) as other, closing(socket.socket(socket.AF_UNIX)) as con:
            other.bind(str(path.with_suffix(".other")))
            other.listen()
            con.bind(str(short_path / "control.sock"))
            con.listen()
            (one,) = side.registrar._each.values()
            server = one.server
            assert server is not None
            path.with_suffix(".other").rename(path)
            sockets = OwnSockets(side.registrar, short_path, clock=SystemClock())
            await sockets._note(TPU, server.answers(2.0))
            await sockets._note(CONTROL, sockets._ping())
            known = sockets.results

    assert "it is not there any more" in known[TPU].problem
    assert "no answer within" in known[CONTROL].problem


async def test_a_control_socket_that_gives_another_answer_is_not_ours(short_path: Path) -> None:
    async with kubelet_below(short_path), kubelet_side(short_path) as side:
        other = control_server(short_path, {"ping": lambda _: "pong"})
        await other.start()
        sockets = OwnSockets(side.registrar, short_path, clock=SystemClock())
        await sockets.dial()
        known = sockets.results
        await other.close()

    assert "another answers" in known[CONTROL].problem


async def test_sockets_are_dialled_once_a_registration_has_settled(short_path: Path) -> None:
    class Counting(OwnSockets):
        dials = 0

        async def dial(self) -> None:
            self.dials += 1

    clock = ManualClock()
    async with registered_side(short_path) as (kubelet, side):
        sockets = Counting(side.registrar, short_path, clock=clock)
        async with beside(sockets.run()):
            await until(lambda: sockets.dials == 1)
            await kubelet.restart()
            await registered(side, times=2)
            await until(lambda: clock.sleepers == 1)
            assert sockets.dials == 1
            await clock.advance(1.0)
            await until(lambda: sockets.dials == 2)
