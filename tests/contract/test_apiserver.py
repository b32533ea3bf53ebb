"""The client of the API server, against one that is slow, cut off, busy, rude or a liar."""

import asyncio
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from fakes.controlplane import NODE, ControlPlane, control_plane, slice_object
from fakes.observers import Observed, Unobserved
from holdfast.apiserver.client import ApiRefusedError, ApiServer, ApiServers, refusal
from holdfast.apiserver.events import ClusterNotices
from holdfast.apiserver.nodes import NodeOnServer, labels_now
from holdfast.apiserver.resourceslices import ClaimsOnServer, NodeSlices, SliceEvent
from holdfast.apiserver.watch import TooOldError
from holdfast.apiserver.wire import ApiRequest, ApiResponse, Wire, in_cluster
from holdfast.errors import ApiServerError, ObjectGoneError, UnreadableAnswerError
from holdfast.model.book.book import PodRecord
from holdfast.model.dra.claims import ClaimResult, OpaqueConfig
from holdfast.model.dra.outcomes import ApiOutcome
from holdfast.model.dra.resourceslice import (
    AttributeValue,
    Capacity,
    ResourceSlice,
    SliceDevice,
    SlicePool,
    SliceSpec,
    Taint,
)
from holdfast.model.events import Condition, Notice, Reason, StoredCondition
from holdfast.model.ids import BootId, DeviceId, DeviceName, PodUid, ResourceName
from holdfast.runtime.clock import Clock, SystemClock
from simulated.cluster.certificates import certificates
from simulated.cluster.objects import CLAIMS, EVENTS, NODES, SLICES, add, wanting
from simulated.cluster.server import Rudeness, write_service_account
from simulated.cluster.store import Place
from waiting import beside, until, wait_until

DRIVER = "holdfast.dev"
IT = ApiRequest(about="it", path=("version",))
_LATE = "it does not answer in time"
_SENSELESS = "cannot understand the API server's answer"
NESTED = b'{"metadata": {"name": "one"}, "status": ' + b"[" * 9000 + b"]" * 9000 + b"}"
"""The API server takes what is nested 10000 levels deep, in the configuration of any driver."""


@pytest.fixture
def plane(short_path: Path) -> Iterator[ControlPlane]:
    with control_plane(short_path) as made:
        yield made


class ClockWithoutPauses(SystemClock):
    """Each pause is over at once, and has taken its time all the same."""

    _slept = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._slept

    async def sleep(self, seconds: float) -> None:
        self._slept += seconds


@asynccontextmanager
async def client(
    plane: ControlPlane, observer: Unobserved | None = None, *, clock: Clock | None = None
) -> AsyncIterator[ApiServer]:
    observer = observer or Unobserved()
    clock = clock or SystemClock()
    server = ApiServer(plane.access, name="api", clock=clock, observer=observer)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def node_slices(plane: ControlPlane) -> AsyncIterator[NodeSlices]:
    async with client(plane) as server:
        yield NodeSlices(server, driver=DRIVER, node=NODE)


def spec(device: str = "tpu-0000-00-05-0") -> SliceSpec:
    return SliceSpec(
        driver=DRIVER,
        node_name=NODE,
        pool=SlicePool(name=NODE, generation=1, resource_slice_count=1),
        devices=(
            SliceDevice(
                name=device,
                attributes={"type": AttributeValue(text="tpu"), "x": AttributeValue(number=0)},
                capacity={"memory": Capacity(value="16Gi")},
                taints=(Taint(key=f"{DRIVER}/held", value="releasing", effect="NoSchedule"),),
            ),
        ),
    )


def add_slice(plane: ControlPlane, name: str, **spec: Any) -> None:
    """Have the server store a slice as somebody else may write it."""
    plane.store.create(Place(kind=SLICES), slice_object(name, **spec))


def put_claim(plane: ControlPlane) -> str:
    made = add(plane.store, CLAIMS, "one", spec=wanting("c", "r"))
    made["status"] = {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "r", "driver": DRIVER, "pool": NODE, "device": "tpu-0"},
                    {
                        "request": "r",
                        "driver": "other",
                        "pool": "p",
                        "device": "d",
                        "adminAccess": True,
                    },
                ],
                "config": [
                    {
                        "source": "FromClaim",
                        "opaque": {
                            "driver": DRIVER,
                            "parameters": {"kind": "Odd", "apiVersion": "v1"},
                        },
                    }
                ],
            }
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}],
    }
    at = Place(kind=CLAIMS, namespace="default", name="one")
    return str(plane.store.update(at, made, subresource="status")["metadata"]["uid"])


