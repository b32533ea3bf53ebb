"""What the API server shows the doctor: rights, and what the daemon needs for DRA and Events."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.apiserver.client import ApiObjectGoneError, ApiRefusedError, refusal, understood
from holdfast.apiserver.events import status_patched
from holdfast.apiserver.resourceslices import SLICES, slice_written
from holdfast.apiserver.wire import Access, ApiRequest, Wire, in_cluster, node_name
from holdfast.doctor.finding import Check, Finding, Node, or_well
from holdfast.doctor.kubelet import DRA_DRIVERS
from holdfast.doctor.programs import ask_daemon
from holdfast.errors import ApiServerError
from holdfast.model.dra.health import HELD, NO_SCHEDULE
from holdfast.model.dra.outcomes import ApiOutcome, api_outcome
from holdfast.model.dra.resourceslice import (
    CounterSet,
    Quantity,
    ResourceSlice,
    SliceContent,
    SliceDevice,
    SliceMetadata,
    SlicePool,
    SliceSpec,
    Taint,
)
from holdfast.model.dra.slices import SliceFields, kept_of, slice_name
from holdfast.model.text import some
from holdfast.runtime.clock import SystemClock
from holdfast.settings import Settings

T = TypeVar("T")

_PATIENCE = 5.0
"""Seconds for each answer."""
_GROUP = "resource.k8s.io"
_DRY_RUN = {"dryRun": "All"}
_NAME_IT = "set dra.nodeName, or the variable NODE_NAME, to the name that `kubectl get nodes` shows"
_PLACE = 0xFFFFF
"""The number of the slice that is tried; no node has so many."""
_WITH_GATE, _BY_DEFAULT = 32, 34
"""The minor versions of Kubernetes from which kubelet can have DRA, and has it by default."""
_MINOR = re.compile(r"v1\.(\d+)\.")
_IDENTITIES = frozenset({"pciBusID", "uuid"})
"""Attributes that name a piece of hardware, without their domain."""


class Right(Struct, frozen=True, kw_only=True):
    """What the daemon may ask of the API server."""

    verb: str
    resource: str
    group: str = _GROUP
    subresource: str = ""

    def __str__(self) -> str:
        """Return it as ``kubectl auth can-i`` takes it."""
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        part = f" --subresource={self.subresource}" if self.subresource else ""
        return f"{self.verb} {name}{part}"


RIGHTS = (
    Right(verb="get", resource="resourceclaims"),
    *(
        Right(verb=verb, resource="resourceslices")
        for verb in ("list", "watch", "create", "update", "delete")
    ),
    Right(verb="get", resource="nodes", group=""),
)
"""All that claims need; the chart's role has the same with `dra.enabled`."""

EVENT_RIGHTS = (
    Right(verb="create", resource="events", group=""),
    Right(verb="patch", resource="nodes", group="", subresource="status"),
)
"""All that `events.enabled` needs; the chart's role has the same with it."""

LABEL_RIGHTS = tuple(Right(verb=verb, resource="nodes", group="") for verb in ("get", "watch"))
"""All that `named.labels` needs; the chart's role has the same with several documents."""


class _Version(Struct, frozen=True, kw_only=True, rename="camel"):
    git_version: str = ""


class _Verdict(Struct, frozen=True, kw_only=True):
    allowed: bool = False


class _Review(Struct, frozen=True, kw_only=True):
    status: _Verdict = field(default_factory=_Verdict)


class _NodeInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    kubelet_version: str = ""


class NodeStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the Node object says: kubelet's version, and what device plugins advertise."""

    node_info: _NodeInfo = field(default_factory=_NodeInfo)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class _NodeBody(Struct, frozen=True, kw_only=True):
    status: NodeStatus = field(default_factory=NodeStatus)


class _Slices(Struct, frozen=True, kw_only=True):
    items: tuple[ResourceSlice, ...] | None = None


