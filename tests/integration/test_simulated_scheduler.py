"""The scheduler of the simulated cluster: it gives out what the slices say, and no more."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.controlplane import NODE, ControlPlane, control_plane
from simulated.cluster.claims import FINALIZER, claim_names
from simulated.cluster.objects import (
    CLAIMS,
    CLASSES,
    PODS,
    SLICES,
    TEMPLATES,
    add,
    add_class,
    using,
    wanting,
)
from simulated.cluster.scheduler import Scheduler
from simulated.cluster.store import Place, RefusedError, Store

DRIVER = "holdfast.dev"
ONE = {"value": "1"}
RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "golden/kubernetes-1.36.2/scheduler.json").read_text()
)
CHIPS = ("chip-0", "chip-1", "chip-2", "chip-3")


class Cluster:
    """An API server with a pool of four chips and their square, and a scheduler."""

    def __init__(self, plane: ControlPlane, *, slices: Sequence[Any] | None = None) -> None:
        """Have *slices* instead, by what they specify."""
        self.store = plane.store
        self.scheduler = Scheduler(plane.store)
        self.claims = 0
        for number, spec in enumerate(slices or ()):
            add(self.store, SLICES, f"slice-{number}", spec=spec)
        if slices is not None:
            return
        for name, resource in (("chips", "google.com/tpu"), ("squares", "google.com/tpu-2x2")):
            add_class_of(self.store, name, resource)
        uses = {name: {f"part-{place}": ONE} for place, name in enumerate(CHIPS)}
        uses["square"] = {f"part-{place}": ONE for place in range(4)}
        self.devices = [
            {
                "name": name,
                "attributes": {
                    "resource": {"string": f"google.com/tpu{'' if name in CHIPS else '-2x2'}"}
                },
                "consumesCounters": [{"counterSet": "box", "counters": counters}],
            }
            for name, counters in uses.items()
        ]
        counters = {f"part-{place}": ONE for place in range(4)}
        self.slice("counters", sharedCounters=[{"name": "box", "counters": counters}])
        self.slice("devices", devices=self.devices)

    def slice(self, name: str, **content: Any) -> None:
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, **content}
        add(self.store, SLICES, name, spec=spec)

    def taint(self, device: str, effect: str = "NoSchedule") -> None:
        found = self.store.get(Place(kind=SLICES, name="devices"))
        for each in found["spec"]["devices"]:
            if each["name"] == device:
                each["taints"] = [{"key": f"{DRIVER}/held", "value": "foreign", "effect": effect}]
        self.store.update(Place(kind=SLICES, name="devices"), found)

    def claim(self, name: str, class_name: str = "chips", **wanted: Any) -> None:
        add(self.store, CLAIMS, name, spec=wanting(class_name, "r", **wanted))

    def pod(self, name: str, *claims: str, **limits: int) -> None:
        resources = {}
        if limits:
            named = {key.replace("_", "/", 1): str(count) for key, count in limits.items()}
            resources = {"resources": {"limits": named}}
        used = ({"name": each, "resourceClaimName": each} for each in claims)
        add(self.store, PODS, name, spec=using(*used, **resources))

    def claims_there(self) -> list[dict[str, Any]]:
        return self.store.every(CLAIMS)

    def given(self, claim: str) -> list[str]:
        found = self.store.get(Place(kind=CLAIMS, namespace="default", name=claim))
        allocation = found.get("status", {}).get("allocation", {})
        return [each["device"] for each in allocation.get("devices", {}).get("results", ())]


def add_class_of(store: Store, name: str, resource: str) -> None:
    chosen = f'device.attributes["{DRIVER}"].resource == "{resource}"'
    add_class(store, name, DRIVER, chosen, extendedResourceName=resource)


@pytest.fixture
def cluster(short_path: Path) -> Iterator[Cluster]:
    with control_plane(short_path) as plane:
        yield Cluster(plane)


def test_what_an_administrator_has_is_given_to_others_all_the_same(cluster: Cluster) -> None:
    cluster.claim("admin", adminAccess=True)
    cluster.claim("others", count=4)
    for name in ("admin", "others"):
        cluster.pod(name, name)

    assert cluster.scheduler.step() == ["admin", "others"]


def test_a_pool_whose_slices_are_not_all_there_is_not_used(cluster: Cluster) -> None:
    found = cluster.store.get(Place(kind=SLICES, name="devices"))
    for each in found["spec"]["devices"]:
        del each["consumesCounters"]  # without their counters they would not be used anyway
    cluster.store.update(Place(kind=SLICES, name="devices"), found)
    cluster.store.delete(Place(kind=SLICES, name="counters"))
    cluster.claim("one")
    cluster.pod("a", "one")

    assert cluster.scheduler.step() == []


def test_the_devices_of_a_deleted_pod_are_given_out_at_once(cluster: Cluster) -> None:
    add(cluster.store, TEMPLATES, "t", spec={"spec": wanting("squares", "r")})
    for name in ("first", "second"):
        claim = {"name": "box", "resourceClaimTemplateName": "t"}
        add(cluster.store, PODS, name, spec=using(claim))

    assert cluster.scheduler.step() == ["first"]
    cluster.scheduler.delete("default", "first")
    assert cluster.scheduler.step() == ["second"]
    second = claim_names(cluster.store.get(Place(kind=PODS, namespace="default", name="second")))
    assert re.fullmatch("second-box-[bcdfghjklmnpqrstvwxz2456789]{5}", second["box"])
    assert cluster.given(second["box"]) == ["square"]
    assert [each["metadata"]["name"] for each in cluster.claims_there()] == [second["box"]]


def test_a_pod_with_an_extended_resource_gets_a_claim_by_the_class_of_that_name(
    cluster: Cluster,
) -> None:
    cluster.pod("plain", **{"google.com_tpu": 3})

    assert cluster.scheduler.step() == ["plain"]
    pod = cluster.store.get(Place(kind=PODS, namespace="default", name="plain"))
    told = pod["status"]["extendedResourceClaimStatus"]
    assert told["resourceClaimName"].startswith("plain-extended-resources-")
    assert cluster.given(told["resourceClaimName"]) == ["chip-0", "chip-1", "chip-2"]
    assert told["requestMappings"][0]["requestName"] == "container-0-request-0"


def test_no_claim_is_made_for_extended_resources_that_do_not_fit(cluster: Cluster) -> None:
    cluster.pod("plain", **{"google.com_tpu": 5})

    assert cluster.scheduler.step() == []
    assert cluster.claims_there() == []


def test_a_pod_waits_for_a_claim_that_is_not_there(cluster: Cluster) -> None:
    cluster.pod("a", "late")
    assert cluster.scheduler.step() == []
    cluster.claim("late")
    assert cluster.scheduler.step() == ["a"]


def test_a_claim_is_kept_as_long_as_it_is_allocated(cluster: Cluster) -> None:
    cluster.claim("one")
    (new,) = cluster.claims_there()
    cluster.pod("a", "one")
    cluster.scheduler.step()
    cluster.store.delete(Place(kind=CLAIMS, namespace="default", name="one"))
    (kept,) = cluster.claims_there()

    assert new["status"] == {}
    assert "generation" not in new["metadata"]
    assert kept["metadata"]["finalizers"] == [FINALIZER]
    assert kept["metadata"]["deletionTimestamp"]
    assert kept["status"]["allocation"]["allocationTimestamp"]
    cluster.scheduler.delete("default", "a")
    assert cluster.claims_there() == []


@pytest.mark.parametrize("case", RECORDED)
def test_it_decides_as_a_real_scheduler_did(short_path: Path, case: str) -> None:
    """Recorded from kube-scheduler 1.36.2, with all feature gates at their defaults."""
    recorded = RECORDED[case]
    told = 'device.driver == "sem.example.com"'
    with control_plane(short_path) as plane:
        made = Cluster(plane, slices=recorded["slices"])
        spec = {"selectors": [{"cel": {"expression": told}}]}
        add(made.store, CLASSES, "sem", spec=spec)
        for claim in recorded["claims"]:
            name = claim["name"]
            add(made.store, CLAIMS, name, spec=claim["spec"])
            made.pod(name, name)
            made.scheduler.step()
            found = made.store.get(Place(kind=CLAIMS, namespace="default", name=name))
            allocation = (found.get("status") or {}).get("allocation") or {"devices": {}}
            given = allocation["devices"].get("results", [])
            for each in given:
                for key in ("driver", "pool", "shareID"):
                    each.pop(key, None)
            assert given == claim["results"], name


def test_a_claim_is_shared_by_pods_until_the_last_is_gone(cluster: Cluster) -> None:
    cluster.claim("box", "squares")
    cluster.pod("a", "box")
    cluster.pod("b", "box")
    cluster.claim("one")
    cluster.pod("c", "one")

    assert cluster.scheduler.step() == ["a", "b"]
    cluster.scheduler.delete("default", "a")
    assert cluster.scheduler.step() == []
    cluster.scheduler.delete("default", "b")
    assert cluster.scheduler.step() == ["c"]


def test_pods_on_a_device_that_is_lost_are_evicted(cluster: Cluster) -> None:
    cluster.claim("one")
    cluster.pod("a", "one")
    cluster.scheduler.step()
    cluster.taint("chip-0")
    assert cluster.scheduler.evict() == [], "a taint of NoSchedule touches nobody who has it"
    cluster.taint("chip-0", "NoExecute")

    assert cluster.scheduler.evict() == ["a"]
    assert cluster.given("one") == []


def shared(shares: int) -> dict[str, Any]:
    one = {"default": "1", "validValues": ["1"]}
    return {
        "name": "gpu",
        "attributes": {"resource": {"string": "nvidia.com/gpu"}},
        "allowMultipleAllocations": True,
        "capacity": {
            "shares": {"value": str(shares), "requestPolicy": one},
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "0", "validRange": {"min": "0"}},
            },
        },
    }


def results(cluster: Cluster, claim: str) -> list[dict[str, Any]]:
    found = cluster.store.get(Place(kind=CLAIMS, namespace="default", name=claim))
    given: list[dict[str, Any]] = found["status"]["allocation"]["devices"]["results"]
    return given


@pytest.fixture
def sharing(cluster: Cluster) -> Cluster:
    add_class_of(cluster.store, "gpus", "nvidia.com/gpu")
    found = cluster.store.get(Place(kind=SLICES, name="devices"))
    found["spec"]["devices"].append(shared(3))
    cluster.store.update(Place(kind=SLICES, name="devices"), found)
    return cluster


def test_a_shared_device_is_given_to_as_many_claims_as_its_capacity_allows(
    sharing: Cluster,
) -> None:
    for name in ("a", "b", "c", "d"):
        sharing.claim(name, "gpus")
        sharing.pod(name, name)

    assert sharing.scheduler.step() == ["a", "b", "c"]
    given = [each for name in ("a", "b", "c") for each in results(sharing, name)]
    assert len({each["shareID"] for each in given}) == 3
    assert [each["consumedCapacity"] for each in given] == [{"shares": "1", "memory": "0"}] * 3
    sharing.scheduler.delete("default", "b")
    assert sharing.scheduler.step() == ["d"]


def test_the_counters_of_a_shared_device_are_consumed_once(sharing: Cluster) -> None:
    found = sharing.store.get(Place(kind=SLICES, name="devices"))
    uses = [{"counterSet": "box", "counters": {"part-0": ONE}}]
    found["spec"]["devices"][-1]["consumesCounters"] = uses
    sharing.store.update(Place(kind=SLICES, name="devices"), found)
    for name in ("a", "b"):
        sharing.claim(name, "gpus")
        sharing.pod(name, name)
    sharing.claim("chip")
    sharing.pod("c", "chip")

    assert sharing.scheduler.step() == ["a", "b", "c"]
    assert sharing.given("chip") == ["chip-1"]


def test_what_a_claim_asks_of_a_capacity_is_counted_and_bounded(sharing: Cluster) -> None:
    for name, amounts in (
        ("half", {"memory": "40Gi"}),
        ("much", {"memory": "60Gi"}),
        ("rest", {"memory": "40Gi"}),
        ("two", {"shares": "2"}),
        ("other", {"colours": "1"}),
    ):
        sharing.claim(name, "gpus", capacity={"requests": amounts})
        sharing.pod(name, name)

    assert sharing.scheduler.step() == ["half", "rest"]


def test_a_device_that_a_claim_has_as_a_whole_is_not_shared(sharing: Cluster) -> None:
    sharing.claim("whole", "gpus")
    sharing.pod("first", "whole")
    sharing.scheduler.step()
    place = Place(kind=CLAIMS, namespace="default", name="whole")
    found = sharing.store.get(place)
    (result,) = found["status"]["allocation"]["devices"]["results"]
    del result["shareID"], result["consumedCapacity"]
    sharing.store.update(place, found, subresource="status")
    sharing.claim("share", "gpus")
    sharing.pod("second", "share")

    assert sharing.scheduler.step() == []


@pytest.mark.parametrize(
    ("policy", "multiple", "text"),
    [
        ({"default": "1"}, False, "allowMultipleAllocations must be true"),
        ({"validValues": ["1"]}, True, "default: Required value"),
        ({"default": "2", "validValues": ["1"]}, True, "validValues: Invalid value"),
        ({"default": "1", "validValues": ["2", "1"]}, True, "validValues: Invalid value"),
        ({"default": "1", "validValues": ["1", "4"]}, True, "validValues: Invalid value"),
        ({"default": "0", "validRange": {"min": "1"}}, True, "validRange: Invalid value"),
        ({"default": "1", "validRange": {"min": "1", "max": "4"}}, True, "validRange: Invalid"),
        (
            {"default": "1", "validValues": ["1"], "validRange": {"min": "1"}},
            True,
            "only one of validValues and validRange",
        ),
    ],
)
def test_a_policy_that_the_api_does_not_allow_is_refused(
    cluster: Cluster, policy: dict[str, Any], multiple: bool, text: str
) -> None:
    device: dict[str, Any] = {
        "name": "gpu",
        "capacity": {"shares": {"value": "3", "requestPolicy": policy}},
    }
    if multiple:
        device["allowMultipleAllocations"] = True
    with pytest.raises(RefusedError, match=text):
        cluster.slice("more", devices=[device])