async def test_a_claim_is_read_with_what_prepare_needs(plane: ControlPlane) -> None:
    uid = put_claim(plane)
    async with client(plane) as server:
        claim = await ClaimsOnServer(server).claim("default", "one")

    assert claim.ref.uid == uid
    assert claim.results == (
        ClaimResult(request="r", driver=DRIVER, pool=NODE, device="tpu-0"),
        ClaimResult(request="r", driver="other", pool="p", device="d", admin_access=True),
    )
    assert claim.configs == (OpaqueConfig(driver=DRIVER, kind="Odd"),)
    assert claim.reserved_for == {PodUid("pod-uid"): "p"}


async def test_a_claim_without_allocation_is_read_alike_while_it_is_going(
    plane: ControlPlane,
) -> None:
    place = Place(kind=CLAIMS, namespace="default")
    bare = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "bare", "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {},
    }
    plane.store.create(place, bare)
    async with client(plane) as server:
        claims = ClaimsOnServer(server)
        before = await claims.claim("default", "bare")
        plane.store.delete(Place(kind=CLAIMS, namespace="default", name="bare"))
        after = await claims.claim("default", "bare")
        with pytest.raises(ObjectGoneError, match='resourceclaims.*"none" not found'):
            await claims.claim("default", "none")

    assert before.results is None
    assert after == before


async def test_a_name_of_a_claim_cannot_lead_elsewhere(plane: ControlPlane) -> None:
    async with client(plane) as server:
        with pytest.raises(ApiServerError):
            await ClaimsOnServer(server).claim("default", "../../nodes?watch=1#")

    assert plane.server.requests[-1].endswith("/resourceclaims/..%2F..%2Fnodes%3Fwatch%3D1%23")


async def test_a_renewed_token_is_used_by_the_next_call(plane: ControlPlane) -> None:
    put_claim(plane)
    async with client(plane) as server:
        claims = ClaimsOnServer(server)
        await claims.claim("default", "one")
        plane.renew_token("second")
        await claims.claim("default", "one")
        plane.renew_token("third", written=False)
        with pytest.raises(ApiRefusedError, match="Unauthorized") as refused:
            await claims.claim("default", "one")

    assert refused.value.status == 401


async def test_what_rbac_does_not_allow_is_said_in_the_servers_words(plane: ControlPlane) -> None:
    put_claim(plane)
    plane.server.forbidden.add(("get", "resourceclaims"))
    async with client(plane) as server:
        with pytest.raises(ApiServerError) as refused:
            await ClaimsOnServer(server).claim("default", "one")

    assert str(refused.value).startswith(
        "cannot read ResourceClaim default/one: the API server says: resourceclaims"
    )
    assert 'cannot get resource "resourceclaims"' in str(refused.value)


@pytest.mark.parametrize(
    "rude",
    [
        Rudeness(code=429, after=1, times=1),
        Rudeness(code=503, times=2),
        Rudeness(code=500),
        Rudeness(cut=20),
        Rudeness(cut=0),
    ],
    ids=["too many", "unavailable", "error", "cut", "cut at once"],
)
async def test_reading_is_tried_again_until_it_works(plane: ControlPlane, rude: Rudeness) -> None:
    put_claim(plane)
    plane.server.be_rude(rude)
    async with client(plane) as server:
        claim = await ClaimsOnServer(server).claim("default", "one")

    assert claim.results
    assert len(plane.server.requests) == rude.times + 1


async def test_a_connection_that_was_cut_while_idle_is_opened_again(plane: ControlPlane) -> None:
    put_claim(plane)
    async with client(plane) as server:
        claims = ClaimsOnServer(server)
        await claims.claim("default", "one")
        plane.server.cut_all()
        assert (await claims.claim("default", "one")).results


