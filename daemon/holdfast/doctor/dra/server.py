"""Checks what the API server knows of this node, and what it lets the daemon do."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.apiserver.access import node_name
from holdfast.apiserver.client import ApiObjectGoneError, ApiRefusedError
from holdfast.doctor.apiserver import cluster_findings
from holdfast.doctor.dra.cluster import RIGHTS, Cluster, NodeFacts
from holdfast.doctor.finding import Check, Finding, some
from holdfast.doctor.kubelet.plugins import DRA_DRIVERS
from holdfast.doctor.node import Node
from holdfast.doctor.programs import ask_socket
from holdfast.model.dra.resourceslice import ResourceSlice, SliceDevice
from holdfast.model.dra.slices import Kept
from holdfast.model.nvidia.gpu import GPU_RESOURCE
from holdfast.names import CONTROL_SOCKET
from holdfast.settings import Settings

_SERVER = Check("dra", "api-server")
_RBAC = Check("dra", "rbac")
_NODE_NAME = Check("dra", "node-name")
_KUBELET = Check("dra", "kubelet-release")
_DEVICE_PLUGIN = Check("dra", "device-plugin")
_SLICES = Check("dra", "slices")
_FIELDS = Check("dra", "fields")
_RIVALS = Check("dra", "rivals")
_WITH_GATE, _BY_DEFAULT = 32, 34
"""The minor versions of Kubernetes from which kubelet can have DRA, and has it by default."""
_MINOR = re.compile(r"v1\.(\d+)\.")
_IDENTITIES = frozenset({"pciBusID", "uuid"})
"""Attributes that name a piece of hardware, without their domain."""


def server_findings(node: Node) -> Iterator[Finding]:
    """Yield what the API server says, as the token of the service account may ask it."""

    def find(cluster: Cluster) -> Iterator[Finding]:
        yield from _rights(cluster)
        name = node_name(node.settings.dra.node_name, os.environ)
        yield from _of_node(cluster, node.settings, name)
        yield from _of_slices(cluster, node, name)

    return cluster_findings(
        node,
        _SERVER,
        find,
        unchecked="rights and ResourceSlices",
        without="no claim is prepared: set dra.enabled: true",
        until="no new claim is prepared",
    )


def _rights(cluster: Cluster) -> Iterator[Finding]:
    lacking = cluster.lacking(RIGHTS)
    if lacking:
        yield _RBAC.fail(
            f"the service account may not {', '.join(map(str, lacking))}",
            remedy="set dra.enabled: true in the chart's values, or give it these rights: "
            "deploy/README.md has the reason of each",
        )
    else:
        yield _RBAC.ok("the service account may do what the daemon asks of the API server")


def _of_node(cluster: Cluster, settings: Settings, name: str) -> Iterator[Finding]:
    try:
        facts = cluster.node(name)
    except ApiObjectGoneError:
        yield _NODE_NAME.fail(
            f"the cluster has no Node {name}: slices and claims are of other nodes",
            remedy="set dra.nodeName, or the variable NODE_NAME, to the name that "
            "`kubectl get nodes` shows",
        )
        return
    except ApiRefusedError:
        return  # the row `rbac` says so
    yield _NODE_NAME.ok(f"the cluster has the Node {name}")
    yield _release(facts.kubelet)
    yield from _plugins(facts, settings)


def _release(version: str) -> Finding:
    found = _MINOR.match(version)
    if found is None:
        return _KUBELET.warn(
            f"cannot tell the version of kubelet from {version!r}",
            remedy=f"make sure that it is 1.{_BY_DEFAULT} or later",
        )
    if int(found[1]) < _WITH_GATE:
        return _KUBELET.fail(
            f"kubelet is {version}: it has no DRA that holdfast can speak",
            remedy=f"upgrade it to 1.{_BY_DEFAULT} or later, or set `api: device-plugin`",
        )
    if int(found[1]) < _BY_DEFAULT:
        return _KUBELET.warn(
            f"kubelet is {version}, which has DRA only with the feature gate "
            "DynamicResourceAllocation",
            remedy=f"upgrade it to 1.{_BY_DEFAULT} or later, or see that the gate is on",
        )
    return _KUBELET.ok(f"kubelet is {version}")


def _plugins(facts: NodeFacts, settings: Settings) -> Iterator[Finding]:
    bad = False
    for resource in sorted(_resources(settings)):
        if (count := facts.allocatable.get(resource, "0")) != "0":
            bad = True
            yield _DEVICE_PLUGIN.fail(
                f"a device plugin advertises {count} of {resource} on this node, which holdfast "
                "serves by DRA: the scheduler counts the same hardware twice",
                remedy="remove the device plugin from this node, or set `api: device-plugin`",
            )
    if not bad:
        yield _DEVICE_PLUGIN.ok("no device plugin advertises what is served by DRA")


def _resources(settings: Settings) -> Iterator[str]:
    """Yield each resource that is served by DRA, by the name that pods know it by."""
    names = {pool.resource_name for pool in settings.pools}
    names |= {settings.tpu.resource_name} if settings.tpu.enabled else set()
    names |= {GPU_RESOURCE} if settings.gpu.enabled else set()
    return filter(settings.is_dra, names)


def _of_slices(cluster: Cluster, node: Node, name: str) -> Iterator[Finding]:
    driver = node.settings.dra.driver_name
    try:
        found = cluster.slices(name)
    except ApiObjectGoneError:
        yield _SLICES.fail(
            "the API server does not serve resource.k8s.io/v1",
            remedy=f"upgrade the cluster to 1.{_BY_DEFAULT} or later",
        )
        return
    except ApiRefusedError:
        return  # the row `rbac` says so
    ours = [each for each in found if each.spec.driver == driver]
    yield _published(node, ours, name)
    yield from _rivals([each for each in found if each.spec.driver != driver], ours, node.settings)
    shares = bool(node.settings.sharing.by_resource()) and node.settings.gpu.api == "dra"
    yield _fields(lambda: cluster.keeps(driver, name), shares=shares)


def _published(node: Node, ours: Sequence[ResourceSlice], name: str) -> Finding:
    if ours:
        devices = list(_devices(ours))
        tainted = sum(bool(each.taints) for each in devices)
        return _SLICES.ok(
            f"the scheduler knows {len(devices)} devices of node {name}, {tainted} with a taint"
        )
    daemon = ask_socket(node.path(node.settings.state_dir) / CONTROL_SOCKET)
    if daemon.problem:
        return _SLICES.ok("no daemon runs that could publish a ResourceSlice")
    return _SLICES.fail(
        f"the daemon runs, but the API server has no ResourceSlice of node {name}: the scheduler "
        "places no pod with a claim here",
        remedy="it publishes within a minute of its start; if not, its log says why",
    )


def _rivals(
    others: Iterable[ResourceSlice], ours: Iterable[ResourceSlice], settings: Settings
) -> Iterator[Finding]:
    own = set().union(*(_identities(each) for each in _devices(ours)))
    known = {each.who for each in DRA_DRIVERS if each.hardware.wanted(settings)}
    bad: dict[str, list[str]] = {}
    for slice_ in others:
        same = [each.name for each in _devices([slice_]) if own & _identities(each)]
        if not same and slice_.spec.driver in known:
            same = [each.name for each in _devices([slice_])]
        if same:
            bad.setdefault(slice_.spec.driver, []).extend(same)
    for driver, names in bad.items():
        yield _RIVALS.fail(
            f"the driver {driver} offers the same hardware on this node: {some(names)}. The "
            "scheduler gives it to two claims, and neither driver knows the other's",
            remedy=f"remove {driver} from this node, or leave the hardware to it",
        )
    if not bad:
        yield _RIVALS.ok("no other driver offers the same hardware on this node")


def _identities(device: SliceDevice) -> set[str]:
    """Return the values by which *device*'s hardware is known, whoever tells of it."""
    return {
        value.text
        for name, value in device.attributes.items()
        if value.text and name.rpartition("/")[2] in _IDENTITIES
    }


