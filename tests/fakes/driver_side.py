"""The DRA driver's sockets, wired as the daemon wires them, with decisions a test can set."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpc import aio

from fakes.deciding import Decisions
from holdfast.dra.healthserver import HealthServer
from holdfast.dra.registration import DriverRegistrar, DriverTimes
from holdfast.dra.server import DEADLINE, ClaimServer
from holdfast.host.files.inotify import PathWatcher
from holdfast.kubelet.folder import FolderWatch
from holdfast.model.dra.claims import PrepareAnswer
from holdfast.model.ids import ClaimRef, ClaimUid
from holdfast.model.kubelet import RecordedDevice, Registration
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.runtime.watched import Watched
from simulated.dramanager import DraManager

DRIVER = "holdfast.test"
CHIP = RecordedDevice(
    pool="node-a",
    name="tpu-0",
    requests=("chips",),
    cdi_ids=("holdfast.test/claim=u-tpu-0",),
)


@dataclass
class Deciding(Decisions):
    """A door that can be told to refuse, to fail, or to wait."""

    refusals: dict[str, str] = field(default_factory=dict)
    """Why claims are refused, by UID."""
    calls: list[tuple[str, tuple[ClaimRef, ...]]] = field(default_factory=list)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, PrepareAnswer]:
        errors = await self._decide("prepare", claims)
        return {
            uid: PrepareAnswer(error=error) if error else PrepareAnswer(devices=(CHIP,))
            for uid, error in errors.items()
        }

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, str]:
        return await self._decide("unprepare", claims)

    async def _decide(self, call: str, claims: Sequence[ClaimRef]) -> Mapping[ClaimUid, str]:
        self.calls.append((call, tuple(claims)))
        await self.decided()
        return {claim.uid: self.refusals.get(claim.uid, "") for claim in claims}


@dataclass
class DriverSide:
    """A running driver below `root`, kubelet's root folder."""

    root: Path
    registrar: DriverRegistrar
    door: Deciding
    serving: "asyncio.Task[None]"

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Neither serve nor stay registered until the block's end; then do both again."""
        await _cancel(self.serving)
        for server in (self.registrar._registration_socket, self.registrar._service):
            await server.stop(0.0)
        try:
            yield
        finally:
            self.serving = asyncio.create_task(self.registrar.run())

    @property
    def state(self) -> Registration:
        return self.registrar.registration.value

    @property
    def socket(self) -> Path:
        return self.root / "plugins" / DRIVER / "dra.sock"

    @property
    def registration_socket(self) -> Path:
        return self.root / "plugins_registry" / f"{DRIVER}-reg.sock"


QUICK = DriverTimes(first_delay=0.01, last_delay=0.05)


@contextlib.asynccontextmanager
async def driver_side(
    root: Path,
    *,
    driver: str = DRIVER,
    times: DriverTimes = QUICK,
    deadline: float = DEADLINE,
    health: HealthServer | None = None,
) -> AsyncIterator[DriverSide]:
    """Yield a driver that serves and registers below *root*."""
    clock, paths, lane = SystemClock(), PathWatcher(), Lane("kubelet", deadline=60.0)
    door = Deciding()
    claims = ClaimServer(door, deadline=deadline)

    def watch(folder: Path, prefix: str) -> FolderWatch:
        return FolderWatch(
            folder=folder, prefix=prefix, paths=paths, lane=lane, interval=Watched(0.05)
        )

    plugins = watch(root / "plugins" / driver, "dra")
    registry = watch(root / "plugins_registry", f"{driver}-reg")
    registrar = DriverRegistrar(
        driver=driver,
        plugins=plugins,
        registry=registry,
        services=[each.add_to for each in (claims, health) if each is not None],
        lane=lane,
        clock=clock,
        times=times,
    )
    watches = [asyncio.create_task(each.run()) for each in (plugins, registry)]
    side = DriverSide(root, registrar, door, asyncio.create_task(registrar.run()))
    try:
        yield side
    finally:
        for task in (*watches, side.serving):
            await _cancel(task)
        door.hold.set()
        await registrar.close()
        paths.close()
        lane.close(patience=2.0)


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    (end,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(end, asyncio.CancelledError), end


@contextlib.asynccontextmanager
async def dra_kubelet(root: Path, made: DraManager | None = None) -> AsyncIterator[DraManager]:
    """Yield the half of a kubelet with *root* that knows DRA drivers, as it was *made* or plain."""
    (root / "plugins").mkdir(parents=True, exist_ok=True)
    manager = made or DraManager(root)
    await manager.start()
    try:
        yield manager
    finally:
        await manager.stop()


def dial(path: Path) -> aio.Channel:
    return aio.insecure_channel(f"unix://{path}", [("grpc.use_local_subchannel_pool", 1)])