@pytest.mark.parametrize(
    ("rude", "told"),
    [
        (Rudeness(stall=600, times=99), _LATE),
        (Rudeness(trickle=True, times=99), _LATE),
        (Rudeness(garbage=b"<html>", times=99), _SENSELESS),
        (Rudeness(garbage=b'{"metadata": 5}', times=99), _SENSELESS),
        (Rudeness(garbage=NESTED, times=99), _SENSELESS),
        (Rudeness(garbage=b'{"metadata": {"name": "\xe9"}}', times=99), _SENSELESS),
        (Rudeness(code=429, after=3600), "as the test wanted it"),
    ],
    ids=["slow", "trickling", "no JSON", "wrong types", "nested", "no UTF-8", "come back later"],
)
async def test_an_answer_that_does_not_come_or_makes_no_sense_is_an_error_in_time(
    plane: ControlPlane, rude: Rudeness, told: str
) -> None:
    plane.server.be_rude(rude)
    request = ApiRequest(about=f"Node {NODE}", path=("api", "v1", "nodes", NODE))
    async with client(plane, clock=ClockWithoutPauses()) as server:
        with pytest.raises(ApiServerError, match=told):
            await server.ask(request, Node, deadline=1 if told == _LATE else 10)
        plane.server.be_polite()
        assert (await server.ask(request, Node, deadline=60)).metadata["name"] == NODE


async def test_what_a_tenant_nested_too_deep_is_not_asked_for_again(plane: ControlPlane) -> None:
    """The tries would take all of the time, and the claims of others wait for the connection."""
    put_claim(plane)
    plane.server.be_rude(Rudeness(garbage=NESTED, times=99))
    async with client(plane) as server:
        with pytest.raises(UnreadableAnswerError):
            await ClaimsOnServer(server).claim("default", "one")
    assert len(plane.server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b'{"message": "d\xe9sol\xe9"}', NESTED])
def test_a_refusal_by_a_page_of_a_proxys_own_has_the_status(body: bytes) -> None:
    refused = refusal(IT, ApiResponse(status=503, body=body))
    assert (str(refused), refused.status) == (
        "cannot read it: the API server says: HTTP status 503",
        503,
    )


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        (b"404 page not found\n", False),
        (b"{}", False),
        (b'{"reason": "NotFound"}', False),  # of an API that is not served, since Kubernetes 1.38
        (b'{"reason": "NotFound", "details": {"name": "it"}}', True),
    ],
)
def test_an_object_is_gone_where_kubernetes_says_so_and_no_proxy(body: bytes, gone: bool) -> None:
    refused = refusal(IT, ApiResponse(status=404, body=body))
    assert (refused.status, isinstance(refused, ObjectGoneError)) == (404, gone)


async def test_how_a_server_does_not_answer_is_told_in_one_way_and_counted_in_one_way(
    plane: ControlPlane,
) -> None:
    """The connection itself may notice it, or who waits for it."""
    plane.server.be_rude(Rudeness(stall=600, times=99))
    wire = Wire(plane.access, SystemClock())
    with pytest.raises(ApiServerError) as noticed:
        wire.exchange(IT, 0.1)
    observed = Observed()
    async with client(plane, observed) as server:
        with pytest.raises(ApiServerError) as waited:
            await server.ask(IT, Node, deadline=0.1)

    assert str(noticed.value) == str(waited.value)
    assert str(waited.value) == f"cannot ask the API server at {plane.access}: {_LATE}"
    assert observed.ends == [ApiOutcome.TIMEOUT]


async def test_an_answer_says_more_than_that_no_other_came_after_it(plane: ControlPlane) -> None:
    plane.server.be_rude(Rudeness(code=503, after=29))
    plane.server.be_rude(Rudeness(stall=600, times=99))
    observed = Observed()
    async with client(plane, observed, clock=ClockWithoutPauses()) as server:
        asked = asyncio.create_task(server.ask(IT, Node, deadline=29.3))
        await until(lambda: len(plane.server.requests) > 1 or asked.done())
        # The loop is busy, so that the connection is first to notice.
        wait_until(lambda: server._lane._current is None)
        with pytest.raises(ApiServerError, match="as the test wanted it"):
            await asked

    assert set(observed.ends) <= {ApiOutcome.FAILED, ApiOutcome.TIMEOUT}


