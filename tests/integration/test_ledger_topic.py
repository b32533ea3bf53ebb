"""What a part keeps in the ledger, where the disk is slow."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from fakes.ledgers import ledger_in
from holdfast.errors import LaneStuckError
from holdfast.ledger.topic import LedgerTopic


class _Kept(Struct, frozen=True, kw_only=True):
    text: str


async def test_what_is_kept_last_stands_whatever_came_of_the_commit_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that took too long may still come, after what is published."""
    async with ledger_in(tmp_path) as ledger:
        topic, go_on = LedgerTopic(ledger, "test/kept", _Kept), threading.Event()
        lane, write = ledger.lane, ledger.store.write

        def hangs(*parts: Any) -> None:
            monkeypatch.undo()
            call = lane._current
            assert call is not None
            call.loop.call_soon_threadsafe(lane._give_up, call, 0.0)
            go_on.wait(60.0)
            write(*parts)

        monkeypatch.setattr(ledger.store, "write", hangs)
        with pytest.raises(LaneStuckError):
            await topic.keep({"one": _Kept(text="late")})
        last = asyncio.create_task(topic.keep({}))
        await asyncio.sleep(0)
        go_on.set()
        await last
        await lane.run(lambda: None)
        assert topic.value == {}