class Cluster:
    """The API server as the token of the service account may see it.

    Every method blocks, and raises ApiServerError when it cannot be asked, ApiRefusedError when it
    refuses.
    """

    def __init__(self, access: Access) -> None:
        """Ask the server of *access*."""
        self._wire = Wire(access, SystemClock())

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def version(self) -> str:
        """Return the server's version, such as ``v1.36.2``."""
        return self._ask(ApiRequest(about="the version", path=("version",)), _Version).git_version

    def lacking(self, rights: Iterable[Right]) -> tuple[Right, ...]:
        """Return which of *rights* the token does not have, by the server's own word."""
        return tuple(each for each in rights if not self._allowed(each))

    def node(self, name: str) -> NodeStatus:
        """Return what the Node *name* says."""
        request = ApiRequest(about=f"Node {name}", path=("api", "v1", "nodes", name))
        return self._ask(request, _NodeBody).status

    def touch_status(self, name: str) -> None:
        """Ask for a patch of the status of Node *name* that changes nothing."""
        self._ask(replace(status_patched(name, {}), query=_DRY_RUN), msgspec.Raw)

    def slices(self, node: str) -> Sequence[ResourceSlice]:
        """Return the slices of all drivers for *node*."""
        query = {"fieldSelector": f"spec.nodeName={node}"}
        request = ApiRequest(about=f"ResourceSlices of node {node}", path=SLICES, query=query)
        return self._ask(request, _Slices).items or ()

    def keeps(self, driver: str, node: str) -> SliceFields:
        """Return what the server keeps of a slice that is new."""
        taint = Taint(key=f"{driver}/{HELD}", value="doctor", effect=NO_SCHEDULE)
        device = SliceDevice(name="doctor", taints=(taint,), allow_multiple_allocations=True)
        counters = CounterSet(name="doctor", counters={"doctor": Quantity(value="1")})
        devices = SliceContent(devices=(device,))
        counted = SliceContent(shared_counters=(counters,))
        return replace(
            kept_of(devices, self._tried(devices, driver, node)),
            counters=kept_of(counted, self._tried(counted, driver, node)).counters,
        )

    def _tried(self, content: SliceContent, driver: str, node: str) -> SliceContent:
        """Return what would be stored of a slice with *content*."""
        spec = SliceSpec(
            driver=driver,
            node_name=node,
            pool=SlicePool(name=node, generation=1, resource_slice_count=1),
            devices=content.devices,
            shared_counters=content.shared_counters,
        )
        metadata = SliceMetadata(name=slice_name(driver, node, _PLACE))
        made = slice_written("POST", SLICES, metadata, spec)
        request = replace(made, about=f"{made.about}, as a dry run", query=_DRY_RUN)
        return self._ask(request, ResourceSlice).spec.content

    def _allowed(self, right: Right) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": msgspec.to_builtins(right)},
        }
        request = ApiRequest(
            about=f"a review of the right to {right}",
            method="POST",
            path=("apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"),
            body=msgspec.json.encode(review),
        )
        return self._ask(request, _Review).status.allowed

    def _ask(self, request: ApiRequest, kind: type[T]) -> T:
        answer = self._wire.exchange_within(request, _PATIENCE)
        if api_outcome(answer.status) in {ApiOutcome.BUSY, ApiOutcome.FAILED}:  # no word on rights
            raise ApiServerError(str(refusal(request, answer)))
        return understood(request, answer, kind)


def cluster_findings(
    node: Node,
    rights: Sequence[Right],
    find: Callable[[Cluster, str, bool], Iterator[Finding]],
    *,
    setting: str,
    may: str,
    unchecked: str,
    undone: str,
) -> Iterator[Finding]:
    """Yield whether the API server answers, whether the token has *rights*, and what *find* finds.

    That is asked with the node's name and with whether the token lacks none of them. The texts say
    what of the chart's values brings the rights and what one *may* with them, what is left
    *unchecked*, and what stays *undone* without the server.
    """
    server, rbac = Check("api-server"), Check("rbac")
    access = in_cluster(os.environ, Path(node.settings.dra.service_account))
    try:
        access.check()
    except ApiServerError as error:
        yield server.warn_or_fail(
            f"{error}; {unchecked} cannot be checked from here",
            remedy="run the doctor in the daemon's container: kubectl exec ... -- holdfast doctor; "
            f"there, without a token, {undone}: set {setting} in the chart's values",
            fails=bool(access.host),
        )
        return
    with closing(Cluster(access)) as cluster:
        try:
            yield server.ok(f"the API server at {access} answers, with {cluster.version()}")
            if lacking := cluster.lacking(rights):
                yield rbac.fail(
                    f"the service account may not {', '.join(map(str, lacking))}",
                    remedy=f"set {setting} in the chart's values, or give it these rights: "
                    "deploy/README.md has the reason of each",
                )
            else:
                yield rbac.ok(f"the service account may {may}")
            name = node_name(node.settings.dra.node_name, os.environ)
            yield from find(cluster, name, not lacking)
        except ApiServerError as error:
            yield server.fail(
                str(error),
                remedy="see whether the API server can be reached from the pod (network policy, "
                f"proxy, KUBERNETES_SERVICE_HOST); {undone} until it can",
            )


