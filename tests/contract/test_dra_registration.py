"""The DRA driver registers over real sockets, and says why where it cannot."""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.driver_side import DRIVER, QUICK, dra_kubelet, driver_side
from holdfast.dra.registration import DriverTimes
from waiting import until

_IMPATIENT = DriverTimes(first_delay=0.01, last_delay=0.05, asked=0.3)


async def test_kubelet_is_told_the_type_the_socket_and_every_service_newest_first(
    short_path: Path,
) -> None:
    async with dra_kubelet(short_path) as kubelet, driver_side(short_path) as driver:
        await until(lambda: driver.state.registered)

        (known,) = kubelet.plugins.plugins[DRIVER]
        assert known.endpoint == str(driver.socket)
        assert known.services == (
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        )
        assert (driver.state.registrations, driver.state.problem) == (1, "")


async def test_at_the_end_both_sockets_are_gone_and_kubelet_lets_go(short_path: Path) -> None:
    async with dra_kubelet(short_path) as kubelet:
        async with driver_side(short_path) as driver:
            await until(lambda: driver.state.registered)
        assert not driver.socket.exists()
        assert kubelet.watcher.told == [(True, "")]
        await until(lambda: kubelet.plugins.plugins == {DRIVER: []})
        assert list((short_path / "plugins_registry").iterdir()) == []
        assert list(driver.socket.parent.iterdir()) == []


async def test_a_kubelet_that_restarts_shows_as_a_second_registration(short_path: Path) -> None:
    async with dra_kubelet(short_path) as kubelet, driver_side(short_path) as driver:
        await until(lambda: driver.state.registered)
        version = driver.registrar.registration.version
        await kubelet.stop()
        assert driver.registrar.registration.version == version
        await kubelet.start()
        await until(lambda: driver.state.registrations == 2)
        assert driver.state.registered


@pytest.mark.parametrize("which", ["socket", "registration_socket"])
async def test_a_socket_that_is_removed_is_served_and_registered_again(
    short_path: Path, which: str
) -> None:
    async with dra_kubelet(short_path), driver_side(short_path) as driver:
        await until(lambda: driver.state.registered)
        path: Path = getattr(driver, which)
        path.unlink()
        await until(lambda: driver.state.registrations == 2 and driver.state.registered)
        assert driver.socket.is_socket()
        assert driver.registration_socket.is_socket()


async def test_a_refusal_is_told_with_what_to_do_and_kubelet_is_asked_again(
    short_path: Path,
) -> None:
    async with dra_kubelet(short_path) as kubelet:
        kubelet.watcher.refusal = f"endpoint /x already registered for DRA driver plugin {DRIVER}"
        async with driver_side(short_path) as driver:
            await until(lambda: "kubelet refused" in driver.state.problem)
            assert "already registered" in driver.state.problem
            assert "stop it, or set dra.driverName" in driver.state.problem
            assert not driver.state.registered
            kubelet.watcher.refusal = ""
            await until(lambda: driver.state.registered)


async def test_a_kubelet_that_does_not_ask_is_told_of_and_waited_for(short_path: Path) -> None:
    async with dra_kubelet(short_path) as kubelet:
        kubelet.watcher.deaf = True
        async with driver_side(short_path, times=_IMPATIENT) as driver:
            await until(lambda: "kubelet has not asked about" in driver.state.problem)
            assert "--root-dir" in driver.state.problem
            kubelet.watcher.deaf = False
            await until(lambda: driver.state.registered)


async def test_a_plugins_registry_that_is_missing_is_named_and_found_when_it_comes(
    short_path: Path,
) -> None:
    (short_path / "plugins").mkdir()
    async with driver_side(short_path) as driver:
        await until(lambda: "there is no folder" in driver.state.problem)
        assert f"{short_path}/plugins_registry" in driver.state.problem
        async with dra_kubelet(short_path):
            await until(lambda: driver.state.registered)


async def test_a_plugins_folder_that_is_missing_is_named(short_path: Path) -> None:
    (short_path / "plugins_registry").mkdir()
    async with driver_side(short_path) as driver:
        await until(lambda: "cannot make the folder" in driver.state.problem)
        assert f"{short_path}/plugins/{DRIVER}: No such file" in driver.state.problem


