"""A running daemon takes up its configuration as it is now, and is never ended by one."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from fakes.commands import holdfast
from fakes.stage import TPU, Stage, end, pod, stage
from holdfast.app.daemon import run
from holdfast.control import ask
from holdfast.model.node.restarts import FREE, MOST
from holdfast.settings import Settings, convert
from holdfast.settings.sources import LoadedSettings
from simulated.node import SimulatedNode
from waiting import until

_RESTART = {"vbarUrl": "http://127.0.0.1:8353"}
"""Of the section tpu: what takes a restart and changes no device."""


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


def _streams_ended(node: Stage) -> int:
    return node.log.count('"event": "ListAndWatch stream closed"')


async def _refuses(node: Stage, why: str) -> None:
    """Send SIGHUP, and return when the daemon has said why it stays as it is."""
    before, ended = len(node.log), _streams_ended(node)
    node.process.send_signal(signal.SIGHUP)
    # What it said of the former content, once more, may come first.
    await node.until(
        lambda: any(
            "not reloaded" in line and why in line for line in node.log[before:].split("\n")
        ),
        "the reload to be refused",
    )
    assert "stopping" not in node.log
    assert node.process.poll() is None
    assert _streams_ended(node) == ended
    assert node.healthy()


@asynccontextmanager
async def _in_this_process(
    folder: Path, reread: Callable[[Settings], Settings], *files: Path
) -> AsyncIterator["asyncio.Task[LoadedSettings | None]"]:
    """Yield a daemon that runs here and can be asked; *reread* is given what it began with.

    It reads again when one of *files* changes.
    """
    node = SimulatedNode(folder / "node", chips=1)
    names = ("sys", "proc", "dev", "cgroup", "etc", "run")
    settings = convert(
        {
            "stateDir": str(folder / "state"),
            "host": {name: str(getattr(node.root, name)) for name in names},
            "kubelet": {
                "pluginDir": str(folder / "dp"),
                "podResourcesSocket": str(folder / "pr.sock"),
            },
            "http": {"port": 0},
        }
    )
    (folder / "dp").mkdir()
    began = LoadedSettings(settings=settings)
    daemon = asyncio.create_task(
        run(began, lambda _: LoadedSettings(settings=reread(settings)), files=files)
    )
    try:
        await until((folder / "state/control.sock").exists, limit=30.0)
        yield daemon
    finally:
        daemon.cancel()
        await asyncio.gather(daemon, return_exceptions=True)
        node.close()


async def test_it_registers_anew_in_the_same_process_and_pods_keep_their_devices_and_their_turn(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, own_process=True, reclaim={"mode": "observe"}) as node:
        holder = await node.run(pod("holder"))
        following, left = await node.waits_for_orphan()
        (chip,), (other,) = node.ids(holder), node.ids(following)
        await node.until_locks({chip: "held", other: "releasing"})

        node.configure(reclaim={"mode": "observe"}, tpu=_RESTART)
        await _registers_anew(node)

        assert await node.locks() == {chip: "held", other: "releasing"}
        assert node.orphans(holder), "its program runs on"
        await node.waiting(following, f"pid {left}")
        end(left)
        await node.running(following)


async def test_what_can_be_is_taken_up_without_an_end_of_a_stream(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True, reclaim={"mode": "observe"}) as node:
        following, left = await node.waits_for_orphan()
        node.configure(
            reclaim=dict.fromkeys(("letGoGrace", "orphanGrace", "termGrace"), "10ms"),
            log={"level": "debug"},
        )

        assert await node.asked("reload") == {
            "changed": {
                "live": [
                    "reclaim.mode",
                    "reclaim.letGoGrace",
                    "reclaim.orphanGrace",
                    "reclaim.termGrace",
                    "log.level",
                ]
            },
            "problem": "",
        }

        await node.running(following)
        assert f"ending pid {left}" in str(await node.ever("reclaiming"))
        assert '"level": "debug"' in node.log
        assert (await node.asked("debug"))["settings"]["reclaim"]["orphanGrace"] == 0.01
        node.process.send_signal(signal.SIGHUP)
        await node.until(lambda: "configuration unchanged" in node.log, "the file to be read")
        assert _streams_ended(node) == 0


async def test_a_file_that_changes_is_taken_up_by_itself(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        node.configure(gate={"wait": "100ms"})
        await node.until(lambda: '"live": ["gate.wait"]' in node.log, "a reload")
        node.configure(gate={"wiat": "100ms"})
        await node.until_problem("configuration", "gate.wiat: there is no such key")
        told = '"event": "configuration not reloaded"'
        await node.until(lambda: node.log.count(told) == 1, "it to be told, though nobody asked")
        asked = await holdfast("reload", "--config", node.config)
        assert asked.returncode == 1
        assert "cannot reload the configuration" in asked.stderr
        assert "gate.wiat: there is no such key" in asked.stderr
        node.configure(gate={"wait": "200ms"})
        await node.until_problem("configuration", "")
        assert _streams_ended(node) == 0


async def test_what_has_no_effect_in_a_changed_file_of_nvidias_is_told_once(
    short_path: Path,
) -> None:
    file = short_path / "nvidia.yaml"
    file.write_text("version: v1")
    environment = {"CONFIG_FILE": str(file)}
    async with stage(short_path, chips=1, own_process=True, environment=environment) as node:
        file.write_text("flags: {plugin: {migStrategy: mixed}}")
        await node.until(lambda: "it belongs at flags.migStrategy" in node.log, "it to be told")
        for _ in range(2):
            assert (await node.asked("reload"))["changed"] == {}
        assert node.log.count("setting has no effect") == 1


async def test_a_configmap_that_kubelet_renews_is_taken_up_by_itself(short_path: Path) -> None:
    """As kubelet does: the files are in a folder to which one link leads, and that is renamed."""
    async with stage(short_path, chips=1, start=False, own_process=True) as node:
        folder = short_path / "mounted"
        folder.mkdir()
        node.config = folder / "config.yaml"
        (folder / "config.yaml").symlink_to("..data/config.yaml")

        def renew(**changes: Any) -> None:
            version = folder / f"..{len(list(folder.iterdir()))}"
            version.mkdir()
            (version / "config.yaml").write_text(yaml.safe_dump(node.settings | changes))
            (folder / "..data_tmp").symlink_to(version.name)
            (folder / "..data_tmp").rename(folder / "..data")

        renew()
        node.start()
        await node.until(lambda: len(node.healthy()) == 1, "the chip to be healthy")
        renew(gate={"wait": "100ms"})
        await node.until(lambda: "configuration reloaded" in node.log, "a reload")
        settings = (await node.asked("debug"))["settings"]
        assert settings["gate"]["wait"] == 0.1
        assert _streams_ended(node) == 0


async def test_what_changes_to_and_fro_does_not_restart_it_all_the_time(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        node.configure(tpu=_RESTART)
        await _registers_anew(node)
        told = _restarts_told(node)
        assert len(told) == 1
        assert told[0] <= time.monotonic()

    folder = short_path / "again"
    folder.mkdir()
    lately = " ".join([str(time.monotonic() + 3600.0)] * MOST)
    environment = {"_HOLDFAST_RESTARTS": lately}
    async with stage(folder, chips=1, own_process=True, environment=environment) as node:
        node.configure(gate={"wait": "2s"})
        await node.until(lambda: '"live": ["gate.wait"' in node.log, "a reload")
        node.configure(gate={"wait": "2s"}, tpu=_RESTART)
        await node.until_problem("configuration", f"restarted {MOST} times")
        assert _streams_ended(node) == 0


async def test_a_file_that_is_spoilt_between_the_check_and_the_restart_ends_nothing(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        good = node.settings | {"tpu": _RESTART}
        node.config.unlink()
        os.mkfifo(node.config)  # whose reader waits until somebody writes
        node.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(node.config.write_text, yaml.safe_dump(good))
        await node.until(lambda: "restarting with the changed" in node.log, "it to be taken up")
        spoilt = node.folder / "spoilt"
        spoilt.write_text("tpu: [")
        spoilt.rename(node.config)

        await node.until(lambda: node.log.count('"event": "started"') == 2, "the restart")
        await node.until(node.healthy, "the chip to be offered")
        assert "configuration cannot be used" in node.log
        assert (await node.asked("debug"))["settings"]["tpu"]["vbarUrl"] == _RESTART["vbarUrl"]


async def test_a_restart_that_has_to_wait_comes_by_itself(short_path: Path) -> None:
    lately = " ".join([str(time.monotonic() - 8.0)] * FREE)  # it may restart after 15 s
    environment = {"_HOLDFAST_RESTARTS": lately}
    async with stage(short_path, chips=1, own_process=True, environment=environment) as node:
        node.configure(tpu=_RESTART)
        await node.until(lambda: node.log.count('"event": "started"') == 2, "the restart")
        assert node.log.count("configuration not reloaded") <= 1, "told once"


def _restarts_told(node: Stage) -> list[float]:
    """Return when the process of the daemon restarted, as it told itself."""
    found = Path(f"/proc/{node.process.pid}/environ").read_bytes().split(b"\0")
    name = b"_HOLDFAST_RESTARTS="
    told = [each.removeprefix(name) for each in found if each.startswith(name)]
    return [float(each) for each in b" ".join(told).split()]


async def test_what_changed_in_the_file_holds_from_then_on(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        for name in ("example.com/chip", f"{'a' * 63}.{'b' * 63}.example.com/{'c' * 63}"):
            node.configure(tpu={"resourceName": name}, log={"level": "debug"})
            await _registers_anew(node, name)

        # Once more: what SIGHUP does is done in the process that it made, too.
        node.configure(tpu={"resourceName": TPU})
        await _registers_anew(node)


async def test_a_file_that_cannot_be_used_changes_nothing_and_is_told(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        good = node.config.read_text()
        for changes, why in (
            ({"gate": {"wiat": "1s"}}, "gate.wiat: there is no such key; did you mean gate.wait?"),
            ({"tpu": {"resourceName": "chip"}}, "tpu.resourceName"),
            ({"stateDir": "/var/lib/elsewhere"}, "stateDir changed"),
        ):
            node.config.write_text(yaml.safe_dump(node.settings | changes))
            await _refuses(node, why)
        for harm in (
            "gate: {wait: !!int ''}\n",
            "gate: &a {wait: *a}\n",
            "a0: &a0 {x: 1}\n"
            + "".join(f"a{n + 1}: &a{n + 1} {{x: *a{n}, y: *a{n}}}\n" for n in range(40)),
        ):
            node.config.write_text(harm)
            await _refuses(node, "line ")
        node.config.write_text(good)
        await node.until_problem("configuration", "")


async def test_reading_that_fails_in_a_way_of_its_own_ends_no_daemon(short_path: Path) -> None:
    def fails(_settings: Settings) -> Settings:
        raise ZeroDivisionError

    async with _in_this_process(short_path, fails) as daemon:
        answer = await asyncio.to_thread(ask, short_path / "state", "reload")
        assert "ZeroDivisionError" in answer["problem"]
        assert not daemon.done()


async def test_a_file_that_changes_while_a_start_reads_it_once_more_is_read_again(
    short_path: Path,
) -> None:
    file, reads = short_path / "config.yaml", list[str]()
    file.write_text("former")

    def changing(settings: Settings) -> Settings:
        reads.append(file.read_text())
        file.write_text("latest")
        return settings

    async with _in_this_process(short_path, changing, file):
        await until(lambda: "latest" in reads)


async def test_a_file_that_is_gone_changes_nothing_and_is_told(short_path: Path) -> None:
    async with stage(short_path, chips=1, own_process=True) as node:
        config = node.folder / "config.yaml"
        config.rename(node.folder / "moved")
        await _refuses(node, "cannot read")
        await node.until_problem("configuration", "cannot read")
        (node.folder / "moved").rename(config)
        node.process.send_signal(signal.SIGHUP)
        await node.until_problem("configuration", "")


async def test_a_stop_that_comes_while_it_is_about_to_begin_anew_is_not_forgotten(
    short_path: Path,
) -> None:
    def stopped_meanwhile(settings: Settings) -> Settings:
        os.kill(os.getpid(), signal.SIGTERM)
        return settings

    async with _in_this_process(short_path, stopped_meanwhile) as daemon:
        os.kill(os.getpid(), signal.SIGHUP)
        assert await asyncio.wait_for(daemon, 30.0) is None


async def test_while_a_look_at_a_process_hangs_nothing_is_begun_anew(short_path: Path) -> None:
    """The thread of such a look can be where no signal ends it, and execve(2) waits for it."""
    async with stage(short_path, chips=1, own_process=True) as node:
        holder = await node.run(pod("holder"))
        await node.until_locks(dict.fromkeys(node.ids(holder), "held"))
        (pid,) = node.orphans(holder)
        process = node.node.root.proc / str(pid)
        for folder in (process / "fd", process / "fdinfo"):
            folder.unlink()
            folder.mkdir()
        (process / "fd/3").symlink_to("anon_inode:[vfio-device]")
        os.mkfifo(process / "fdinfo/3")
        await node.until_problem("process visibility", "no answer in time")
        node.configure(tpu=_RESTART)

        await _refuses(node, f"scan of pid {pid}")
