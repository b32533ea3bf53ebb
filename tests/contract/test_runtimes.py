"""Since when a runtime has let go of a pod: what shows a container again starts that time over."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.books import INIT, SHIM, X
from fakes.runtimes import RuntimeFolder, spec
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.root import HostRoot
from holdfast.model.ids import ProcessId
from holdfast.model.reclaim.ending import Member, Parent, RuntimeEvidence, runtime_seen
from holdfast.model.use.holders import Sandbox
from holdfast.reclaim.pods import Pods
from holdfast.runtime.lane import Lane
from manual_clock import ManualClock

_SANDBOX = "s1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(tmp_path: Path) -> RuntimeFolder:
    return RuntimeFolder(HostRoot.under(tmp_path).run)


class Runtimes:
    """Looks at pod X again and again, with what its processes are handed in."""

    def __init__(self, pods: Pods, clock: ManualClock) -> None:
        self._pods = pods
        self._clock = clock
        self._seen = RuntimeEvidence()

    async def look(self, members: Sequence[Member]) -> RuntimeEvidence:
        state = await self._pods.runtime_state(X, members)
        self._seen = runtime_seen(self._seen, members, state, self._clock.monotonic())
        return self._seen


@pytest.fixture
def runtimes(tmp_path: Path, clock: ManualClock) -> Iterator[Runtimes]:
    lane = Lane("runtime", deadline=20.0)
    anything: Any = None  # only files are read here
    pods = Pods(
        cgroups=anything,
        runtimes=RuntimeFiles(HostRoot.under(tmp_path)),
        procfs=anything,
        pidfds=anything,
        lane=lane,
        ledger=anything,
    )
    yield Runtimes(pods, clock)
    lane.close()


def _member(parent: Parent, sandbox: Sandbox | None = None) -> Member:
    return Member(
        process=ProcessId(4242, 99), command="exe", parent=parent, in_pod=X, sandbox=sandbox
    )


async def test_a_container_that_shows_again_starts_the_time_since_the_last_one_over(
    runtimes: Runtimes, clock: ManualClock
) -> None:
    orphan, child = _member(INIT), _member(SHIM)
    began = (await runtimes.look([orphan])).gone_at
    assert began == clock.monotonic()
    clock.shift(20.0)
    assert (await runtimes.look([orphan])).gone_at == began
    assert (await runtimes.look([orphan, child])).gone_at is None
    clock.shift(20.0)
    assert (await runtimes.look([orphan])).gone_at == clock.monotonic()


async def test_a_container_in_a_sandbox_starts_the_time_of_nothing_but_pause_over(
    runtimes: Runtimes, clock: ManualClock, files: RuntimeFolder
) -> None:
    sentry = _member(SHIM, Sandbox.SENTRY)
    files.bundle(_SANDBOX, spec("sandbox", _SANDBOX, uid=X))
    began = (await runtimes.look([sentry])).only_pause_at
    assert began == clock.monotonic()
    clock.shift(100.0)
    assert (await runtimes.look([sentry])).only_pause_at == began
    work = files.bundle("c1", spec("container", _SANDBOX, uid=X))
    assert (await runtimes.look([sentry])).only_pause_at is None
    work.unlink()
    work.parent.rmdir()
    clock.shift(100.0)
    assert (await runtimes.look([sentry])).only_pause_at == clock.monotonic()


async def test_files_that_never_could_be_read_start_no_time(
    runtimes: Runtimes, files: RuntimeFolder
) -> None:
    files.bundle(_SANDBOX, "{")
    assert (await runtimes.look([_member(SHIM, Sandbox.SENTRY)])).only_pause_at is None


async def test_of_a_pod_with_a_program_beside_its_sandbox_the_files_are_read(
    runtimes: Runtimes, files: RuntimeFolder
) -> None:
    files.bundle(_SANDBOX, spec("sandbox", _SANDBOX, uid=X))
    seen = await runtimes.look([_member(INIT), _member(INIT, Sandbox.SENTRY)])
    assert seen.state is not None
    assert seen.only_pause_at is not None
    beside = await runtimes.look([_member(SHIM), _member(SHIM, Sandbox.SENTRY)])
    assert beside.only_pause_at is None


async def test_a_pod_without_a_sandbox_has_no_state(runtimes: Runtimes) -> None:
    assert (await runtimes.look([_member(INIT)])).state is None


async def test_files_that_cannot_be_read_for_a_moment_neither_start_nor_end_that_time(
    runtimes: Runtimes, clock: ManualClock, files: RuntimeFolder
) -> None:
    sentry = _member(SHIM, Sandbox.SENTRY)
    files.bundle(_SANDBOX, spec("sandbox", _SANDBOX, uid=X))
    began = (await runtimes.look([sentry])).only_pause_at
    broken = files.bundle("c1", "{")
    clock.shift(50.0)
    seen = await runtimes.look([sentry])
    assert seen.state is not None
    assert not seen.state.only_pause
    assert seen.only_pause_at == began
    broken.unlink()
    broken.parent.rmdir()
    assert (await runtimes.look([sentry])).only_pause_at == began