def _devices(slices: Iterable[ResourceSlice]) -> Iterator[SliceDevice]:
    return (device for each in slices for device in each.spec.devices or ())


def _fields(keeps: Callable[[], Kept], *, shares: bool) -> Finding:
    """Return what the server drops; whether several claims can *share* a device if they may."""
    try:
        kept = keeps()
    except ApiRefusedError as error:
        return _FIELDS.fail(
            str(error),
            remedy="see that the role and the ValidatingAdmissionPolicy of the chart are those of "
            "this daemon: its ServiceAccount, its node, its driver",
        )
    lost = {
        gate: text
        for gate, text, is_lost in (
            (
                "DRADeviceTaints",
                "taints: a device that is held is left out of the slices instead",
                not kept.taints,
            ),
            (
                "DRAPartitionableDevices",
                "counters: no TPU shapes are offered, only single chips",
                not kept.counters,
            ),
            (
                "DRAConsumableCapacity",
                "allowMultipleAllocations: a shared GPU is given to one claim at a time",
                shares and not kept.shares,
            ),
        )
        if is_lost
    }
    if lost:
        return _FIELDS.warn(
            f"the API server drops fields of ResourceSlices: {'; '.join(lost.values())}",
            remedy="upgrade the cluster to 1.36, or turn on the feature gates "
            f"{' and '.join(lost)}",
        )
    more = " and allowMultipleAllocations" if shares else ""
    return _FIELDS.ok(f"the API server keeps taints and counters{more}")
