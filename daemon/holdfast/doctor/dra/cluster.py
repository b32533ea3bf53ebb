"""Asks the API server what it lets holdfast do, and what it keeps of a ResourceSlice."""

import os
import platform
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from holdfast.apiserver.access import Access, in_cluster
from holdfast.apiserver.client import decoded, refusal
from holdfast.apiserver.wire import Request, Wire
from holdfast.doctor.finding import Check, Finding, some
from holdfast.errors import ApiServerError
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
from holdfast.model.dra.slices import dropped
from holdfast.settings.sections import Dra

T = TypeVar("T")

_API_SERVER = Check("dra", "api-server")
_RIGHTS = Check("dra", "rights")
_FIELDS = Check("dra", "fields")
_SLICES = Check("dra", "slices")
_RIVALS = Check("dra", "rivals")

_TIMEOUT = 5.0
_BUS = "resource.kubernetes.io/pciBusID"
_GROUP = "resource.k8s.io"
_SLICES_PATH = ("apis", _GROUP, "v1", "resourceslices")
_NEEDED = (
    (_GROUP, "resourceclaims", ("get",)),
    (_GROUP, "resourceslices", ("list", "watch", "create", "update", "delete")),
    ("", "nodes", ("get",)),
)
_CHART = "install the chart with dra.enabled: true"


class _Version(Struct, frozen=True, kw_only=True, rename="camel"):
    git_version: str


class _Allowed(Struct, frozen=True, kw_only=True):
    allowed: bool = False


class _Review(Struct, frozen=True, kw_only=True):
    status: _Allowed = field(default_factory=_Allowed)


class _List(Struct, frozen=True, kw_only=True):
    items: tuple[ResourceSlice, ...] | None = None


def cluster_findings(dra: Dra) -> Iterator[Finding]:
    """Yield what the API server answers; nothing is changed by the questions."""
    try:
        access = in_cluster(os.environ, Path(dra.service_account))
    except ApiServerError as error:
        yield _API_SERVER.warn(
            f"the API server cannot be asked from here: {error}",
            remedy="run the doctor in holdfast's pod: kubectl exec POD -- holdfast doctor",
        )
        return
    server = _Server(access, dra)
    try:
        version = server.ask(Request(about="its version", path=("version",)), _Version)
    except ApiServerError as error:
        yield _API_SERVER.fail(
            str(error), remedy="see that the pod's network and its service account work"
        )
        return
    finally:
        server.close()
    yield _API_SERVER.ok(f"the API server at {access} answers, with {version.git_version}")
    for check, findings in (
        (_RIGHTS, server.rights),
        (_FIELDS, server.fields),
        (_SLICES, server.slices),
    ):
        try:
            yield from findings()
        except ApiServerError as error:
            yield check.warn(f"cannot be told: {error}", remedy=_CHART)
        finally:
            server.close()


