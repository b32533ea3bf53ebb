"""Pods and their claims change on the simulated cluster in the order in which they really did.

The recording is of Kubernetes 1.36.2 with holdfast on a slow machine: its seconds do not count. What
happens to a pod and to its claim is in one order, for each change there answers the one before it.
Between two pods only the way of the devices is: two controllers are as quick as they like.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from simulated.cluster.objects import CLAIMS, CLASSES, PODS, TEMPLATES, add, add_class
from simulated.cluster.store import Change, Object, Place
from simulated.drademo import DRIVER, TPU, DraDemo, dra_demo
from simulated.pods import Phase, Pod, Workload
from simulated.stage import running

_GOLDEN = Path(__file__).parent.parent / "golden/kubernetes-1.36.2/timeline.txt"
_SECTION = re.compile(r" *[\d.]+ ===== (\w+): .*")
_LINE = re.compile(r" *[\d.]+    (pod|resourceclaim) (\S+) -> (.*?)(?: health \.\.\.)?")
_RANDOM_END = re.compile(r"(-c|-extended-resources)-[bcdfghjklmnpqrstvwxz2456789]{5}\b")
_CHIPS = 4
_ROLES = {"c1": "a"}
"""The pod whose claim it is, for a claim whose name does not begin with the pod's."""
_CHIP = f"tpu.{DRIVER}"
_SQUARE = f"tpu-shape.{DRIVER}"
_STAYS = Workload(ignores_term=True)
_ENDS = Workload(runs_for=0.2)


class Step(Struct, frozen=True, kw_only=True):
    """One change of an object: `role` is the name of the pod that it is, or is for."""

    kind: str
    role: str
    change: str


def _step(kind: str, name: str, change: str) -> Step:
    role = _ROLES.get(name) or name.partition("-")[0]
    return Step(kind=kind, role=role, change=_RANDOM_END.sub(r"\1", change))


def _recorded() -> dict[str, list[Step]]:
    """Return the steps of each section of the recording."""
    found: dict[str, list[Step]] = {}
    for line in _GOLDEN.read_text().splitlines():
        if section := _SECTION.fullmatch(line):
            found[section[1]] = []
        elif match := _LINE.fullmatch(line):
            [*found.values()][-1].append(_step(*match.groups()))
        else:
            raise ValueError(line)
    return found


def _seen(changes: Iterable[Change]) -> list[Step]:
    """Return the steps that *changes* of a store are, in the words of the recording."""
    told: Mapping[Any, Callable[[Object], str]] = {PODS: _pod, CLAIMS: _claim}
    steps: list[Step] = []
    latest: dict[tuple[str, str], Step] = {}
    for each in changes:
        if each.place.kind not in told:
            continue
        kind, name = each.place.kind.plural.removesuffix("s"), each.place.name
        change = "(deleted)" if each.deleted else told[each.place.kind](each.now)
        step = _step(kind, name, change)
        if latest.get((kind, name)) != step:  # else what changed is no part of the recording
            latest[kind, name] = step
            steps.append(step)
    return steps


def _pod(found: Object) -> str:
    status, metadata = found["status"], found["metadata"]
    words = [status["phase"], "TERMINATING" if "deletionTimestamp" in metadata else ""]
    words += [f"{each['name']}={_state(each)}" for each in status.get("containerStatuses", ())]
    extended = status.get("extendedResourceClaimStatus")
    words.append(f"ext claim {extended['resourceClaimName']}" if extended else "")
    return " ".join(filter(None, words))


def _state(container: Object) -> str:
    ((state, more),) = container["state"].items()
    told = state + (f"/{more['reason']}" if "reason" in more else "")
    return f"{told} exit {more['exitCode']}" if "exitCode" in more else told


def _claim(found: Object) -> str:
    status = found["status"]
    results = status.get("allocation", {}).get("devices", {}).get("results", ())
    devices = json.dumps([each["device"] for each in results])
    users = json.dumps([each["name"] for each in status.get("reservedFor", ())])
    deleting = "deleting " if "deletionTimestamp" in found["metadata"] else ""
    return f"{deleting}allocated {devices} for {users}"