async def test_a_call_that_is_given_up_leaves_the_connection_to_the_next(
    plane: ControlPlane,
) -> None:
    put_claim(plane)
    plane.server.be_rude(Rudeness(stall=600))
    async with client(plane) as server:
        claims = ClaimsOnServer(server)
        async with beside(claims.claim("default", "one")):
            await until(lambda: plane.server.requests)
        assert (await claims.claim("default", "one")).results


@pytest.mark.parametrize("code", [500, 503])
async def test_a_write_is_not_repeated_when_nobody_knows_whether_it_was_done(
    plane: ControlPlane, code: int
) -> None:
    plane.server.be_rude(Rudeness(method="POST", code=code))
    async with node_slices(plane) as slices:
        with pytest.raises(ApiServerError, match="as the test wanted it"):
            await slices.create("one", spec(), owner="uid")

    assert len(plane.server.requests) == 1


async def test_a_write_that_the_server_had_no_time_for_is_repeated(plane: ControlPlane) -> None:
    plane.server.be_rude(Rudeness(method="POST", code=429, after=1))
    async with node_slices(plane) as slices:
        await slices.create("one", spec(), owner="uid")

    assert len(plane.slices()) == 1


async def test_a_server_with_a_certificate_of_another_authority_is_refused(
    plane: ControlPlane, short_path: Path
) -> None:
    other = certificates(short_path / "other")
    write_service_account(plane.account, other, "first")
    async with client(plane, clock=ClockWithoutPauses()) as server:
        with pytest.raises(ApiServerError, match="its certificate is not trusted"):
            await server.ask(IT, Node, deadline=10)

    assert plane.server.requests == [], "nor is it told the token"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("token", b"", "is empty or no token"),
        ("token", b"one\r\nHost: other", "is empty or no token"),
        ("token", b"\xff\xfe", "cannot read the token"),
        ("ca.crt", b"no certificate", "cannot read the cluster's CA"),
    ],
    ids=["empty", "with a header", "no text", "no CA"],
)
async def test_files_of_the_service_account_that_cannot_be_used_are_named(
    plane: ControlPlane, name: str, content: bytes, told: str
) -> None:
    (plane.account / name).write_bytes(content)
    async with client(plane, clock=ClockWithoutPauses()) as server:
        with pytest.raises(ApiServerError, match=told):
            await server.ask(IT, Node, deadline=10)


