"""What is known of the server's slices, whichever of our writes and its watch comes first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from holdfast.apiserver.resourceslices import SliceEvent
from holdfast.dra.publisher import SliceMirror
from holdfast.errors import ApiServerError
from holdfast.model.dra.resourceslice import ResourceSlice, SliceMetadata, SlicePool, SliceSpec
from holdfast.runtime.clock import SystemClock
from manual_clock import ManualClock
from waiting import beside, until


class Server:
    """Lists nothing at version 10, then tells what a test puts into `events`.

    It lets nobody list or watch while it `refuses` that.
    """

    def __init__(self) -> None:
        self.events: asyncio.Queue[SliceEvent] = asyncio.Queue()
        self.lists = 0
        self.refuses = ""

    async def read_all(self) -> tuple[dict[str, ResourceSlice], str]:
        self.lists += 1
        if self.refuses == "list":
            raise ApiServerError("cannot list")
        return {}, "10"

    async def follow(self, version: str, *, begun: Callable[[], None]) -> AsyncIterator[SliceEvent]:
        if self.refuses == "watch":
            raise ApiServerError("cannot watch")
        begun()
        while True:
            yield await self.events.get()


def made(version: int, uid: str = "one") -> ResourceSlice:
    pool = SlicePool(name="node", generation=1, resource_slice_count=1)
    return ResourceSlice(
        metadata=SliceMetadata(name="s", uid=uid, resource_version=str(version)),
        spec=SliceSpec(driver="d", pool=pool, node_name="node"),
    )


def told(slice_: ResourceSlice, *, version: int | None = None, deleted: bool = False) -> SliceEvent:
    at = slice_.metadata.resource_version if version is None else str(version)
    return SliceEvent(version=at, stored=slice_, deleted=deleted)


@pytest.mark.parametrize(
    ("events", "written", "known"),
    [
        ([], made(11), made(11)),
        ([told(made(11)), told(made(11), version=12, deleted=True)], made(11), None),
        ([told(made(11)), told(made(12))], made(11), made(12)),
        ([told(made(11), version=12, deleted=True)], made(13, "two"), made(13, "two")),
        ([told(made(11))], made(12), made(12)),
        ([SliceEvent(version="12")], made(11), None),
    ],
    ids=["alone", "deleted since", "changed since", "made again", "changed", "bookmark past it"],
)
async def test_a_write_counts_only_if_the_watch_has_not_come_past_it(
    events: list[SliceEvent], written: ResourceSlice, known: ResourceSlice | None
) -> None:
    server = Server()
    mirror = SliceMirror(cast("Any", server), clock=SystemClock())
    async with beside(mirror.run()):
        await until(lambda: mirror.slices.value is not None)
        for each in events:
            server.events.put_nowait(each)
        await until(server.events.empty)
        await asyncio.sleep(0)
        mirror.stored(written)
        assert (mirror.slices.value or {}).get("s") == known


async def test_an_old_event_does_not_undo_a_write() -> None:
    server = Server()
    mirror = SliceMirror(cast("Any", server), clock=SystemClock())
    async with beside(mirror.run()):
        await until(lambda: mirror.slices.value is not None)
        mirror.stored(made(15, "two"))
        server.events.put_nowait(told(made(11), version=12, deleted=True))
        server.events.put_nowait(told(made(13, "two")))
        await until(server.events.empty)
        await asyncio.sleep(0)
        assert mirror.slices.value == {"s": made(15, "two")}
        mirror.read_again()
        await until(lambda: server.lists == 2)
        await until(lambda: mirror.slices.value == {})


async def test_a_server_that_can_be_listed_and_not_watched_is_told_once_until_it_can() -> None:
    server, clock = Server(), ManualClock()
    server.refuses = "watch"
    mirror = SliceMirror(cast("Any", server), clock=clock)
    with capture_logs() as logs:
        async with beside(mirror.run()):
            for tries in (1, 2, 3):
                await until(lambda: clock.sleepers)
                assert (server.lists, mirror.problem.text) == (tries, "cannot watch")
                server.refuses = "watch" if tries < 3 else ""
                clock.shift(60.0)
            await until(lambda: mirror.problem.text == "")
    assert [each["event"] for each in logs] == [
        "cannot read ResourceSlices",
        "ResourceSlices can be read again",
    ]


@pytest.mark.parametrize("refuses", ["list", "watch"])
async def test_what_cannot_be_true_is_read_again_at_once_also_after_a_failure(
    refuses: str,
) -> None:
    """Such as when kubelet has restarted, and has deleted every slice of its node."""
    server, clock = Server(), ManualClock()
    server.refuses = refuses
    mirror = SliceMirror(cast("Any", server), clock=clock)
    async with beside(mirror.run()):
        await until(lambda: clock.sleepers)
        server.refuses = ""
        mirror.read_again()
        await until(lambda: server.lists == 2, what="it to be listed again")
        await until(lambda: mirror.problem.text == "")
        assert clock.sleepers == 0