def dra_server_findings(node: Node) -> Iterator[Finding]:
    """Yield what the API server says, as the token of the service account may ask it."""
    return cluster_findings(
        node,
        RIGHTS,
        lambda cluster, name, _: chain(
            _of_node(cluster, node.settings, name), _of_slices(cluster, node, name)
        ),
        setting="dra.enabled: true",
        may="do what the daemon asks of the API server",
        unchecked="rights and ResourceSlices",
        undone="no new claim is prepared",
    )


def _of_node(cluster: Cluster, settings: Settings, name: str) -> Iterator[Finding]:
    try:
        status = cluster.node(name)
    except ApiObjectGoneError:
        yield Check("node-name").fail(
            f"the cluster has no Node {name}: slices and claims are of other nodes",
            remedy=_NAME_IT,
        )
        return
    except ApiRefusedError:
        return  # the row `rbac` says so
    yield Check("node-name").ok(f"the cluster has the Node {name}")
    yield _release(status.node_info.kubelet_version)
    well = Check("device-plugin").ok("no device plugin advertises what is served by DRA")
    yield from or_well(_plugins(status, settings), well)


def _release(version: str) -> Finding:
    found = _MINOR.match(version)
    if found is None:
        return Check("kubelet-release").warn(
            f"cannot tell the version of kubelet from {version!r}",
            remedy=f"make sure that it is 1.{_BY_DEFAULT} or later",
        )
    if int(found[1]) < _WITH_GATE:
        return Check("kubelet-release").fail(
            f"kubelet is {version}: it has no DRA that holdfast can speak",
            remedy=f"upgrade it to 1.{_BY_DEFAULT} or later, or set `api: device-plugin`",
        )
    if int(found[1]) < _BY_DEFAULT:
        return Check("kubelet-release").warn(
            f"kubelet is {version}, which has DRA only with the feature gate "
            "DynamicResourceAllocation",
            remedy=f"upgrade it to 1.{_BY_DEFAULT} or later, or see that the gate is on",
        )
    return Check("kubelet-release").ok(f"kubelet is {version}")


def _plugins(status: NodeStatus, settings: Settings) -> Iterator[Finding]:
    served = (each.names for each in settings.served if each.enabled and each.api == "dra")
    for resource in sorted(chain.from_iterable(served)):
        if (count := status.allocatable.get(resource, "0")) != "0":
            yield Check("device-plugin").fail(
                f"a device plugin advertises {count} of {resource} on this node, which holdfast "
                "serves by DRA: the scheduler counts the same hardware twice",
                remedy="remove the device plugin from this node, or set `api: device-plugin`",
            )


def _of_slices(cluster: Cluster, node: Node, name: str) -> Iterator[Finding]:
    driver = node.settings.dra.driver_name
    try:
        found = cluster.slices(name)
    except ApiRefusedError as error:  # the row `rbac` says what is forbidden
        if error.status == HTTPStatus.NOT_FOUND:
            yield Check("slices").fail(
                "the API server does not serve resource.k8s.io/v1",
                remedy=f"upgrade the cluster to 1.{_BY_DEFAULT} or later",
            )
        return
    ours = [each for each in found if each.spec.driver == driver]
    yield from _rivals([each for each in found if each.spec.driver != driver], ours, node.settings)
    shares = any(map(node.settings.is_dra, node.settings.sharing.by_resource()))
    yield _fields(lambda: cluster.keeps(driver, name), shares=shares)
    yield _published(node, ours, name)


def _published(node: Node, ours: Sequence[ResourceSlice], name: str) -> Finding:
    if ours:
        devices = list(_devices(ours))
        tainted = sum(bool(each.taints) for each in devices)
        return Check("slices").ok(
            f"the scheduler knows {len(devices)} devices of node {name}, {tainted} with a taint"
        )
    if not ask_daemon(node).listens:
        return Check("slices").ok("no daemon runs that could publish a ResourceSlice")
    return Check("slices").fail(
        f"the daemon runs, but the API server has no ResourceSlice of node {name}: the scheduler "
        "places no pod with a claim here",
        remedy="it publishes within a minute of its start; if not, its log says why",
    )