def test_outside_of_a_pod_it_is_said_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ApiServerError, match="run holdfast in a pod"):
        in_cluster({}, tmp_path).check()
    with pytest.raises(ApiServerError, match="automountServiceAccountToken"):
        in_cluster(
            {"KUBERNETES_SERVICE_HOST": "::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path
        ).check()


async def test_a_claim_that_is_slow_to_read_holds_up_no_other(plane: ControlPlane) -> None:
    """As many are read at once as are allowed, and the next one has all of its own time."""
    put_claim(plane)
    server = ApiServers(
        access=plane.access,
        name="api",
        clock=SystemClock(),
        observer=Unobserved(),
        at_once=2,
    )
    claims = ClaimsOnServer(server)
    try:
        plane.server.be_rude(Rudeness(path="/slow", stall=600, times=99))
        slow = asyncio.create_task(claims.claim("default", "slow"))
        await until(lambda: any(each.endswith("/slow") for each in plane.server.requests))
        assert (await claims.claim("default", "one")).ref.name == "one"
        assert not slow.done()

        second = asyncio.create_task(claims.claim("default", "slow"))
        third = asyncio.create_task(claims.claim("default", "one"))
        await asyncio.sleep(0)
        slow.cancel()
        assert (await third).ref.name == "one", "a call that was given up frees its place"
        second.cancel()
        await asyncio.gather(slow, second, return_exceptions=True)
    finally:
        await server.close()


async def test_connections_that_are_made_in_vain_are_given_up_together(
    plane: ControlPlane,
) -> None:
    """A stop waits for each, and a connection that the server does not greet cannot be cut."""
    server = ApiServers(
        access=plane.access, name="api", clock=SystemClock(), observer=Unobserved(), at_once=4
    )
    claims, before = ClaimsOnServer(server), plane.server.knocks
    plane.server.greets.clear()
    calls = [asyncio.create_task(claims.claim("default", "one")) for _ in range(4)]
    await until(lambda: plane.server.knocks == before + len(calls), what="all connections")
    for each in calls:
        each.cancel()
    await asyncio.wait(calls)
    began = time.monotonic()
    await server.close()
    assert time.monotonic() - began < 8.0, "2 s for each, in turn, are more"
    plane.server.greets.set()


def test_a_connection_that_is_reset_before_tls_leaves_no_open_socket(plane: ControlPlane) -> None:
    """As by a load balancer without a server behind it, at every try."""
    with socket.create_server(("127.0.0.1", 0)) as balancer:
        raw = socket.create_connection(balancer.getsockname())
        accepted, _ = balancer.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
    wait_until(lambda: not _has_peer(raw))
    number = raw.fileno()
    with pytest.raises(ConnectionError) as raised:
        plane.access.trust().wrap_socket(raw, server_hostname="localhost")
    assert raised  # what was raised keeps the socket that was tried
    assert not Path(f"/proc/self/fd/{number}").exists()


def _has_peer(connected: socket.socket) -> bool:
    try:
        connected.getpeername()
    except OSError:
        return False
    return True


async def test_a_server_that_is_down_is_an_error_that_names_it(plane: ControlPlane) -> None:
    plane.server.close()
    async with client(plane, clock=ClockWithoutPauses()) as server:
        with pytest.raises(ApiServerError, match=r"at 127.0.0.1:\d+: .*Connection refused"):
            await server.ask(IT, Node, deadline=10)


async def test_how_each_request_ended_is_told_also_of_those_that_were_tried_again(
    plane: ControlPlane,
) -> None:
    put_claim(plane)
    observed = Observed()
    ends = observed.ends
    async with client(plane, observed) as server:
        claims = ClaimsOnServer(server)
        plane.server.be_rude(Rudeness(code=503))
        await claims.claim("default", "one")
        with pytest.raises(ApiServerError):
            await claims.claim("default", "none")
        plane.server.be_rude(Rudeness(cut=0, times=9))
        with pytest.raises(ApiServerError):
            await server.ask(IT, Node, deadline=0.1)

    assert ends[:3] == [ApiOutcome.FAILED, ApiOutcome.OK, ApiOutcome.GONE]
    assert set(ends[3:]) <= {ApiOutcome.UNREACHABLE, ApiOutcome.TIMEOUT}
    assert ends[3:]


async def test_each_watch_counts_once_by_how_it_was_answered(plane: ControlPlane) -> None:
    observed = Observed()
    ends = observed.ends
    async with client(plane, observed) as server:
        slices = NodeSlices(server, driver=DRIVER, node=NODE)
        _, version = await slices.read_all()
        ends.clear()
        seen = Seen(slices, version)
        await until(lambda: ends == [ApiOutcome.OK])
        plane.store.end_watches()
        await seen.ended()
        plane.server.forbidden.add(("watch", "resourceslices"))
        refused = Seen(slices, version)
        await refused.ended()
        plane.server.close()
        await Seen(slices, version).ended()

    assert ends == [ApiOutcome.OK, ApiOutcome.FORBIDDEN, ApiOutcome.UNREACHABLE]
    assert (seen.begun, refused.begun) == (1, 0)


async def test_slices_are_made_changed_listed_and_removed(plane: ControlPlane) -> None:
    async with node_slices(plane) as slices:
        owner = await slices.node_uid()
        assert plane.server.whole == [], "nobody reads more of a Node, whose status is long"
        made = await slices.create("one", spec(), owner=owner)
        (stored,) = plane.slices().values()
        changed = await slices.update(made, spec("tpu-0000-00-06-0"))
        listed, _ = await slices.read_all()
        with pytest.raises(ApiRefusedError) as refused:
            await slices.update(made, spec("tpu-0000-00-07-0"))
        with pytest.raises(ApiRefusedError, match="Precondition failed"):
            await slices.delete(made)
        await slices.delete(changed)
        with pytest.raises(ObjectGoneError):
            await slices.delete(changed)

    assert stored["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": owner, "controller": True}
    ]
    assert made.spec.content == spec().content, "the time that the server adds is no difference"
    assert listed["one"].spec == changed.spec
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert plane.slices() == {}