async def test_a_plugins_registry_that_is_read_only_is_named_with_the_reason(
    short_path: Path,
) -> None:
    (short_path / "plugins").mkdir()
    # A folder in which even root may make nothing.
    (short_path / "plugins_registry").symlink_to("/proc/self/fdinfo")
    async with driver_side(short_path) as driver:
        await until(lambda: "must be mounted writable" in driver.state.problem)
        assert f"plugins_registry/{DRIVER}-reg.sock: " in driver.state.problem


async def test_a_path_over_the_limit_of_a_socket_is_named_with_its_length(tmp_path: Path) -> None:
    root = tmp_path / ("d" * 80)
    async with dra_kubelet(root), driver_side(root) as driver:
        await until(lambda: "longer than the 107 bytes" in driver.state.problem)
        assert str(root) in driver.state.problem


async def test_what_a_crash_left_behind_is_replaced(short_path: Path) -> None:
    async with dra_kubelet(short_path):
        folder = short_path / "plugins" / DRIVER
        folder.mkdir()
        for path in (folder / "dra.sock", short_path / "plugins_registry" / f"{DRIVER}-reg.sock"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        async with driver_side(short_path) as driver:
            await until(lambda: driver.state.registered)


_LISTENER = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("which", ["socket", "registration_socket"])
async def test_another_driver_of_our_name_is_named_and_left_alone(
    short_path: Path, which: str
) -> None:
    (short_path / "plugins" / DRIVER).mkdir(parents=True)
    async with dra_kubelet(short_path) as kubelet:
        kubelet.watcher.deaf = True
        places = {
            "socket": short_path / "plugins" / DRIVER / "dra.sock",
            "registration_socket": short_path / "plugins_registry" / f"{DRIVER}-reg.sock",
        }
        other = subprocess.Popen(
            [sys.executable, "-c", _LISTENER, places[which]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with other:
            assert other.stdout is not None
            assert other.stdout.readline() == "listening\n"
            inode = places[which].stat().st_ino
            async with driver_side(short_path) as driver:
                await until(lambda: f"(pid {other.pid}) listens at" in driver.state.problem)
                assert "another name (dra.driverName)" in driver.state.problem
                assert places[which].stat().st_ino == inode
                assert other.stdin is not None
                other.stdin.close()
                kubelet.watcher.deaf = False
                await until(lambda: driver.state.registered)


async def test_another_driver_of_our_name_that_hangs_is_left_alone(short_path: Path) -> None:
    path = short_path / "plugins" / DRIVER / "dra.sock"
    path.parent.mkdir(parents=True)
    async with dra_kubelet(short_path) as kubelet:
        kubelet.watcher.deaf = True
        with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waits:
            other.bind(str(path))
            other.listen(0)
            waits.connect(str(path))
            inode = path.stat().st_ino
            async with driver_side(short_path) as driver:
                await until(lambda: "(pid unknown) listens at" in driver.state.problem)
                assert path.stat().st_ino == inode


async def test_a_second_holdfast_of_one_name_waits_for_the_end_of_the_first(
    short_path: Path,
) -> None:
    async with dra_kubelet(short_path), contextlib.AsyncExitStack() as stack:
        running = contextlib.AsyncExitStack()
        first = await running.enter_async_context(driver_side(short_path))
        await until(lambda: first.state.registered)
        second = await stack.enter_async_context(driver_side(short_path))
        await until(lambda: "another holdfast is running" in second.state.problem)
        assert first.state.registrations == 1
        await running.aclose()
        await until(lambda: second.state.registered)


async def test_two_drivers_of_different_names_do_not_meet(short_path: Path) -> None:
    async with (
        dra_kubelet(short_path) as kubelet,
        driver_side(short_path) as one,
        driver_side(short_path, driver="other.test") as other,
    ):
        await until(lambda: one.state.registered and other.state.registered)
        assert set(kubelet.plugins.plugins) == {DRIVER, "other.test"}


async def test_kubelet_never_sees_the_socket_before_it_answers(short_path: Path) -> None:
    async with dra_kubelet(short_path) as kubelet:
        for _ in range(5):
            async with driver_side(short_path, times=QUICK) as driver:
                await driver.registrar.registration.until(lambda state: state.registered)
        assert all(accepted for accepted, _ in kubelet.watcher.told)
        assert kubelet.watcher.failures == 0
