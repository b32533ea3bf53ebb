"""SIGHUP has the daemon begin anew with its configuration as it is now, and never ends it."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fakes.stage import TPU, Stage, pod, stage
from holdfast.app.daemon import run
from holdfast.app.reload import may_begin_anew, tied
from holdfast.settings import Settings, convert
from simulated.node import SimulatedNode
from waiting import until

_OTHER = "example.com/chip"


async def _registers_anew(node: Stage, resource: str = TPU) -> None:
    """Send SIGHUP, and return when kubelet can grant *resource* by the daemon that follows."""
    before = node.log.count('"event": "registered with kubelet"')
    node.process.send_signal(signal.SIGHUP)
    await node.until(
        lambda: node.log.count('"event": "registered with kubelet"') > before,
        "the daemon to register anew",
    )
    # Kubelet has a new endpoint by now, without a device until it hears the first list.
    await node.until(lambda: node.healthy(resource), f"{resource} to be offered")
    assert node.process.poll() is None


async def _refuses(node: Stage, why: str) -> None:
    """Send SIGHUP, and return when the daemon has said why it stays as it is."""
    before, heard = node.log.count("configuration not reloaded"), node.heard()
    node.process.send_signal(signal.SIGHUP)
    await node.until(
        lambda: node.log.count("configuration not reloaded") > before, "the reload to be refused"
    )
    assert why in node.log
    assert "stopping" not in node.log
    assert node.process.poll() is None
    assert node.heard() == heard
    assert node.healthy()


async def test_it_registers_anew_in_the_same_process_and_a_pod_keeps_its_device(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, own_process=True) as node:
        holder = await node.run(pod("holder"))
        (chip,) = node.ids(holder)
        await node.until_locks({chip: "held"})

        await _registers_anew(node)

        assert await node.locks() == {chip: "held"}
        assert node.orphans(holder), "its program runs on"
        await node.run(pod("next"))


async def test_what_changed_in_the_file_holds_from_then_on(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        node.configure(tpu={"resourceName": _OTHER}, log={"level": "debug"})

        await _registers_anew(node, _OTHER)

        # Once more: what SIGHUP does is done in the process that it made, too.
        node.configure(tpu={"resourceName": TPU})
        await _registers_anew(node)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gate": {"wiat": "1s"}}, "gate.wiat: there is no such key; did you mean gate.wait?"),
        ({"tpu": {"resourceName": "chip"}}, "tpu.resourceName"),
        ({"stateDir": "/var/lib/elsewhere"}, "stateDir changed"),
    ],
)
async def test_a_file_that_cannot_be_used_changes_nothing_and_is_told(
    short_path: Path, changes: dict[str, Any], why: str
) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        node.configure(**changes)
        await _refuses(node, why)


async def test_a_file_that_is_gone_changes_nothing_and_is_told(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        config = node.folder / "config.yaml"
        config.rename(node.folder / "moved")
        await _refuses(node, "cannot read")
        (node.folder / "moved").rename(config)
        await _registers_anew(node)


async def test_a_stop_that_comes_while_it_is_about_to_begin_anew_is_not_forgotten(
    short_path: Path,
) -> None:
    node = SimulatedNode(short_path / "node", chips=1)
    names = ("sys", "proc", "dev", "cgroup", "etc", "run")
    settings = convert(
        {
            "stateDir": str(short_path / "state"),
            "host": {name: str(getattr(node.root, name)) for name in names},
            "kubelet": {
                "pluginDir": str(short_path / "dp"),
                "podResourcesSocket": str(short_path / "pr.sock"),
            },
            "http": {"port": 0},
        }
    )

    def stopped_meanwhile() -> Settings:
        os.kill(os.getpid(), signal.SIGTERM)
        return settings

    (short_path / "dp").mkdir()
    daemon = asyncio.create_task(run(settings, stopped_meanwhile))
    try:
        await until((short_path / "state/control.sock").exists, limit=30.0)
        os.kill(os.getpid(), signal.SIGHUP)
        assert await asyncio.wait_for(daemon, 30.0) is False
    finally:
        daemon.cancel()
        await asyncio.gather(daemon, return_exceptions=True)
        node.close()


async def test_while_a_call_hangs_nothing_is_begun_anew() -> None:
    settings = convert({})
    assert await may_begin_anew(settings, lambda: settings, lambda: ())
    assert not await may_begin_anew(settings, lambda: settings, lambda: ("nvml",))
    assert not await may_begin_anew(settings, None, lambda: ())


async def test_while_a_look_at_a_process_hangs_nothing_is_begun_anew(short_path: Path) -> None:
    """The thread of such a look can be where no signal ends it, and execve(2) waits for it."""
    async with stage(short_path, chips=1, own_process=True) as node:
        holder = await node.run(pod("holder"))
        await node.until_locks(dict.fromkeys(node.ids(holder), "held"))
        (pid,) = node.orphans(holder)
        details = node.node.root.proc / str(pid) / "fdinfo"
        details.unlink()
        details.mkdir()
        for fd in range(64):
            os.mkfifo(details / str(fd))
        await node.until_problem("process visibility", "no answer within 2 s")

        await _refuses(node, f"scan of pid {pid}")


def test_keys_that_the_pod_was_made_by_take_another_pod() -> None:
    before = convert({})
    for change, path in (
        ({"stateDir": "/srv/state"}, "stateDir"),
        ({"host": {"dev": "/host/dev"}}, "host"),
        ({"http": {"port": 9000}}, "http"),
        ({"kubelet": {"pluginDir": "/srv/dp"}}, "kubelet.pluginDir"),
        ({"kubelet": {"podResourcesSocket": "/srv/pr.sock"}}, "kubelet.podResourcesSocket"),
    ):
        assert tied(before, convert(change)) == (path,)
    for change in ({"gate": {"wait": "10s"}}, {"kubelet": {"poll": "2s"}}, {}):
        assert tied(before, convert(change)) == ()
