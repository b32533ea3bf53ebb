"""Serving and registering with kubelet, over real sockets."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc import aio
from msgspec.structs import replace
from structlog.testing import capture_logs

from fakes.kubelet_side import (
    OTHER,
    TPU,
    Deciding,
    bare_plugin,
    chips,
    kubelet_below,
    kubelet_side,
    plugin_server,
    registered,
    registered_side,
)
from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as api
from holdfast._pb.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from holdfast.errors import HostError, KubeletError
from holdfast.host.files.inotify import PathWatcher
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.plugin import PluginServer, socket_path
from holdfast.kubelet.registration import RegistrationTimes
from holdfast.kubelet.socket import SocketServer, dial
from holdfast.model.book.offers import Offers
from holdfast.model.ids import ResourceName
from holdfast.names import LONGEST_SOCKET_PATH
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from simulated.kubelet import Kubelet
from waiting import beside, until

SOCKET = socket_path(Path("/"), "holdfast", TPU).name


def test_two_resources_never_share_a_socket_and_each_path_can_be_one() -> None:
    long = f"{'a' * 63}.{'b' * 63}.example.com/{'c' * 62}"
    names = [
        "a.b/c",
        "a-b/c",
        "a/b-c",
        "a/b_c",
        "a-b_c/d",
        "google.com/tpu",
        f"{long}d",
        f"{long}e",
    ]
    for folder in (Path("/var/lib/kubelet/device-plugins"), Path("/" + "f" * 66)):
        paths = {socket_path(folder, "holdfast", ResourceName(each)) for each in names}
        assert len(paths) == len(names)
        assert max(len(bytes(each)) for each in paths) == 107
        assert {each.parent for each in paths} == {folder}
        assert {each.name[:9] for each in paths} == {"holdfast-"}
        assert {each.suffix for each in paths} == {".sock"}
    assert SOCKET == "holdfast-google-com_tpu.sock"


async def test_each_resource_is_served_then_registered_with_the_right_options(
    short_path: Path,
) -> None:
    async with kubelet_below(short_path) as kubelet:
        async with kubelet_side(short_path, resources=(TPU, OTHER)) as side:
            await until(lambda: side.registered(TPU) and side.registered(OTHER))
            names = [each.resource_name for each in kubelet.registrations]
            assert sorted(names) == sorted((TPU, OTHER)), "each at the first try"
            assert all(each.version == "v1beta1" for each in kubelet.registrations)
            assert all(each.options.pre_start_required for each in kubelet.registrations)
            for plugin in kubelet.devices.endpoints.values():
                assert plugin.pre_start
                assert plugin.prefers
            assert (short_path / "dp" / SOCKET).stat().st_mode & 0o777 == 0o600
        assert sorted(each.name for each in (short_path / "dp").iterdir() if each.is_socket()) == [
            "kubelet.sock"
        ]


async def test_a_resource_that_comes_into_the_offers_later_is_registered(short_path: Path) -> None:
    async with registered_side(short_path) as (_, side):
        side.offer(OTHER, chips("x"))
        await until(lambda: side.registered(OTHER))


async def test_a_resource_that_leaves_the_offers_is_an_empty_list_until_it_comes_back(
    short_path: Path,
) -> None:
    # As when a GPU's MIG profile is changed: kubelet would count devices that it is not told to
    # be gone, and a socket that is closed, as capacity for a long time.
    async with kubelet_below(short_path) as kubelet, kubelet_side(short_path) as side:

        def told() -> list[str] | None:
            messages = kubelet.messages.get(OTHER)
            return list(messages[-1]) if messages else None

        side.offer(OTHER, chips("x"))
        await until(lambda: side.registered(OTHER) and told() == ["x"])
        both = side.offers.value
        side.offers.set(replace(both, devices={TPU: both.of(TPU)}))
        await until(lambda: told() == [], what="an empty list")
        assert side.registered(OTHER)
        side.offers.set(both)
        await until(lambda: told() == ["x"])
        assert [each.resource_name for each in kubelet.registrations].count(OTHER) == 1


async def test_a_new_kubelet_sock_is_registered_with_at_once(short_path: Path) -> None:
    async with registered_side(short_path, interval=60.0) as (kubelet, side):
        await kubelet.restart()
        await registered(side, times=2)
        assert (short_path / "dp" / SOCKET).is_socket()


async def test_a_kubelet_that_is_down_for_a_while_is_registered_with_when_it_is_back(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        await kubelet.stop()
        await until(lambda: "cannot register" in side.problem(), what="a problem")
        await kubelet.restart()
        await registered(side, times=2)


async def test_the_end_of_a_stream_is_followed_by_a_new_registration(short_path: Path) -> None:
    async with registered_side(short_path) as (kubelet, side):
        for times in (2, 3):
            await kubelet.end_stream()
            await registered(side, times=times)


async def _dropping(kubelet: Kubelet) -> None:
    """Drop what has no plugin, whenever kubelet looks at its capacity."""
    while True:
        kubelet.devices.drop_stopped()
        await asyncio.sleep(0.5)


async def test_a_resource_that_kubelet_drops_after_another_plugins_end_is_registered_again(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        folder = short_path / "dp"
        another = PluginServer(
            folder=folder, prefix="another", plugin=bare_plugin(Deciding()), patience=2.5
        )
        await another.start()
        request = api.RegisterRequest(
            version="v1beta1", endpoint=another.socket.path.name, resource_name=TPU
        )
        async with dial(folder / "kubelet.sock") as channel:
            await rpc.RegistrationStub(channel).Register(request)
        await until(lambda: {} in kubelet.messages[TPU], what="the other plugin's list")
        await another.close()
        await until(lambda: kubelet.devices.endpoints[TPU].stub is None)
        # It still reads our stream, and drops again what that says.
        async with beside(_dropping(kubelet)):
            await registered(side, times=2)
        await until(lambda: len(kubelet.messages[TPU]) > 2, what="our list once more")
        assert side.registrar.states[TPU].streams == 1, "the end of the former stops the resource"
        answer = await kubelet.give("u", TPU, "a")
        assert answer.container_responses[0].envs["CHIPS"] == "a"


async def test_a_registration_does_not_wait_for_our_own_socket_to_answer_us(
    short_path: Path,
) -> None:
    # On an overloaded node our own answer comes after our patience, which is over at once here.
    times = RegistrationTimes(register=12.0, own_answer=-1.0)
    async with registered_side(short_path, enrolment=times) as (_, side):
        with pytest.raises(KubeletError, match="cannot reach our own socket"):
            await side.registrar.answers(TPU)


async def test_the_removal_of_our_socket_makes_a_new_one_and_registers_it(short_path: Path) -> None:
    async with registered_side(short_path) as (_, side):
        (short_path / "dp" / SOCKET).unlink()
        await registered(side, times=2)
        assert (short_path / "dp" / SOCKET).is_socket()


async def test_a_kubelet_that_closes_each_stream_at_once_is_asked_less_and_less_often(
    short_path: Path,
) -> None:
    async with kubelet_below(short_path) as kubelet, kubelet_side(short_path) as side:
        kubelet.ends_streams = True
        await until(lambda: len(kubelet.registrations) >= 5)
        began, count = time.monotonic(), len(kubelet.registrations)
        await until(lambda: len(kubelet.registrations) >= count + 3)
        assert time.monotonic() - began > 0.2
        kubelet.ends_streams = False
        await registered(side)


async def test_a_refusal_is_told_in_kubelets_own_words_and_tried_again(short_path: Path) -> None:
    async with kubelet_below(short_path) as kubelet:
        kubelet.refusal = 'the ResourceName "tpu" is invalid'
        async with kubelet_side(short_path) as side:
            await until(lambda: 'the ResourceName "tpu" is invalid' in side.problem())
            kubelet.refusal = ""
            await registered(side)


async def test_a_kubelet_that_never_answers_is_given_up_and_its_successor_registered_with(
    short_path: Path,
) -> None:
    async with kubelet_below(short_path) as kubelet:
        kubelet.silent = True
        async with kubelet_side(short_path, enrolment=RegistrationTimes(register=0.3)) as side:
            await until(lambda: "DEADLINE_EXCEEDED" in side.problem(), what=side.problem())
            kubelet.silent = False
            await registered(side)


async def test_a_pending_registration_is_dropped_when_kubelet_is_replaced(short_path: Path) -> None:
    async with kubelet_below(short_path) as kubelet:
        kubelet.silent = True
        async with kubelet_side(short_path) as side:
            await until((short_path / "dp" / SOCKET).exists)
            kubelet.silent = False
            await kubelet.restart()
            await registered(side)


async def test_after_a_refusal_another_kubelet_is_registered_with_at_once(short_path: Path) -> None:
    hours = RegistrationTimes(register=12.0, first_delay=3600.0, last_delay=3600.0)
    async with kubelet_below(short_path) as kubelet:
        kubelet.refusal = "not now"
        async with kubelet_side(short_path, enrolment=hours) as side:
            await until(lambda: "not now" in side.problem())
            kubelet.refusal = ""
            await kubelet.restart()
            await registered(side)


class NotedWatches(PathWatcher):
    """Notes who is called for which path, so that a test can call as the kernel would."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Callable[[str, int], None]] = []

    def watch(self, path: Path, act: Callable[[str, int], None]) -> Callable[[], None]:
        self.called.append(act)
        return super().watch(path, act)


