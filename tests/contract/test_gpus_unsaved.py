"""What is known of GPUs, and a ledger that takes no write: it is tried again, and told once."""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path

import pytest
from structlog import get_logger
from structlog.testing import capture_logs

from fakes.inuse import holder_scan
from fakes.ledgers import ledger_in
from fakes.onegpu import RULES
from holdfast.errors import LedgerError
from holdfast.host.nvidia.nvml import Nvml
from holdfast.host.root import HostRoot
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.topic import LedgerTopic
from holdfast.model.book.book import Book
from holdfast.model.ids import BootId
from holdfast.model.nvidia.free import IdleMemory
from holdfast.model.nvidia.gpu import GpuReading
from holdfast.model.nvidia.xids import XidChecks
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Watched
from holdfast.vendors.nvidia.gpuusers import GpuUsers, HealthTimes, keep
from holdfast.vendors.nvidia.health import GpuHealthWatch
from waiting import beside, until

BOOT = BootId("boot")


class ImpatientClock(SystemClock):
    """Nothing that is slept takes longer than a moment."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.001))


CLOCK = ImpatientClock()


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with ledger_in(tmp_path, CLOCK) as ledger:
        yield ledger


def _health(ledger: Ledger) -> Coroutine[object, object, None]:
    return GpuHealthWatch(
        source=lambda _: Nvml(),
        readings=Watched(GpuReading()),
        ledger=ledger,
        lane=Lane("gpu health", deadline=30.0),
        clock=CLOCK,
        boot=BOOT,
        checks=Watched(XidChecks()),
        load=lambda: None,
        users=GpuUsers(named=holder_scan(HostRoot.under()).named, book=Book, rules=Watched(RULES)),
        times=Watched(HealthTimes(beat=60.0, quiet=60.0)),
        count=lambda _event, _condemns: None,
    ).run()


def _idle(ledger: Ledger) -> Coroutine[object, object, None]:
    known = {"GPU-0": IdleMemory(load="1", least=5, now=5)}
    memory: Watched[Mapping[str, IdleMemory]] = Watched(known)
    kept = LedgerTopic(ledger, "nvidia/idle", IdleMemory)
    problem = Problem(get_logger(), "cannot save what is known", over="what is known saved again")
    return keep(memory, kept, problem, CLOCK)


@pytest.mark.parametrize(
    ("work", "lost", "back"),
    [
        (_health, "cannot save the health of GPUs", "health of GPUs saved again"),
        (_idle, "cannot save what is known", "what is known saved again"),
    ],
)
async def test_what_the_ledger_does_not_take_is_tried_again_and_told_once(
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Ledger], Coroutine[object, object, None]],
    lost: str,
    back: str,
) -> None:
    tries = 0

    async def refused(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        raise LedgerError("cannot write the ledger: attempt to write a readonly database")

    with capture_logs() as logs:
        monkeypatch.setattr(Ledger, "apply", refused)
        async with beside(work(ledger)):
            await until(lambda: tries > 5)
            monkeypatch.undo()
            await until(lambda: any(each["event"] == back for each in logs))

    told = [each["event"] for each in logs if each["event"] in {lost, back}]
    assert told == [lost, back]