async def test_a_list_of_many_slices_comes_in_pages(plane: ControlPlane) -> None:
    async with node_slices(plane) as slices:
        for number in range(103):
            add_slice(plane, f"s{number:03}", driver=DRIVER if number > 1 else "other.example")
        listed, version = await slices.read_all()

    assert len(listed) == 101
    assert version == str(plane.store.version)
    assert len(plane.server.requests) == 2


async def test_only_slices_of_the_own_node_may_be_written(plane: ControlPlane) -> None:
    async with client(plane) as server:
        slices = NodeSlices(server, driver=DRIVER, node="node-2")
        wrong = SliceSpec(
            driver=DRIVER,
            node_name="node-2",
            pool=SlicePool(name="node-2", generation=1, resource_slice_count=1),
        )
        with pytest.raises(ApiServerError, match="ValidatingAdmissionPolicy"):
            await slices.create("one", wrong, owner="uid")


async def test_a_watch_tells_of_changes_and_of_time_that_passed(plane: ControlPlane) -> None:
    async with node_slices(plane) as slices:
        _, version = await slices.read_all()
        seen = Seen(slices, version)
        await until(lambda: "watch=true" in plane.server.requests[-1])
        made = await slices.create("one", spec(), owner="uid")
        changed = await slices.update(made, spec("tpu-0000-00-06-0"))
        await slices.delete(changed)
        await until(lambda: len(seen.events) == 3)
        plane.store.create(Place(kind=EVENTS, namespace="default"), an_event())
        plane.store.stir()
        await until(lambda: len(seen.events) == 4)
        plane.store.end_watches()
        await seen.ended()

    assert [each.deleted for each in seen.events] == [False, False, True, False]
    first, second, third, bookmark = seen.events
    assert isinstance(first.stored, ResourceSlice)
    assert first.stored.spec == made.spec
    assert second.version == changed.metadata.resource_version
    assert int(third.version) > int(second.version)
    assert (bookmark.stored, bookmark.version) == (None, str(plane.store.version))
    assert seen.failure is None, "the end of a watch is normal"


@pytest.mark.parametrize("as_event", [True, False], ids=["as an event", "as a status"])
async def test_a_version_that_is_forgotten_is_told_apart(
    plane: ControlPlane, as_event: bool
) -> None:
    plane.server.gone_as_event = as_event
    async with node_slices(plane) as slices:
        _, version = await slices.read_all()
        await slices.create("one", spec(), owner="uid")
        plane.store.compact()
        seen = Seen(slices, version)
        await seen.ended()

    assert isinstance(seen.failure, TooOldError)


async def test_a_watch_that_is_not_allowed_or_is_cut_says_so(plane: ControlPlane) -> None:
    async with node_slices(plane) as slices:
        _, version = await slices.read_all()
        seen = Seen(slices, version)
        await until(lambda: "watch=true" in plane.server.requests[-1])
        plane.server.cut_all()
        await seen.ended()
        plane.server.forbidden.add(("watch", "resourceslices"))
        refused = Seen(slices, version)
        await refused.ended()

    assert seen.failure is None or isinstance(seen.failure, ApiServerError)
    assert isinstance(refused.failure, ApiRefusedError)


async def test_a_watch_that_nobody_follows_any_more_leaves_no_thread(plane: ControlPlane) -> None:
    async with node_slices(plane) as slices:
        _, version = await slices.read_all()
        seen = Seen(slices, version)
        await until(lambda: seen.begun)
        assert watching()
        seen.task.cancel()
        await asyncio.wait([seen.task])
        await until(lambda: not watching(), what="the thread to end")


async def test_a_watch_that_ends_while_it_connects_asks_for_nothing(plane: ControlPlane) -> None:
    async with node_slices(plane) as slices:
        _, version = await slices.read_all()
        plane.server.greets.clear()
        before = plane.server.knocks
        seen = Seen(slices, version)
        await until(lambda: plane.server.knocks > before, what="the connection")
        assert watching()
        seen.task.cancel()
        await asyncio.wait([seen.task], timeout=8.0)
        assert seen.task.done(), "a stop waits for no connection that cannot be cut"
        plane.server.greets.set()
        await until(lambda: not watching(), what="the thread to end")
    assert not [request for request in plane.server.requests if "watch=true" in request]