def _rivals(
    others: Iterable[ResourceSlice], ours: Iterable[ResourceSlice], settings: Settings
) -> Iterator[Finding]:
    own = set().union(*(_identities(each) for each in _devices(ours)))
    known = {each.who for each in DRA_DRIVERS if each.wanted(settings)}
    bad: dict[str, list[str]] = {}
    for slice_ in others:
        same = [each.name for each in _devices([slice_]) if own & _identities(each)]
        if not same and slice_.spec.driver in known:
            same = [each.name for each in _devices([slice_])]
        if same:
            bad.setdefault(slice_.spec.driver, []).extend(same)
    for driver, names in bad.items():
        yield Check("rivals").fail(
            f"the driver {driver} offers the same hardware on this node: {some(names)}. The "
            "scheduler gives it to two claims, and neither driver knows the other's",
            remedy=f"remove {driver} from this node, or leave the hardware to it",
        )
    if not bad:
        yield Check("rivals").ok("no other driver offers the same hardware on this node")


def _identities(device: SliceDevice) -> set[str]:
    """Return the values by which *device*'s hardware is known, whoever tells of it."""
    return {
        value.text
        for name, value in device.attributes.items()
        if value.text and name.rpartition("/")[2] in _IDENTITIES
    }


def _devices(slices: Iterable[ResourceSlice]) -> Iterator[SliceDevice]:
    return (device for each in slices for device in each.spec.devices or ())


def _fields(keeps: Callable[[], SliceFields], *, shares: bool) -> Finding:
    """Return what the server drops; whether several claims can *share* a device if they may."""
    try:
        kept = keeps()
    except ApiRefusedError as error:
        return Check("fields").fail(
            str(error),
            remedy="see that the role and the ValidatingAdmissionPolicy of the chart are those of "
            "this daemon: its ServiceAccount, its node, its driver",
        )
    lost: dict[str, str] = {}
    if not kept.taints:
        lost["DRADeviceTaints"] = "taints: a device that is held is left out of the slices instead"
    if not kept.counters:
        lost["DRAPartitionableDevices"] = (
            "counters: of devices that share hardware, such as TPU shapes, only one is offered"
        )
    if shares and not kept.shares:
        lost["DRAConsumableCapacity"] = (
            "allowMultipleAllocations: a shared GPU is given to one claim at a time"
        )
    if lost:
        return Check("fields").warn(
            f"the API server drops fields of ResourceSlices: {'; '.join(lost.values())}",
            remedy="upgrade the cluster to 1.36, or turn on the feature gates "
            f"{' and '.join(lost)}",
        )
    more = " and allowMultipleAllocations" if shares else ""
    return Check("fields").ok(f"the API server keeps taints and counters{more}")


def event_server_findings(node: Node) -> Iterator[Finding]:
    """Yield what the API server says, as the token of the service account may ask it."""
    return cluster_findings(
        node,
        EVENT_RIGHTS,
        _own_node,
        setting="config.events.enabled: true",
        may="write Events and the status of nodes",
        unchecked="rights",
        undone="no Event is written",
    )


def label_server_findings(node: Node) -> Iterator[Finding]:
    """Yield what the API server says, as the token of the service account may ask it."""
    return cluster_findings(
        node,
        LABEL_RIGHTS,
        lambda *_: iter(()),
        setting="config.map or config.name",
        may="read and watch the node's label",
        unchecked="rights",
        undone="the node's label is not followed",
    )


def _own_node(cluster: Cluster, name: str, has_rights: bool) -> Iterator[Finding]:
    if not has_rights:
        return
    try:
        cluster.touch_status(name)
    except ApiObjectGoneError:
        yield Check("node").fail(
            f"the cluster has no Node {name}: Events and the condition are of another node",
            remedy=_NAME_IT,
        )
    except ApiRefusedError as error:
        yield Check("node").fail(
            str(error),
            remedy="see that the ValidatingAdmissionPolicy of the chart is that of this daemon: "
            "its ServiceAccount and its node",
        )
    else:
        yield Check("node").ok(f"the condition of Node {name} can be written")