async def test_a_folder_made_in_anothers_place_with_its_inode_number_is_watched_anew(
    short_path: Path,
) -> None:
    paths = NotedWatches()
    with contextlib.closing(Lane("kubelet", deadline=60.0)) as lane:
        watch = FolderWatch(
            folder=short_path, prefix="holdfast-", paths=paths, lane=lane, interval=Watched(3600.0)
        )
        await watch.refresh()
        async with beside(watch.run()):
            await watch.refresh()
            assert len(paths.called) == 1
            paths.called[0]("", 0)  # the folder has gone; what lies there by now looks the same
            await until(lambda: len(paths.called) == 2)
    paths.close()


class RefusedWatches(PathWatcher):
    """As where the kernel's limit of watches is reached, until a test says that it is not."""

    refuses = True

    def watch(self, path: Path, act: Callable[[str, int], None]) -> Callable[[], None]:
        if self.refuses:
            raise HostError(f"cannot watch {path}: no space left on device")
        return super().watch(path, act)


async def test_a_folder_that_cannot_be_watched_is_told_once_and_again_after_it_could_be(
    short_path: Path,
) -> None:
    paths, folder = RefusedWatches(), short_path / "dp"
    with contextlib.closing(Lane("kubelet", deadline=5.0)) as lane, capture_logs() as logs:
        watch = FolderWatch(
            folder=folder, prefix="holdfast-", paths=paths, lane=lane, interval=Watched(1.0)
        )
        for refuses, told in ((True, 1), (True, 1), (False, 1), (True, 2)):
            paths.refuses = refuses
            folder.mkdir()
            await watch.refresh()
            folder.rmdir()
            await watch.refresh()
            assert [each["event"] for each in logs] == ["cannot watch a folder of kubelet's"] * told
    paths.close()