async def test_a_watch_that_does_not_begin_in_time_is_an_error(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.apiserver.watch._BEGIN", 0.2)
    observed = Observed()
    async with client(plane, observed) as server:
        slices = NodeSlices(server, driver=DRIVER, node=NODE)
        _, version = await slices.read_all()
        observed.ends.clear()
        plane.server.greets.clear()
        seen = Seen(slices, version)
        await asyncio.wait([seen.task], timeout=8.0)
        assert str(seen.failure) == f"cannot ask the API server at {plane.access}: {_LATE}"
        assert observed.ends == [ApiOutcome.UNREACHABLE]
        plane.server.greets.set()
        await until(lambda: not watching(), what="the thread to end")


async def test_a_watch_ends_at_an_object_that_cannot_be_read(plane: ControlPlane) -> None:
    async with node_slices(plane) as slices:
        _, version = await slices.read_all()
        seen = Seen(slices, version)
        add_slice(plane, "odd", devices=[{"name": "one", "consumesCounters": None}])
        await seen.ended()
        assert isinstance(seen.failure, UnreadableAnswerError)
        await until(lambda: not watching(), what="the thread to end")


def watching() -> bool:
    """Tell whether a watch has a thread."""
    return any(each.name == "lane-api-watch" for each in threading.enumerate())


@pytest.fixture
async def writer(plane: ControlPlane) -> AsyncIterator[ApiServer]:
    async with client(plane) as server:
        yield server


POD = PodRecord(uid=PodUid("pod-uid"), boot=BootId("boot"), namespace="team", name="train")
DEVICE = DeviceName(ResourceName("google.com/tpu"), DeviceId("0000:00:05.0"))


async def test_an_event_is_written_about_a_pod_and_about_the_node(
    plane: ControlPlane, writer: ApiServer
) -> None:
    cluster = ClusterNotices(writer, node=NODE)
    text = "held by pid 4711 " + "\x1b" * 2000
    await cluster.write_event(Notice(reason=Reason.WAITING, text=text, pod=POD), at=1_700_000_000.0)
    await cluster.write_event(
        Notice(reason=Reason.RECLAIMED, text=text, device=DEVICE), at=1_700_000_000.0
    )

    found = plane.store.every(EVENTS)
    node, pod = sorted(found, key=lambda each: each["involvedObject"]["kind"])
    assert pod["metadata"]["namespace"] == "team"
    assert pod["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "train",
        "uid": "pod-uid",
    }
    assert (pod["reason"], pod["type"]) == ("WaitingForDevice", "Warning")
    assert pod["source"] == {"component": "holdfast", "host": NODE}
    assert pod["firstTimestamp"] == pod["lastTimestamp"] == "2023-11-14T22:13:20Z"
    assert len(pod["message"].encode()) <= 1024 * 4
    assert (node["metadata"]["namespace"], node["type"]) == ("default", "Normal")
    assert node["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}


def node_status(plane: ControlPlane) -> dict[str, Any]:
    status: dict[str, Any] = plane.store.get(Place(kind=NODES, name=NODE)).get("status", {})
    return status


HELD = Condition(status=True, reason="DeviceHeld", message="held by pid 4711")


async def test_the_nodes_condition_is_written_and_all_others_are_left_alone(
    plane: ControlPlane, writer: ApiServer
) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    node = plane.store.get(Place(kind=NODES, name=NODE))
    node["status"] = {"conditions": [ready], "capacity": {"google.com/tpu": "4"}}
    plane.store.update(Place(kind=NODES, name=NODE), node, subresource="status")
    cluster = ClusterNotices(writer, node=NODE)
    assert await cluster.read_condition() == StoredCondition()
    stored = await cluster.write_condition(HELD, since="", at=1_700_000_000.0)
    assert stored == StoredCondition(condition=HELD, since="2023-11-14T22:13:20Z")
    again = await cluster.write_condition(HELD, since=stored.since, at=1_700_000_060.0)
    assert again == stored
    assert await cluster.read_condition() == stored

    status = node_status(plane)
    assert status["capacity"] == {"google.com/tpu": "4"}
    assert status["conditions"] == [
        ready,
        {
            "type": "HoldfastDevicesHeld",
            "status": "True",
            "reason": "DeviceHeld",
            "message": "held by pid 4711",
            "lastHeartbeatTime": "2023-11-14T22:14:20Z",
            "lastTransitionTime": "2023-11-14T22:13:20Z",
        },
    ]


async def test_looking_at_the_condition_writes_nothing(
    plane: ControlPlane, writer: ApiServer
) -> None:
    await ClusterNotices(writer, node=NODE).read_condition()
    assert not [place for _, place in plane.store.writes[1:] if place.kind == NODES]


async def test_what_the_server_does_not_let_the_node_write_is_said(
    plane: ControlPlane, writer: ApiServer
) -> None:
    plane.server.forbidden = {("create", "events"), ("patch", "nodes/status")}
    notice = Notice(reason=Reason.HELD, text="held", device=DEVICE)
    with pytest.raises(ApiRefusedError, match="cannot create an Event of Node node-1: .* events"):
        await ClusterNotices(writer, node=NODE).write_event(notice, at=0.0)
    with pytest.raises(ApiRefusedError, match="cannot update the condition .* patch resource"):
        await ClusterNotices(writer, node=NODE).write_condition(HELD, since="", at=0.0)


async def test_only_the_own_node_is_told_of(plane: ControlPlane, writer: ApiServer) -> None:
    notice = Notice(reason=Reason.HELD, text="held", device=DEVICE)
    with pytest.raises(ApiRefusedError, match="events-policy"):
        await ClusterNotices(writer, node="node-2").write_event(notice, at=0.0)
    with pytest.raises(ApiRefusedError, match="nodes-policy"):
        await ClusterNotices(writer, node="node-2").write_condition(HELD, since="", at=0.0)


def test_the_daemon_does_not_load_it_by_itself() -> None:
    code = (
        "import sys, holdfast.app.daemon;"
        "print([name for name in sys.modules if name.startswith('holdfast.apiserver')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "[]"


class Node(Struct, frozen=True):
    metadata: dict[str, Any]


class Seen:
    """What a watch yields, and how it ends."""

    def __init__(self, slices: NodeSlices, version: str) -> None:
        self.events: list[SliceEvent] = []
        self.failure: Exception | None = None
        self.begun = 0
        self.task = asyncio.create_task(self._follow(slices, version))

    async def ended(self) -> None:
        await asyncio.wait_for(self.task, 60)

    async def _follow(self, slices: NodeSlices, version: str) -> None:
        try:
            async for event in slices.follow(version, begun=self._begin):
                self.events.append(event)
        except ApiServerError as error:
            self.failure = error

    def _begin(self) -> None:
        self.begun += 1


def an_event() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {},
    }


async def test_the_labels_of_the_node_are_read_and_followed(plane: ControlPlane) -> None:
    def label(name: str, **labels: str) -> None:
        place = Place(kind=NODES, name=name)
        node = plane.store.get(place)
        node["metadata"]["labels"] = labels
        plane.store.update(place, node)

    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}
    plane.store.create(Place(kind=NODES), other)
    async with client(plane) as server:
        node = NodeOnServer(server, node=NODE)
        labels, version = await node.read()
        assert labels == {}
        begun: list[bool] = []
        changes = node.follow(version, begun=lambda: begun.append(True))
        label("other", a="other")
        label(NODE, a="one")
        assert await anext(changes) == {"a": "one"}
        assert begun == [True]
        label(NODE)
        assert await anext(changes) == {}
        await changes.aclose()  # type: ignore[attr-defined]
        assert plane.server.whole == []
    label(NODE, a="two")
    assert await asyncio.to_thread(labels_now, plane.access, NODE, SystemClock(), timeout=20.0) == {
        "a": "two"
    }
    plane.server.forbidden = {("get", "nodes")}
    with pytest.raises(ApiRefusedError, match=r'cannot read Node node-1: .*resource "nodes"'):
        await asyncio.to_thread(labels_now, plane.access, NODE, SystemClock(), timeout=20.0)
    plane.server.forbidden.clear()
    plane.server.be_rude(Rudeness(path="nodes", trickle=True))
    with pytest.raises(ApiServerError, match="it does not answer in time"):
        await asyncio.to_thread(labels_now, plane.access, NODE, SystemClock(), timeout=1.0)
