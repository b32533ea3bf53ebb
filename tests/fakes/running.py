"""The real daemon in this process, on a simulated node, with the simulated kubelet for a caller."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import aio

from holdfast._pb.deviceplugin.v1beta1 import api_pb2 as dp
from holdfast._pb.deviceplugin.v1beta1 import api_pb2_grpc as dp_grpc
from holdfast.app.daemon import run
from holdfast.control import ask
from holdfast.settings import convert
from simulated.kubelet import Kubelet
from simulated.node import SimulatedNode
from simulated.podworker import KubeletTimes
from simulated.runtime import Runtime
from waiting import until

TPU = "google.com/tpu"
CHIPS = ("0000:00:05.0", "0000:00:06.0", "0000:00:07.0", "0000:00:08.0")
# What a user waits minutes for, a test waits a moment for.
_SETTINGS: dict[str, Any] = {
    "withholdAfter": "1s",
    "discovery": {"rescan": "100ms", "heldCheck": "100ms"},
    "gate": {"wait": "500ms", "poll": "50ms"},
    "reclaim": {"poll": "100ms", "releasePoll": "50ms", "unseenGrace": "300ms"},
    "http": {"port": 0},
}
_QUESTION = {"minInterval": "50ms", "settle": "50ms", "idleInterval": "2s"}


@dataclass
class Running:
    """A node with four chips, a kubelet, and a daemon that a test may end and start again."""

    folder: Path
    node: SimulatedNode
    kubelet: Kubelet
    changes: dict[str, Any]
    daemon: asyncio.Task[bool] | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self) -> asyncio.Task[bool]:
        root = self.node.root
        names = ("sys", "proc", "dev", "cgroup", "etc", "run")
        settings = {
            **_SETTINGS,
            **self.changes,
            "stateDir": str(self.state),
            "host": {name: str(getattr(root, name)) for name in names},
            "kubelet": {
                "pluginDir": str(self.folder / "dp"),
                "podResourcesSocket": str(self.folder / "pr.sock"),
                "poll": "100ms",
                "question": _QUESTION,
            },
        }
        self.daemon = asyncio.create_task(run(convert(settings)))
        return self.daemon

    async def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.cancel()
            await asyncio.gather(self.daemon, return_exceptions=True)
            self.daemon = None

    async def until(self, predicate: Callable[[], object], what: str = "") -> None:
        def happened() -> object:
            if self.daemon is not None and self.daemon.done():
                self.daemon.result()
                raise AssertionError("the daemon ended by itself")
            return predicate()

        await until(happened, what=what)

    def healthy(self) -> set[str]:
        """Return what kubelet would grant."""
        endpoint = self.kubelet.devices.endpoints.get(TPU)
        return endpoint.healthy if endpoint is not None else set()

    async def allocate(self, *ids: str) -> dp.ContainerAllocateResponse:
        """Call Allocate as kubelet's sync loop does."""
        request = dp.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        answer = await self._stub().Allocate(request)
        (only,) = answer.container_responses
        return only

    async def refusal(self, *ids: str) -> str:
        """Return why Allocate refuses *ids*."""
        try:
            await self.allocate(*ids)
        except aio.AioRpcError as error:
            return error.details() or ""
        raise AssertionError(f"{ids} were allocated")

    def counted(self, *ids: str) -> str:
        """Let kubelet have *ids* in its books for a new pod; return its UID."""
        return self.kubelet.count(TPU, *ids).uid

    def over(self, uid: str) -> None:
        """Let kubelet forget a pod."""
        del self.kubelet.pods[uid]

    async def gate(self, *ids: str) -> str:
        """Call PreStartContainer; return the refusal, or nothing."""
        try:
            await self._stub().PreStartContainer(dp.PreStartContainerRequest(devices_ids=ids))
        except aio.AioRpcError as error:
            return error.details() or "refused"
        return ""

    async def asked(self, question: str) -> Any:
        return await asyncio.to_thread(ask, self.state, question)

    async def lock_states(self) -> dict[str, str]:
        rows = await self.asked("locks")
        return {row["device"].rpartition("/")[2]: row["state"] for row in rows}

    def _stub(self) -> dp_grpc.DevicePluginStub:
        return self.kubelet.devices.plugin(TPU)


@contextlib.asynccontextmanager
async def running(folder: Path, *, start: bool = True, **changes: Any) -> AsyncIterator[Running]:
    """Yield a node whose daemon has registered (or not been started); *folder* is short."""
    node = SimulatedNode(folder / "node", chips=len(CHIPS))
    kubelet = Kubelet(
        folder / "dp", folder / "pr.sock", Runtime(node), times=KubeletTimes(finished=0.0)
    )
    made = Running(folder=folder, node=node, kubelet=kubelet, changes=changes)
    keeper = asyncio.create_task(node.run())
    try:
        await kubelet.start()
        if start:
            made.start()
            await made.until(lambda: made.healthy() == set(CHIPS), "every chip to be healthy")
        yield made
    finally:
        await made.stop()
        await kubelet.close()
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        node.close()