async def test_another_pause_between_two_looks_counts_at_once(short_path: Path) -> None:
    paths, pause = PathWatcher(), Watched(3600.0)
    with contextlib.closing(Lane("kubelet", deadline=60.0)) as lane:
        watch = FolderWatch(
            folder=short_path / "dp", prefix="holdfast-", paths=paths, lane=lane, interval=pause
        )
        await watch.refresh()
        async with beside(watch.run()):
            await watch.refresh()
            (short_path / "dp").mkdir()
            pause.set(0.05)
            await watch.state.until(lambda state: state.folder is not None)
    paths.close()


async def test_a_folder_that_is_made_later_is_found(short_path: Path) -> None:
    async with kubelet_side(short_path, interval=0.05) as side:
        await until(lambda: "there is no folder" in side.problem())
        async with kubelet_below(short_path):
            await registered(side)


async def test_a_folder_that_vanishes_and_comes_back_is_served_again(short_path: Path) -> None:
    folder = short_path / "dp"
    async with kubelet_side(short_path, interval=0.05) as side:
        async with kubelet_below(short_path):
            await registered(side)
        folder.rename(short_path / "gone")
        await until(lambda: "there is no folder" in side.problem())
        async with kubelet_below(short_path):
            await registered(side, times=2)
            assert (folder / SOCKET).is_socket()


async def test_a_folder_that_cannot_be_written_is_named_with_the_reason(short_path: Path) -> None:
    folder = Path("/proc/self/fdinfo")  # a folder that refuses even root
    plugin = bare_plugin(Deciding())
    with pytest.raises(KubeletError, match="cannot serve google.com/tpu at /proc/self/fdinfo/.*: "):
        await plugin_server(folder, plugin).start()


async def test_a_path_too_long_for_a_socket_is_refused_with_the_path(short_path: Path) -> None:
    folder = short_path / ("d" * 100)
    folder.mkdir()
    with pytest.raises(KubeletError, match="longer than the 107 bytes"):
        await plugin_server(folder, bare_plugin(Deciding())).start()


async def test_a_stale_socket_is_replaced_and_another_ones_socket_is_left_alone(
    short_path: Path,
) -> None:
    stale = short_path / SOCKET
    stale.touch()
    first = plugin_server(short_path, bare_plugin(Deciding()))
    await first.start()
    await first.answers(2.0)
    second = plugin_server(short_path, bare_plugin(Deciding()))
    await second.start()
    await first.close()
    await second.answers(2.0)
    await second.close()
    assert list(short_path.iterdir()) == []
    with pytest.raises(KubeletError, match="cannot reach our own socket"):
        await second.answers(2.0)


