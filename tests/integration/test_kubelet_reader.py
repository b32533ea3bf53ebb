"""Reading kubelet's checkpoint and asking which pods it counts, over real files and sockets."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import allocated, book_of, silicon
from fakes.kubelet_side import (
    TPU,
    Side,
    kubelet_below,
    kubelet_side,
    registered_side,
)
from holdfast.errors import HostError, KubeletError
from holdfast.host.files.wholefile import FileId
from holdfast.kubelet.podresources import PodResources, Traffic
from holdfast.model.book.book import Book
from holdfast.model.ids import DeviceId, DeviceName, PodUid
from holdfast.model.kubelet import KubeletView
from holdfast.names import KUBELET_CHECKPOINT
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from holdfast.settings.sections import QuestionSettings
from holdfast.settings.types import Duration, Interval
from manual_clock import ManualClock
from simulated.kubelet import Kubelet
from waiting import until


async def test_the_books_follow_the_checkpoint_as_it_is_renamed_into_place(
    short_path: Path,
) -> None:
    async with registered_side(short_path, interval=60.0) as (kubelet, side):
        await kubelet.give("u1", TPU, "a")
        await until(lambda: side.reader.view.value.counts(PodUid("u1")))
        (entry,) = side.reader.view.value.entries
        assert entry.promised == ("/dev/vfio/a",)
        assert side.reader.view.value.readable


async def test_a_refresh_sees_what_was_written_a_moment_ago(short_path: Path) -> None:
    async with registered_side(short_path, interval=60.0) as (kubelet, side):
        for number in range(20):
            kubelet.forget()
            await kubelet.give(f"u{number}", TPU, "a")
            view = await side.reader.refresh()
            assert view.counts(PodUid(f"u{number}"))


@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "not for us to read"])
async def test_a_checkpoint_that_stays_unreadable_is_no_news_at_each_look(
    short_path: Path, *, is_there: bool
) -> None:
    async with kubelet_side(short_path) as side:
        if is_there:
            (side.folder / KUBELET_CHECKPOINT).mkdir(parents=True)  # opens for nobody
        first = await side.reader.refresh()
        assert first.unreadable
        news = side.reader.view.version
        for _ in range(5):
            assert (await side.reader.refresh()).unreadable
        assert side.reader.view.version == news, "whoever waits for a change would never rest"


@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "not to be looked at"])
async def test_only_a_checkpoint_that_is_missing_for_sure_is_no_reason_to_be_unready(
    short_path: Path, *, is_there: bool
) -> None:
    async with kubelet_side(short_path) as side:
        if is_there:
            side.folder.symlink_to(side.folder)  # stat(2) fails, though not because of ENOENT
        with contextlib.suppress(HostError):
            await side.watch.refresh()
        await side.reader.refresh()
        (check,) = side.reader.checks()
        assert check.passes is not is_there
        assert check.reason


async def test_a_checkpoint_that_came_and_cannot_be_looked_at_is_not_missing(
    short_path: Path,
) -> None:
    begun, answers = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        answers.wait()

    async with kubelet_side(short_path) as side:
        side.folder.mkdir()
        with contextlib.closing(Lane("stuck", deadline=60.0)) as side.reader.lane:
            await side.reader.refresh()
            hanging = asyncio.create_task(side.reader.lane.run(hang))
            try:
                await until(begun.is_set)
                assert side.reader.missing
                (side.folder / KUBELET_CHECKPOINT).write_text("{}")
                await until(lambda: not side.reader.missing, limit=20.0)
                (check,) = side.reader.checks()
                assert not check.passes
            finally:
                answers.set()
                await hanging


@pytest.mark.parametrize("changed", [KUBELET_CHECKPOINT, "holdfast-x.sock"])
async def test_a_look_that_had_no_answer_in_time_is_tried_again(
    short_path: Path, changed: str
) -> None:
    """Also where the file is the one that was read before."""
    answers = threading.Event()
    async with kubelet_side(short_path) as side:
        side.folder.mkdir()
        (side.folder / KUBELET_CHECKPOINT).write_text("{}")
        await until(lambda: "of no known version" in side.reader.view.value.problem)
        with contextlib.closing(Lane("stuck", deadline=0.05)) as side.reader.lane:
            hanging = asyncio.create_task(side.reader.lane.run(answers.wait, deadline=60.0))
            (short_path / "new").write_text("{}")
            (short_path / "new").replace(side.folder / changed)
            await until(lambda: "no answer" in side.reader.view.value.problem)
            answers.set()
            await hanging
            await until(lambda: "of no known version" in side.reader.view.value.problem, limit=20.0)


async def test_a_question_drops_the_pods_that_are_over_and_names_the_others(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        await kubelet.give("u1", TPU, "a")
        await kubelet.give("u2", TPU, "b")
        del kubelet.pods["u1"]
        began = SystemClock().uptime()
        view = await side.reader.answered_after(began, 10.0)
        assert view is not None
        assert [entry.pod for entry in view.entries] == ["u2"]
        assert view.asked_at >= began
        assert view.answered
        assert view.questions >= 1
        assert view.kubelet is not None
        assert view.kubelet.pid == os.getpid()
        (pod,) = view.pods
        assert (pod.namespace, pod.name) == ("default", "pod-u2")
        assert pod.devices == {DeviceName(TPU, DeviceId("b"))}


async def test_an_allocation_by_kubelet_is_followed_by_a_question_that_tells_the_pods_name(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        await until(lambda: side.reader.view.value.questions == 1)
        await kubelet.give("u1", TPU, "a")
        await until(lambda: side.reader.view.value.pods)
        asked = -1
        async with asyncio.timeout(30):  # our own writes must not make us ask for ever
            while asked != kubelet.pod_resources.lists:
                asked = kubelet.pod_resources.lists
                await asyncio.sleep(2.5)


async def test_no_question_is_asked_while_an_allocate_is_in_flight(short_path: Path) -> None:
    async with registered_side(short_path) as (kubelet, side):
        await until(lambda: side.reader.view.value.questions == 1)
        lists = kubelet.pod_resources.lists
        side.deciding.hold.clear()
        call = asyncio.create_task(kubelet.give("u", TPU, "a"))
        await until(lambda: side.traffic.in_flight.value == 1)
        side.reader.ask("a test")
        await asyncio.sleep(1.5)
        assert kubelet.pod_resources.lists == lists
        side.deciding.hold.set()
        await call
        await until(lambda: kubelet.pod_resources.lists > lists)


async def test_an_allocate_that_comes_while_kubelet_is_dialled_is_answered_before_list(
    short_path: Path,
) -> None:
    dialling, may_go_on = threading.Event(), threading.Event()
    hold = [False]

    def dialled() -> None:
        if hold[0]:
            hold[0] = False
            dialling.set()
            may_go_on.wait(20.0)

    async with registered_side(short_path, dialled=dialled) as (kubelet, side):
        await until(lambda: side.reader.view.value.questions == 1)
        hold[0] = True
        side.reader.ask("a test")
        await until(dialling.is_set)
        side.deciding.hold.clear()
        call = asyncio.create_task(kubelet.give("u", TPU, "a"))
        await until(lambda: side.traffic.in_flight.value == 1)
        may_go_on.set()
        await asyncio.sleep(0.5)  # time enough for a List that must not come
        side.deciding.hold.set()
        await call
        lists = kubelet.pod_resources.lists
        await until(lambda: kubelet.pod_resources.lists > lists)
        assert not kubelet.pod_resources.lists_while_allocating


async def test_many_wishes_make_few_questions(short_path: Path) -> None:
    async with registered_side(short_path) as (kubelet, side):
        began = time.monotonic()
        while kubelet.pod_resources.lists < 3:
            side.reader.ask("a test")
            await asyncio.sleep(0.01)
        least = 2 * QuestionSettings().min_interval
        assert time.monotonic() - began > 0.9 * least, "there are two pauses between three"


async def test_a_question_that_has_to_wait_is_asked_at_once_when_the_settings_ask_for_no_more(
    short_path: Path,
) -> None:
    hour = Duration(3600)
    times = QuestionSettings(min_interval=hour, settle=hour, idle_interval=Interval(hour))
    async with registered_side(short_path, questions=times) as (kubelet, side):
        await kubelet.give("u1", TPU, "a")
        await asyncio.sleep(0.2)
        assert kubelet.pod_resources.lists < 1, "kubelet may write more"
        side.reader.settings.set(replace(times, settle=Duration(0)))
        await until(lambda: kubelet.pod_resources.lists == 1)
        side.reader.ask("a test")
        await asyncio.sleep(0.2)
        assert kubelet.pod_resources.lists == 1, "it was asked a moment ago"
        side.reader.settings.set(replace(times, min_interval=Duration(0)))
        await until(lambda: kubelet.pod_resources.lists > 1)


async def test_while_locks_are_held_kubelet_is_asked_now_and_then(short_path: Path) -> None:
    times = QuestionSettings(min_interval=Duration(0.05), idle_interval=Interval(0.2))
    book = Watched(Book())
    async with registered_side(short_path, questions=times, book=book) as (kubelet, side):
        await until(lambda: side.reader.view.value.questions >= 1)
        await asyncio.sleep(1.5)
        quiet = kubelet.pod_resources.lists
        book.set(book_of(allocated(silicon(a="a"))))
        await until(lambda: kubelet.pod_resources.lists >= quiet + 3)


@pytest.mark.parametrize("trouble", ["down", "busy"])
async def test_a_list_that_fails_answers_no_question_and_keeps_what_is_known(
    short_path: Path, trouble: str
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        await kubelet.give("u1", TPU, "a")
        assert await side.reader.answered_after(SystemClock().uptime(), 10.0)
        before = side.reader.view.value
        if trouble == "down":
            await kubelet.pod_resources.stop()
        kubelet.pod_resources.busy = True
        assert await side.reader.answered_after(SystemClock().uptime(), 2.5) is None
        view = side.reader.view.value
        assert view.questions == before.questions
        assert view.entries == before.entries
        assert (
            "rejected by rate limit" if trouble == "busy" else "is kubelet running"
        ) in view.problem


async def test_a_kubelet_that_does_not_write_answers_no_question(short_path: Path) -> None:
    async with registered_side(short_path, questions=QuestionSettings(timeout=Interval(0.3))) as (
        kubelet,
        side,
    ):
        assert await side.reader.answered_after(SystemClock().uptime(), 10.0)
        kubelet.devices.writes = False
        asked = side.reader.view.value.questions
        assert await side.reader.answered_after(SystemClock().uptime(), 2.0) is None
        assert "has not written" in side.reader.view.value.problem
        assert side.reader.view.value.questions == asked
        kubelet.devices.writes = True
        view = await side.reader.answered_after(SystemClock().uptime(), 20.0)
        assert view is not None
        assert view.problem == ""


async def test_a_question_during_which_kubelet_was_replaced_does_not_count(
    short_path: Path,
) -> None:
    async with registered_side(short_path) as (_, side):
        view = await side.reader.answered_after(SystemClock().uptime(), 10.0)
        assert view is not None
        side.started.extend([1, 2])
        asked = view.questions
        side.reader.ask("a test")
        await until(lambda: "replaced meanwhile" in side.reader.view.value.problem)
        assert side.reader.view.value.questions == asked


@pytest.mark.parametrize("harm", ["missing", "truncated", "garbage", "another version"])
async def test_a_checkpoint_that_cannot_be_read_is_told_and_its_last_content_kept(
    short_path: Path, harm: str
) -> None:
    async with registered_side(short_path) as (kubelet, side):
        await kubelet.give("u1", TPU, "a")
        assert await side.reader.answered_after(SystemClock().uptime(), 10.0)
        kubelet.devices.writes = False
        path = short_path / "dp" / "kubelet_internal_checkpoint"
        whole = path.read_bytes()
        temporary = path.with_name(".x")
        if harm == "missing":
            path.unlink()
        else:
            temporary.write_bytes(
                {"truncated": whole[:-20], "garbage": b"\x00" * 99, "another version": b"{}"}[harm]
            )
            temporary.rename(path)
        await until(lambda: not side.reader.view.value.readable)
        view = side.reader.view.value
        assert [entry.pod for entry in view.entries] == ["u1"]
        assert "kubelet's checkpoint" in view.problem
        assert not view.answered
        kubelet.devices.writes = True
        kubelet.devices.write()
        await until(lambda: side.reader.view.value.readable)


async def test_pod_resources_lists_pods_without_devices_too(short_path: Path) -> None:
    async with kubelet_below(short_path) as kubelet:
        kubelet.count(TPU, "a", "b", name="with")
        kubelet.count(TPU, name="without")
        async with PodResources(
            short_path / "pr.sock", deadline=Watched(5.0)
        ).connected() as list_pods:
            pods = await list_pods()
        assert [(pod.name, len(pod.devices)) for pod in pods] == [("with", 2), ("without", 0)]


async def test_a_list_of_pods_that_is_too_large_is_not_blamed_on_other_clients(
    short_path: Path,
) -> None:
    async with kubelet_below(short_path) as kubelet:
        kubelet.count(TPU, "a", name="x" * (17 << 20))
        async with PodResources(
            short_path / "pr.sock", deadline=Watched(5.0)
        ).connected() as list_pods:
            with pytest.raises(KubeletError, match="at most 16 MiB: there are too many pods"):
                await list_pods()


async def test_a_kubelet_that_takes_connections_and_says_nothing_is_given_up_in_time(
    short_path: Path,
) -> None:
    path = short_path / "pr.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        with pytest.raises(KubeletError, match=r"no connection within 0\.2 s; is kubelet running"):
            async with PodResources(path, deadline=Watched(0.2)).connected():
                pass
        patience = Watched(3600.0)
        pods = PodResources(path, deadline=patience)
        patience.set(0.1)
        with pytest.raises(KubeletError, match=r"no connection within 0\.1 s"):
            async with pods.connected():
                pass


async def test_traffic_is_quiet_only_after_a_calm_while() -> None:
    traffic, clock = Traffic(), ManualClock()
    traffic.began()
    quiet = asyncio.create_task(traffic.quiet(clock, seconds=0.1))
    await clock.advance(1.0)
    assert not quiet.done()
    traffic.ended()
    await clock.advance(0.05)
    traffic.began()
    traffic.ended()
    await clock.advance(0.09)
    assert not quiet.done()
    await clock.advance(0.11)
    assert quiet.done()
    await quiet


async def test_what_kubelet_wrote_after_its_answer_is_no_complete_answer_any_more(
    short_path: Path,
) -> None:
    never = QuestionSettings(settle=Duration(3600), idle_interval=Interval(3600))
    async with registered_side(short_path, questions=never) as (kubelet, side):
        side.reader.ask("a test")
        await until(lambda: side.reader.view.value.answered)
        await kubelet.give("u1", TPU, "a")
        await until(lambda: side.reader.view.value.counts(PodUid("u1")))
        assert not side.reader.view.value.answered


async def test_an_answer_is_read_when_kubelet_has_written_all_of_it(short_path: Path) -> None:
    # A write that was under way already may be the first that is seen.
    async with registered_side(short_path, calm=1.0) as (kubelet, side):
        await until(lambda: side.reader.view.value.questions)
        await kubelet.give("u1", TPU, "a")
        answer = await _asked_and_not_answered(side, kubelet)
        kubelet.devices.write()
        await until(lambda: side.watch.state.value.checkpoint == FileId.of(side.watch.checkpoint))
        kubelet.forget()
        kubelet.devices.write()
        assert (await answer).entries == ()


async def test_a_pod_that_comes_during_a_question_leaves_no_name_for_its_devices(
    short_path: Path,
) -> None:
    # It may have the devices of a pod that List still named.
    never = QuestionSettings(settle=Duration(3600), idle_interval=Interval(3600))
    async with registered_side(short_path, questions=never) as (kubelet, side):
        await kubelet.give("u1", TPU, "a")
        answer = await _asked_and_not_answered(side, kubelet)
        await kubelet.give("u2", TPU, "b")
        view = await answer
        assert {entry.pod for entry in view.entries} == {"u1", "u2"}
        assert view.pods == ()


async def _asked_and_not_answered(side: Side, kubelet: Kubelet) -> asyncio.Task[KubeletView]:
    """Return the answer to come to a question for which kubelet has not written its checkpoint yet.

    It has listed its pods and has the device list that was sent once more.
    """
    view = side.reader.view.value
    kubelet.devices.writes = False
    await until(lambda: kubelet.messages.get(TPU))
    heard = len(kubelet.messages[TPU])
    answer = asyncio.create_task(side.reader.view.until(lambda now: now.questions > view.questions))
    side.reader.ask("a test")
    await until(lambda: len(kubelet.messages[TPU]) > heard)
    kubelet.devices.writes = True
    return answer
