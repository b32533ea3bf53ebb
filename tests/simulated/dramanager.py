"""Kubelet's DRA manager: has claims prepared before a sandbox and unprepared after its pod."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpc import aio

from simulated.clock import Clock, RealClock
from simulated.cluster.objects import CLAIMS, SLICES
from simulated.cluster.store import Place, RefusedError, Selector, Store
from simulated.draplugins import CALL, KUBELET_1_37, DraPlugins, Plugin, Wipe
from simulated.drastate import STATE, ClaimCache, ClaimInfo
from simulated.pluginwatcher import DRA_PLUGIN, PluginWatcher
from simulated.pods import Container, Pod

ClaimObjects = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]
"""Returns the ResourceClaim of a namespace and a name as the API server has it, None without."""


class DraError(Exception):
    """A pod's claims cannot be prepared or unprepared now; the text is kubelet's own."""


async def _no_claims(_namespace: str, _name: str) -> None:
    return None


async def _no_slices(_driver: str | None) -> None:
    pass


class DraManager:
    """One kubelet's manager; `start` and `stop` are a kubelet's."""

    def __init__(
        self,
        root: Path,
        *,
        objects: ClaimObjects = _no_claims,
        wipe: Wipe = _no_slices,
        clock: Clock | None = None,
        services: Sequence[str] = KUBELET_1_37,
    ) -> None:
        """Use *root*, kubelet's root folder, and know gRPC *services*."""
        self.root = root
        self.clock = clock or RealClock()
        self.plugins = DraPlugins(clock=self.clock, wipe=wipe, services=services)
        self.watcher = PluginWatcher(
            root / "plugins_registry", clock=self.clock, handlers={DRA_PLUGIN: self.plugins}
        )
        self.cache = ClaimCache(root / STATE)
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        """The calls that drivers got, by their short names, with the UIDs of the claims."""
        self.unprepares_early = False
        """Unprepare a claim with the first pod that goes, whoever else uses it, as some kubelets
        before k/k#140212 and k/k#140527 did."""
        self.appends_devices = False
        """Keep what a driver answered before a restart beside what it answers now, as some kubelets
        did (k/k#140471)."""
        self._objects = objects
        self._wipe = wipe
        self._changing = asyncio.Lock()

    @classmethod
    def on_cluster(cls, root: Path, store: Store, node: str) -> "DraManager":
        """Return one that reads claims of *store*, and deletes the slices of *node* there."""

        async def claim(namespace: str, name: str) -> Mapping[str, Any] | None:
            try:
                return store.get(Place(kind=CLAIMS, namespace=namespace, name=name))
            except RefusedError:
                return None

        async def wipe(driver: str | None) -> None:
            wanted = f"spec.nodeName={node}" + (f",spec.driver={driver}" if driver else "")
            store.delete_collection(Place(kind=SLICES), Selector.of(wanted, SLICES.plural))

        return cls(root, objects=claim, wipe=wipe)

    async def start(self) -> None:
        """Read what was written, delete the node's slices, and look for drivers.

        Raises UnreadableStateError: kubelet then does not start.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self.cache.read()
        await self._wipe(None)
        await self.watcher.start()

    async def stop(self) -> None:
        """Stop, as at a restart: calls in flight fail, and no slices are deleted."""
        await self.watcher.stop()
        await self.plugins.stop()

    async def prepare(self, pod: Pod) -> None:
        """Have all claims of *pod* prepared that are not yet; raise DraError when one fails."""
        batches: dict[str, list[ClaimInfo]] = {}
        found = [await self._claim(pod, name) for name in pod.spec.claims.values()]
        for claim in found:
            for driver in _drivers(claim):
                if self.plugins.newest(driver) is None:
                    raise DraError(f"DRA driver {driver} is not registered")
        async with self._changing:
            for claim in found:
                info = self._noted(pod, claim)
                for driver in [] if info.prepared else _drivers(claim):
                    batches.setdefault(driver, []).append(info)
            self.cache.write()
        for driver, infos in batches.items():
            await self._prepare(driver, infos)
        async with self._changing:
            for info in self.cache.of_pod(pod.uid):
                info.prepared = True
            self.cache.write()

    async def unprepare(self, pod: Pod) -> None:
        """Have the claims unprepared that no other pod uses; raise DraError when one fails."""
        await self._unprepare(pod.uid)

    async def unprepare_inactive(self, active: Collection[str]) -> None:
        """Do the same for every pod that is not *active*, by UID, as kubelet does each minute."""
        known = {uid for info in self.cache.claims.values() for uid in info.pods}
        for pod in sorted(known.difference(active)):
            try:
                await self._unprepare(pod)
            except DraError:
                continue

    def cdi(self, pod: Pod, container: Container) -> list[str]:
        """Return the CDI names that *container* is given; raise DraError where one is forgotten."""
        names: list[str] = []
        for claim, request in container.claims:
            name = pod.spec.claims[claim]
            info = self.cache.claims.get((pod.spec.namespace, name))
            if info is None:
                raise DraError(f"unable to get claim info for claim {name}: not in the cache")
            names += info.cdi(request)
        return list(dict.fromkeys(names))

    async def _claim(self, pod: Pod, name: str) -> Mapping[str, Any]:
        claim = await self._objects(pod.spec.namespace, name)
        if claim is None:
            raise DraError(
                f"failed to fetch ResourceClaim {name} referenced by pod {pod.spec.name}: "
                f'resourceclaims.resource.k8s.io "{name}" not found'
            )
        status = claim.get("status", {})
        if pod.uid not in {each["uid"] for each in status.get("reservedFor", ())}:
            raise DraError(
                f"pod {pod.spec.name} ({pod.uid}) is not allowed to use ResourceClaim {name}"
            )
        if "allocation" not in status:
            raise DraError(f"ResourceClaim {name} is not allocated")
        return claim

    def _noted(self, pod: Pod, claim: Mapping[str, Any]) -> ClaimInfo:
        metadata = claim["metadata"]
        key = (metadata["namespace"], metadata["name"])
        info = self.cache.claims.get(key)
        if info is None:
            info = ClaimInfo(namespace=key[0], name=key[1], uid=metadata["uid"])
            self.cache.claims[key] = info
        if info.uid != metadata["uid"]:
            raise DraError(
                f"old ResourceClaim with same name {info.name} and different UID {info.uid} still "
                "exists (previous pod force-deleted?!)"
            )
        for driver in _drivers(claim):
            info.drivers.setdefault(driver, [])
        info.pods.add(pod.uid)
        return info

    async def _prepare(self, driver: str, infos: Sequence[ClaimInfo]) -> None:
        plugin = self._plugin(driver)
        request = plugin.api.NodePrepareResourcesRequest(claims=_named(plugin, infos))
        answer = await self._call(plugin, "NodePrepareResources", request, infos)
        by_uid = {info.uid: info for info in infos}
        for uid, each in answer.claims.items():
            if uid not in by_uid:
                raise DraError(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if each.error:
                raise DraError(
                    "NodePrepareResources failed for ResourceClaim "
                    f"{by_uid[uid].name}: {each.error}"
                )
            known = by_uid[uid].drivers[driver] if self.appends_devices else []
            by_uid[uid].drivers[driver] = [*known, *(_device(device) for device in each.devices)]
        _check_all("NodePrepareResources", answer.claims, infos)

    async def _unprepare(self, pod: str) -> None:
        async with self._changing:
            batches: dict[str, list[ClaimInfo]] = {}
            for info in self.cache.of_pod(pod):
                if len(info.pods) > 1 and not self.unprepares_early:
                    info.pods.discard(pod)
                    continue
                for driver in info.drivers:
                    batches.setdefault(driver, []).append(info)
            self.cache.write()
        for driver, infos in batches.items():
            plugin = self._plugin(driver)
            request = plugin.api.NodeUnprepareResourcesRequest(claims=_named(plugin, infos))
            answer = await self._call(plugin, "NodeUnprepareResources", request, infos)
            for uid, each in answer.claims.items():
                if each.error:
                    raise DraError(
                        f"NodeUnprepareResources failed for ResourceClaim {uid}: {each.error}"
                    )
            _check_all("NodeUnprepareResources", answer.claims, infos)
        async with self._changing:
            for infos in batches.values():
                for info in infos:
                    # By its name, whoever has joined it since (before k/k#140527).
                    self.cache.claims.pop((info.namespace, info.name), None)
            self.cache.write()

    def _plugin(self, driver: str) -> Plugin:
        plugin = self.plugins.newest(driver)
        if plugin is None:
            raise DraError(f"DRA driver {driver} is not registered")
        return plugin

    async def _call(
        self, plugin: Plugin, call: str, request: Any, infos: Sequence[ClaimInfo]
    ) -> Any:
        """Return the driver's answer; it has 45 s of the clock that tests turn."""

        async def ask() -> Any:
            return await getattr(plugin.stub, call)(request)

        self.calls.append(
            (
                call.removeprefix("Node").removesuffix("Resources").lower(),
                tuple(info.uid for info in infos),
            )
        )
        answer = asyncio.create_task(ask())
        late = asyncio.create_task(self.clock.sleep(CALL))
        try:
            await asyncio.wait({answer, late}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise DraError(
                    f"{call}: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
                )
            return answer.result()
        except aio.AioRpcError as error:
            raise DraError(
                f"{call}: rpc error: code = {error.code().name} desc = {error.details()}"
            ) from error
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
            raise DraError(f"{call}: kubelet stopped while it waited for the driver") from None
        finally:
            answer.cancel()
            late.cancel()
            await asyncio.gather(answer, late, return_exceptions=True)


def _drivers(claim: Mapping[str, Any]) -> list[str]:
    results = claim["status"]["allocation"]["devices"]["results"]
    return list(dict.fromkeys(each["driver"] for each in results))


def _named(plugin: Plugin, infos: Sequence[ClaimInfo]) -> list[Any]:
    return [
        plugin.api.Claim(namespace=info.namespace, uid=info.uid, name=info.name) for info in infos
    ]


def _device(device: Any) -> dict[str, Any]:
    return {
        "PoolName": device.pool_name,
        "DeviceName": device.device_name,
        "ShareID": getattr(device, "share_id", "") or None,
        "RequestNames": list(device.request_names),
        "CDIDeviceIDs": list(device.cdi_device_ids),
    }


def _check_all(call: str, answers: Mapping[str, Any], infos: Sequence[ClaimInfo]) -> None:
    missing = [info for info in infos if info.uid not in answers]
    if missing:
        raise DraError(f"{call} skipped {len(missing)} ResourceClaims")
