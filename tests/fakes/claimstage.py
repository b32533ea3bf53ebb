"""A node whose chips come by claims: the real daemon, an API server, and kubelet's calls."""

import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from grpc import aio

from fakes.claimrecord import write_record
from fakes.controlplane import NODE, ControlPlane, control_plane
from fakes.opener import Opener, opener
from fakes.stage import Stage, stage
from holdfast._pb.dra.v1 import api_pb2, api_pb2_grpc
from holdfast.model.ids import ClaimRef, ClaimUid
from simulated.cluster.objects import CLAIMS, add, allocate, wanting
from simulated.drastate import STATE

DRIVER = "holdfast.dev"
NAMESPACE = "team"


@dataclass
class Claim:
    """A claim on the API server; `name` and `uid` are what kubelet says of it."""

    name: str
    uid: str
    pods: tuple[str, ...]

    @property
    def message(self) -> api_pb2.Claim:
        return api_pb2.Claim(namespace=NAMESPACE, uid=self.uid, name=self.name)


@dataclass
class ClaimStage:
    """The node, and what kubelet and the scheduler do to it."""

    node: Stage
    plane: ControlPlane
    root: Path
    """Kubelet's root folder."""
    kind: str = "tpu"
    """What the chips are called in ResourceSlices."""
    holders: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def label(self, chip: int) -> str:
        """Return the name of a chip in ResourceSlices."""
        return f"{self.kind}-0000-00-{5 + chip:02x}-0"

    def allocate(
        self,
        name: str,
        *chips: int,
        pods: Sequence[str] | None = None,
        driver: str = DRIVER,
        pool: str = NODE,
        device: str = "",
        more: Sequence[dict[str, Any]] = (),
        **changes: Any,
    ) -> Claim:
        """Let the scheduler allocate *chips* to a new claim for *pods*, one of them by default.

        *more* are further results, each with its request and its device.
        """
        users = (str(uuid4()),) if pods is None else tuple(pods)
        results = [
            {"request": "chips", "driver": driver, "pool": pool, "device": each, **changes}
            for each in ([device] if device else map(self.label, chips))
        ]
        results += [{"driver": driver, "pool": pool} | each for each in more]
        made = add(
            self.plane.store, CLAIMS, name, namespace=NAMESPACE, spec=wanting("tpu", "chips")
        )
        reserved = ({"name": f"pod-of-{name}-{n}", "uid": each} for n, each in enumerate(users))
        allocate(self.plane.store, made, results, reserved)
        return Claim(name, made["metadata"]["uid"], users)

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[api_pb2_grpc.DRAPluginStub]:
        path = self.root / "plugins" / DRIVER / "dra.sock"
        async with aio.insecure_channel(f"unix:{path}") as channel:
            yield api_pb2_grpc.DRAPluginStub(channel)

    async def prepare(
        self, *claims: Claim, timeout: float = 45.0
    ) -> dict[str, api_pb2.NodePrepareResourceResponse]:
        """Do as kubelet does before it makes a pod's sandbox."""
        request = api_pb2.NodePrepareResourcesRequest(claims=[each.message for each in claims])
        async with self._stub() as stub:
            answer = await stub.NodePrepareResources(request, timeout=timeout)
        return {each.name: answer.claims[each.uid] for each in claims}

    async def unprepare(self, *claims: Claim) -> dict[str, str]:
        """Do as kubelet does once a pod's containers are stopped."""
        request = api_pb2.NodeUnprepareResourcesRequest(claims=[each.message for each in claims])
        async with self._stub() as stub:
            answer = await stub.NodeUnprepareResources(request, timeout=45.0)
        return {each.name: answer.claims[each.uid].error for each in claims}

    async def be_patient(self) -> None:
        """Have each Unprepare wait until all is free, however slow the machine is."""
        section = {**self.node.settings["dra"], "unprepareWait": "60s"}
        await self.node.reload(dra=section)

    async def prepared(self, claim: Claim) -> list[str]:
        """Return the CDI names of a claim, which must be prepared."""
        answer = (await self.prepare(claim))[claim.name]
        assert not answer.error, answer.error
        return [name for device in answer.devices for name in device.cdi_device_ids]

    async def error(self, claim: Claim) -> str:
        """Return why *claim* is not prepared; empty: it is."""
        return (await self.prepare(claim))[claim.name].error

    async def queued(self, claim: Claim) -> bool:
        """Tell whether *claim* waits for a device."""
        rows = await self.node.asked("locks") or ()
        return any(row["state"] == "queued" and row["claimUid"] == claim.uid for row in rows)

    def spec(self, claim: Claim) -> dict[str, Any]:
        """Return the CDI spec of a claim as it is on disk."""
        found: dict[str, Any] = json.loads(self.spec_file(claim).read_text())
        return found

    def spec_file(self, claim: Claim) -> Path:
        return self.node.specs / f"{DRIVER}-claim_{claim.uid}.json"

    def path(self, chip: int) -> Path:
        """Return where the node of a chip's group is."""
        function = self.node.node.root.sys / f"bus/pci/devices/0000:00:{5 + chip:02x}.0"
        number = (function / "iommu_group").resolve().name
        return self.node.node.node(f"/dev/vfio/{number}")

    async def leaves_behind(self, pod: str, chip: int) -> Callable[[], bool]:
        """Let an orphan of *pod* have a chip open, and the daemon see it.

        Return what tells whether it lives.
        """
        script = 'sleep 1000 3<>"$0" >&- & echo $!'
        shell = subprocess.run(
            ["/bin/sh", "-c", script, str(self.path(chip))], stdout=subprocess.PIPE, check=True
        )
        pid = int(shell.stdout)
        self.node.node.add_pod(pod)
        self.node.node.enter(pod, "main", pid)
        await self.node.until(lambda: self.node.asked("holders"), f"pid {pid} to be seen")
        return lambda: pid in self.node.node.members(pod)

    def opens(self, pod: str, chip: int) -> Opener:
        """Let a process of *pod* open a chip."""
        return self._opens(pod, self.path(chip))

    def opens_gpu(self, pod: str, index: int) -> Opener:
        """Let a process of *pod* open a GPU."""
        return self._opens(pod, self.node.node.node(f"/dev/nvidia{index}"))

    def _opens(self, pod: str, path: Path) -> Opener:
        held = self.holders.enter_context(opener(path))
        self.node.node.add_pod(pod)
        self.node.node.enter(pod, "main", held.pid)
        return held

    def record(
        self,
        claim: Claim,
        pods: Collection[str] | None = None,
        *,
        device: str | None = None,
        driver: str = DRIVER,
    ) -> None:
        """Let kubelet's record have *claim* for *pods*, its own by default, with its first chip."""
        write_record(
            self.root / STATE,
            ClaimRef(NAMESPACE, ClaimUid(claim.uid), claim.name),
            claim.pods if pods is None else pods,
            device=self.label(0) if device is None else device,
            driver=driver,
            pool=NODE,
        )

    async def serve_by_plugin(self) -> None:
        """Have the next daemon offer the chips by the device plugin, and return when it does."""
        self.node.kill()
        self.node.configure(tpu={"api": "device-plugin"})
        await self.node.start_and_register()
        await self.node.until(lambda: bool(self.node.healthy()), "the chips to be offered")

    async def serve_by_claims(self) -> None:
        """Have the next daemon serve the chips by claims, and return when it can be asked."""
        self.node.kill()
        self.node.configure(tpu={"api": "dra"})
        await begin(self)

    async def history(self, chip: int) -> list[str]:
        """Return the evidence of each move of a chip."""
        moves = await self.node.asked("history", limit=1000) or ()
        return [move["evidence"] for move in moves if move["device"].endswith(f":{5 + chip:02x}.0")]