async def test_a_stop_lets_the_allocates_of_a_pod_be_answered(short_path: Path) -> None:
    async with registered_side(short_path) as (kubelet, side):

        async def give_both() -> list[str]:
            answers = [await kubelet.give(each, TPU, each) for each in "ab"]
            return [each.container_responses[0].envs["CHIPS"] for each in answers]

        side.deciding.hold.clear()
        call = asyncio.create_task(give_both())
        await until(lambda: side.traffic.in_flight.value == 1)
        asyncio.get_running_loop().call_later(0.2, side.deciding.hold.set)
        await side.registrar.close()
        assert await call == ["a", "b"]


async def test_a_resource_whose_leaving_a_stop_cuts_short_leaves_no_socket(
    short_path: Path,
) -> None:
    async with kubelet_below(short_path) as kubelet:
        async with kubelet_side(short_path) as side:
            await registered(side)
            side.deciding.hold.clear()
            call = asyncio.create_task(kubelet.give("u", TPU, "a"))
            await until(lambda: side.traffic.in_flight.value == 1)
            side.offers.set(Offers(devices={}, by_claims=frozenset({TPU})))
            await asyncio.sleep(0.2)
            assert (side.folder / SOCKET).exists(), "it waits for the Allocate"
        assert not (side.folder / SOCKET).exists()
        assert (await call).container_responses[0].envs["CHIPS"] == "a"


@pytest.mark.parametrize("turns", range(12))
async def test_a_stop_of_a_socket_that_is_cut_short_is_done_where_it_is_called_again(
    short_path: Path, turns: int
) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: problems.append(told))
    asked = asyncio.Event()

    async def answered(_request: bytes, _context: object) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answered)
    calls = grpc.method_handlers_generic_handler("a.Service", {"Call": handler})
    server = SocketServer(short_path / "s.sock", hidden=".s-", what="a service", advice="")
    await server.start(lambda to: to.add_generic_rpc_handlers((calls,)))
    async with dial(server.path) as channel:
        service: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/a.Service/Call")
        call = asyncio.ensure_future(service(b""))
        await asked.wait()
        async with beside(server.stop(0.001)):
            for _ in range(turns):
                await asyncio.sleep(0)
        await server.stop(0.001)
        await asyncio.wait([call])
    assert not list(short_path.iterdir())
    gc.collect()
    assert not problems


@pytest.mark.parametrize("name", ["a*", "[ab]", "a?", "%61", "100%", "a#b", "ä b"])
async def test_each_character_of_a_sockets_path_stands_for_itself(
    short_path: Path, name: str
) -> None:
    folder = short_path / name
    folder.mkdir()
    (folder / ".ab-1").touch()
    (folder / f".{name}-0").touch()
    server = SocketServer(folder / name, hidden=f".{name}-", what="a service", advice="")
    await server.start(lambda _: None)
    assert {each.name for each in folder.iterdir()} == {".ab-1", name}, "only its own goes"
    async with dial(server.path) as channel:
        await asyncio.wait_for(channel.channel_ready(), 20.0)
    await server.stop(0.001)


async def test_a_socket_is_served_whenever_the_kernel_takes_its_path(short_path: Path) -> None:
    for length in range(LONGEST_SOCKET_PATH - len(bytes(short_path))):
        hidden = f".{'s' * length}-"
        server = SocketServer(short_path / "s", hidden=hidden, what="a service", advice="")
        try:
            await server.start(lambda _: None)
        except KubeletError as error:
            assert "longer than the 107 bytes" in str(error)  # noqa: PT017 - only of the longest
        await server.stop(0.001)


async def test_whoever_is_cancelled_while_a_socket_stops_hears_of_it(short_path: Path) -> None:
    """Else a daemon that is asked to stop just then runs on."""
    for turns in range(360):
        server = SocketServer(short_path / "s.sock", hidden=".s-", what="a service", advice="")
        await server.start(lambda _: None)
        stop = asyncio.create_task(server.stop(60.0))
        for _ in range(turns % 12):
            await asyncio.sleep(0)
        heard = stop.cancel()
        await asyncio.wait([stop])
        assert stop.cancelled() == heard, f"after {turns} turns"
        await server.stop(60.0)


async def test_a_socket_of_which_the_start_is_cut_short_is_served_no_more(short_path: Path) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: problems.append(told))
    server = plugin_server(short_path, bare_plugin(Deciding()))
    start = asyncio.create_task(server.start())
    await asyncio.sleep(0)  # it is in gRPC's start by then
    assert list(short_path.iterdir())
    start.cancel()
    await asyncio.wait([start])
    assert start.cancelled()
    assert not list(short_path.iterdir())
    gc.collect()
    assert not problems