class _Server:
    """Questions to the API server, one after the other."""

    def __init__(self, access: Access, dra: Dra) -> None:
        self._wire = Wire(access)
        self._driver = dra.driver_name
        self._node = dra.node_name or os.environ.get("NODE_NAME") or platform.node()

    def close(self) -> None:
        self._wire.close()

    def ask(self, request: Request, kind: type[T]) -> T:
        answer = self._wire.exchange(request, _TIMEOUT)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise refusal(request, answer)
        return decoded(answer.body, kind)

    def rights(self) -> Iterator[Finding]:
        missing = [
            f"{verb} {resource}"
            for group, resource, verbs in _NEEDED
            for verb in verbs
            if not self._may(verb, group, resource)
        ]
        if missing:
            yield _RIGHTS.fail(
                f"the service account may not {some(missing, len(missing))}", remedy=_CHART
            )
        else:
            yield _RIGHTS.ok("the service account has all rights that DRA takes")

    def _may(self, verb: str, group: str, resource: str) -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        request = Request(
            about="an access review",
            method="POST",
            path=("apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"),
            body=msgspec.json.encode(review),
        )
        return self.ask(request, _Review).status.allowed

    def fields(self) -> Iterator[Finding]:
        """Try a slice without having it stored, and see what the server makes of it."""
        taint = Taint(key=f"{self._driver}/held", value="trial", effect="NoSchedule")
        tainted = SliceContent(devices=(SliceDevice(name="trial", taints=(taint,)),))
        one = {"trial": Quantity(value="1")}
        counted = SliceContent(shared_counters=(CounterSet(name="trial", counters=one),))
        lost = []
        if dropped(tainted, self._tried(tainted))[0]:
            lost.append("taints (DRADeviceTaints): a device that is withheld is left out instead")
        if dropped(counted, self._tried(counted))[1]:
            lost.append(
                "shared counters (DRAPartitionableDevices): shapes of TPU chips are not offered"
            )
        if lost:
            yield _FIELDS.warn(
                f"the API server drops {'; and '.join(lost)}",
                remedy="use Kubernetes 1.36 or later, or turn those feature gates on",
            )
        else:
            yield _FIELDS.ok("the API server keeps taints and shared counters")

    def _tried(self, content: SliceContent) -> SliceContent:
        made = ResourceSlice(
            api_version=f"{_GROUP}/v1",
            kind="ResourceSlice",
            metadata=SliceMetadata(name=f"holdfast-doctor-{self._node}"[:253].rstrip("-.")),
            spec=SliceSpec(
                driver=self._driver,
                node_name=self._node,
                pool=SlicePool(name=self._node, generation=1, resource_slice_count=1),
                devices=content.devices,
                shared_counters=content.shared_counters,
            ),
        )
        request = Request(
            about="a ResourceSlice on trial",
            method="POST",
            path=_SLICES_PATH,
            query={"dryRun": "All"},
            body=msgspec.json.encode(made),
        )
        return self.ask(request, ResourceSlice).spec.content

    def slices(self) -> Iterator[Finding]:
        request = Request(
            about=f"ResourceSlices of node {self._node}",
            path=_SLICES_PATH,
            query={"fieldSelector": f"spec.nodeName={self._node}"},
        )
        found = self.ask(request, _List).items or ()
        ours = [each for each in found if each.spec.driver == self._driver]
        others = [each for each in found if each.spec.driver != self._driver]
        if ours:
            devices = [device for each in ours for device in each.spec.devices or ()]
            yield _SLICES.ok(
                f"{len(ours)} ResourceSlices of {self._driver} have {len(devices)} devices of "
                f"node {self._node}"
            )
        else:
            yield _SLICES.warn(
                f"the API server has no ResourceSlice of {self._driver} for node {self._node}",
                remedy="see whether the daemon runs, and its log for `cannot publish "
                "ResourceSlices`; if the node has another name, set dra.nodeName",
            )
        yield from _rivals(ours, others)


def _rivals(ours: Iterable[ResourceSlice], others: Iterable[ResourceSlice]) -> Iterator[Finding]:
    """Yield the drivers that offer the scheduler hardware that ours offers, too."""
    mine = {address for each in ours for address in _addresses(each)}
    both: dict[str, set[str]] = {}
    for each in others:
        if shared := mine & set(_addresses(each)):
            both.setdefault(each.spec.driver, set()).update(shared)
    for driver, addresses in both.items():
        yield _RIVALS.fail(
            f"the DRA driver {driver} offers {some(sorted(addresses))} too: the scheduler gives "
            "each of them out twice",
            remedy="remove that driver from this node, or serve these devices by it alone",
        )
    if not both:
        yield _RIVALS.ok("no other DRA driver offers hardware that holdfast offers")


def _addresses(found: ResourceSlice) -> Iterator[str]:
    for device in found.spec.devices or ():
        if (value := device.attributes.get(_BUS)) is not None and value.text:
            yield value.text