@contextlib.asynccontextmanager
async def claim_stage(
    folder: Path,
    *,
    kind: str = "tpu",
    chips: int = 2,
    unprepare_wait: str = "3s",
    minor: int = 36,
    start: bool = True,
    claim_state: str = "",
    **changes: Any,
) -> AsyncIterator[ClaimStage]:
    """Yield a node of Kubernetes 1.*minor* with *chips* whose driver is registered; the daemon can be killed."""
    root = folder / "kl"
    for name in ("plugins", "plugins_registry"):
        (root / name).mkdir(parents=True)
    with control_plane(folder, minor=minor) as plane, contextlib.ExitStack() as holders:
        settings: dict[str, Any] = {
            "tpu": {"api": "dra"},
            "dra": {
                "nodeName": NODE,
                "kubeletRoot": str(root),
                "claimState": claim_state,
                "serviceAccount": str(plane.account),
                "unprepareWait": unprepare_wait,
            },
            **changes,
        }
        async with stage(
            folder,
            chips=chips,
            start=False,
            own_process=True,
            environment=plane.server.environment,
            **settings,
        ) as node:
            made = ClaimStage(node=node, plane=plane, root=root, kind=kind, holders=holders)
            if start:
                await begin(made)
            yield made


async def begin(made: ClaimStage) -> None:
    """Start the daemon, and return when it can be asked to prepare claims."""
    socket = made.root / "plugins" / DRIVER / "dra.sock"
    before = _inode(socket)
    made.node.start()
    await made.node.until(lambda: _inode(socket) not in {0, before}, "the driver's socket")


def _inode(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0