def _of_each_role(steps: Iterable[Step]) -> dict[str, list[tuple[str, str]]]:
    """Return what happened to each pod and its claim, in order."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in steps:
        found.setdefault(each.role, []).append((each.kind, each.change))
    return found


def _way_of_the_devices(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """Yield which pod had which devices, and that they were taken back, one after the other."""
    having: set[str] = set()
    for each in steps:
        if each.kind == "resourceclaim" and each.change.startswith('allocated ["'):
            having.add(each.role)
            yield each.role, each.change
        elif each.kind == "resourceclaim" and each.role in having:
            having.discard(each.role)
            yield each.role, each.change


class Play:
    """The stage of one section, on which a user does what was done for the recording."""

    def __init__(self, stage: DraDemo) -> None:
        self.stage = stage
        chosen = f'device.attributes["{DRIVER}"].type == "tpu-shape"'
        add_class(stage.store, _SQUARE, DRIVER, chosen)

    def claim(self, name: str) -> None:
        add(self.stage.store, CLAIMS, name, spec=_wanted(_CHIP))

    def delete_claim(self, name: str) -> None:
        self.stage.store.delete(Place(kind=CLAIMS, namespace="default", name=name))

    def template(self, name: str, of: str, count: int = 1) -> None:
        spec = {"spec": _wanted(of, count)}
        add(self.stage.store, TEMPLATES, name, spec=spec)

    def extend(self) -> None:
        """Let pods have chips without a claim of their own."""
        place = Place(kind=CLASSES, name=_CHIP)
        found = self.stage.store.get(place)
        found["spec"]["extendedResourceName"] = TPU
        self.stage.store.update(place, found)

    async def run(self, name: str, workload: Workload = _STAYS, **wants: Any) -> Pod:
        return await self.stage.run(name, workload, **wants)

    async def of_template(self, name: str, template: str, workload: Workload = _STAYS) -> Pod:
        claim = {"name": "c", "resourceClaimTemplateName": template}
        return await self.run(name, workload, resourceClaims=[claim])

    async def end(self, pod: Pod) -> None:
        """Delete a pod that runs, and see it go."""
        await self.stage.until_running(pod)
        self.stage.delete(pod, grace=0.3)
        await self.stage.until(lambda: pod.gone, "the pod to be gone")

    async def follow_by_force(self, workload: Workload) -> None:
        """Delete a pod of *workload* by force once it runs, and have another one use its chips."""
        self.template("all", _CHIP, _CHIPS)
        first = await self.of_template("a", "all", workload)
        await self.stage.until_running(first)
        self.stage.delete(first, grace=1.0, force=True)
        second = await self.of_template("b", "all", _ENDS)
        await self.stage.until(lambda: second.stopped, "the pod to be over")
        assert second.phase is Phase.SUCCEEDED
        self.stage.delete(second, grace=1.0)


def _wanted(device_class: str, count: int = 1) -> Object:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"devices": {"requests": [{"name": "chips", "exactly": exactly}]}}


async def _basic(play: Play) -> None:
    play.claim("c1")
    claims = [{"name": "c", "resourceClaimName": "c1"}]
    await play.end(await play.run("a", resourceClaims=claims))
    play.delete_claim("c1")


async def _shapes(play: Play) -> None:
    play.template("square", _SQUARE)
    await play.end(await play.of_template("sq1", "square"))


async def _extended(play: Play) -> None:
    play.extend()
    await play.end(await play.run("x1", limits={TPU: "1"}))


async def _force(play: Play) -> None:
    await play.follow_by_force(_STAYS)


async def _orphan(play: Play) -> None:
    await play.follow_by_force(Workload(orphan=1, ignores_term=True))


PLAYS: Mapping[str, Callable[[Play], Awaitable[None]]] = {
    "b_basic": _basic,
    "c_shapes": _shapes,
    "d_extended": _extended,
    "e_force": _force,
    "e_orphan": _orphan,
}


def test_each_section_of_the_recording_is_played() -> None:
    assert PLAYS.keys() == _recorded().keys()


@pytest.mark.parametrize("section", PLAYS)
async def test_pods_and_claims_change_in_the_recorded_order(short_path: Path, section: str) -> None:
    with dra_demo(short_path, chips=_CHIPS) as stage:
        stage.limit = 90.0
        async with running(stage):
            stage.start()
            await stage.until(lambda: len(stage.chips()) == _CHIPS, "the chips to be published")
            await stage.until(lambda: stage.dra.plugins.plugins, "the driver to be registered")
            play, version = Play(stage), stage.store.version
            await PLAYS[section](play)
            seen = _seen(stage.store.since(version))

    recorded = _recorded()[section]
    assert _of_each_role(seen) == _of_each_role(recorded)
    assert [*_way_of_the_devices(seen)] == [*_way_of_the_devices(recorded)]
