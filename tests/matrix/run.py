"""Holds the real daemon against the oracle: one combination."""

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matrix import calls, chart, oracle, space
from matrix.oracle import ViolationError
from matrix.space import Choice, Refused
from matrix.world import World, promised, refusal, world
from simulated.pods import Phase, Pod


async def refuses(choice: Choice, wrong: Refused, library: Path) -> None:
    """See that the daemon does not start with *wrong*, names its key, and makes nothing."""
    choice = {**choice, **wrong.also}
    async with world(choice, library) as made:
        section = made.settings
        *sections, last = wrong.path.split(".")
        for each in sections:
            section = section.setdefault(each, {})
        section[last] = wrong.value
        said = await refusal(made)
        if said is None:
            raise ViolationError(
                f"start: {wrong.path}: {wrong.value!r} cannot work and is taken (what cannot work "
                "is refused before anything changes)"
            )
        if wrong.key not in said:
            raise ViolationError(
                f"start: refused without its key {wrong.key}: {said!r} (the key to change is named)"
            )
        if (made.state / "ledger.db").exists():
            raise ViolationError("start: it is refused, and a ledger was made all the same")
    chart.judge({**choice, wrong.path: wrong.value}, said)


async def serves(choice: Choice, library: Path, chance: random.Random) -> bool:
    """Hold the daemon against what is foretold of *choice*; return False where it is refused."""
    async with world(choice, library) as made:
        said = await refusal(made)
        chart.judge(choice, said)
        if said is not None:
            _judge_refusal(choice, said)
            return False
        await end_to_end(made, choice, chance)
        return True


def _judge_refusal(choice: Choice, said: str) -> None:
    if not any(path in said for path in space.tree(choice)) or "Traceback" in said:
        raise ViolationError(f"start: refused without a key to change: {said!r}")
    if choice["node.by"] == "nvidia" and "sharing" in said:
        raise ViolationError(
            f"start: refused: {said!r}; NVIDIA's plugin takes this file (docs/nvidia.md: the same)"
        )


async def end_to_end(made: World, choice: Choice, chance: random.Random) -> None:
    """Offer, prefer, allocate, start, reach, end, free, next: for every resource that there is."""
    await until_offered(made, choice)
    await _told(made, choice)
    _spec(made, choice)
    for resource, offers in oracle.foretold(choice).items():
        by_id = {each.id: (each,) for each in offers}
        most = 1 if only_one(choice, offers) else len(offers)
        for count in dict.fromkeys((1, most)):
            await _one_after_another(made, resource, count, by_id)
    for resource, devices in oracle.published(choice).items():
        by_name = {each.name: each.offers for each in devices}
        most = 1 if only_one(choice, devices[0].offers) else len(devices)
        for count in dict.fromkeys((1, most)):
            claim = count == 1 and chance.random() < 0.5
            await _one_after_another(made, resource, count, by_name, claim=claim)
        if len(devices[0].offers) > 1:
            await _share(made, resource, sum(len(each.offers) for each in devices))
    for shape in oracle.shapes(choice):
        pod = await _runs(made, shape, 1, claim=True)
        await _ends(made, pod)
    names = sorted({**oracle.foretold(choice), **oracle.published(choice)})
    if names and chance.random() < 0.4:
        await _cut_short(made, choice, chance.choice(names), chance)
    elif chance.random() < 0.3:
        await made.again()
        await until_offered(made, choice)


async def _cut_short(made: World, choice: Choice, resource: str, chance: random.Random) -> None:
    """Kill the daemon in the midst of a call: its pod goes on, and the next ones have the rest."""
    plugin, claims = oracle.foretold(choice), oracle.published(choice)
    offers = plugin.get(resource) or claims[resource][0].offers
    call, pod = await calls.cut_short(made, resource, chance)
    if pod is None or (pod.phase is Phase.FAILED and call != "Allocate"):
        raise ViolationError(f"{call}: {pod and pod.message} (it is allocated)")
    await made.come_up(f"a kill in {call}")
    await until_offered(made, choice)
    runs = pod.phase is not Phase.FAILED and not pod.deleting
    if runs:
        await promised(made, made.running(pod), f"{call}: its pod runs (nobody waits for ever)")
    elif pod.deleting:
        over = made.until(lambda: pod.stopped, "the end")
        await promised(made, over, f"{call}: its pod ends (nobody waits for ever)")
    count = len(plugin.get(resource) or claims[resource]) - runs
    pods = [pod] if runs else []
    if count and not only_one(choice, offers):
        pods.append(await _runs(made, resource, count))
    if pods:
        await _ends(made, *pods)


async def _one_after_another(
    made: World,
    resource: str,
    count: int,
    known: Mapping[str, Sequence[oracle.Offer]],
    *,
    claim: bool = False,
) -> None:
    """Let a pod have *count* of a resource, and see that all is as before when it is over."""
    pod = await _runs(made, resource, count, claim=claim)
    had = [known[each][0] for each in made.has(pod, resource)]
    if len(had) != count:
        raise ViolationError(f"allocate: {count} of {resource} asked, {had} given")
    _reaches(made, pod, had)
    if made.choice["node.sandbox"]:
        made.put_in_sandbox(pod, had[0].path)
        await promised(made, _is_held(made, count), "start: what a pod has is its own")
    if made.runtime.leaks and had[0].path.startswith("/dev/vfio/"):
        await _outlives(made, pod, resource, len(known))
    made.runtime.leaks = False
    await _ends(made, pod)
    made.runtime.leaks = made.choice["node.sandbox"] == "leaks"


async def _share(made: World, resource: str, count: int) -> None:
    """Let as many pods as there are shares run at once."""
    pods = [await _runs(made, resource, 1, claim=True) for _ in range(count)]
    await promised(made, _is_held(made, count), "start: each claim has a share of its own")
    for pod in pods:
        await made.end(pod)
    await promised(made, made.until_free(), "end: what its pod had is free again")
    await until_offered(made, made.choice)


async def _outlives(made: World, pod: Pod, resource: str, count: int) -> None:
    """Let the sandbox of *pod* outlive it: who wants all *count* does not start before its end."""
    ending = asyncio.create_task(made.end(pod))
    await promised(made, made.until(made.all_releasing, "the release"), "end: it is in release")
    if not pod.spec.claims:
        await promised(made, ending, f"end: kubelet ends {pod.spec.name}")
    following = None if pod.spec.claims else await made.ask("following", resource, count)
    waits = following is not None and following.phase is not Phase.FAILED
    if following is not None and waits and _tells(made.choice):
        told = made.cluster.told
        wait = made.until(lambda: "WaitingForDevice" in told(following), "the Event")
        await promised(made, wait, "wait: with events.enabled an Event about the pod says so")
    await made.for_some_beats(3)
    made.runtime.end_sandbox(pod)
    await promised(made, ending, f"end: kubelet ends {pod.spec.name}")
    if following is not None and waits:
        await promised(made, made.running(following), "next: it runs when the device is free")
        await made.end(following)


def _tells(choice: Choice) -> bool:
    """Tell whether an Event says who waits: one start does so for 2 s, and nothing is ended then."""
    lasts = choice["gate.wait"] == "5s" and choice["reclaim.sandboxGrace"] != "0s"
    return bool(choice["events.enabled"]) and lasts


async def _ends(made: World, *pods: Pod) -> None:
    for pod in pods:
        if not pod.stopped:
            await promised(made, made.end(pod), f"end: kubelet ends {pod.spec.name}")
    await promised(made, made.until_free(), "end: what its pod had is free again")
    await until_offered(made, made.choice)


async def _is_held(made: World, count: int) -> None:
    async def so() -> bool:
        states = [*(await made.locks()).values()]
        return states == ["held"] * count

    await made.until(so, f"{count} locks")


def _spec(made: World, choice: Choice) -> None:
    """See that a spec has the host's paths: the root is the host's own unless it is said."""
    file = made.folder / "cdi/k8s.device-plugin.nvidia.com-gpu.json"
    if choice["node.root"] == "container" and file.exists():
        paths = re.findall(rf'"hostPath": ?"({made.folder}[^"]*)', file.read_text())
        if paths:
            raise ViolationError(
                f"start: CONTAINER_DRIVER_ROOT alone, and the spec has the container's {paths[0]} "
                "for the host's (docs/nvidia.md: NVIDIA's driver root is the host's / by default)"
            )


def only_one(choice: Choice, offers: Sequence[oracle.Offer]) -> bool:
    fail = choice["sharing.timeSlicing.failRequestsGreaterThanOne"]
    return bool(fail) and any(each.shared for each in offers)


async def until_offered(made: World, choice: Choice) -> None:
    """Return when kubelet and the scheduler have exactly what is foretold, all of it well."""
    wanted = oracle.foretold(choice)
    ids = {resource: {each.id for each in offers} for resource, offers in wanted.items()}
    claimed = {
        each.name: (each.told, len(each.offers) if each.offers[0].shared else 0)
        for devices in oracle.published(choice).values()
        for each in devices
    }
    boxes = oracle.shapes(choice)

    def now() -> dict[str, set[str]]:
        endpoints = made.kubelet.devices.endpoints
        return {name: each.healthy for name, each in endpoints.items() if each.healthy}

    try:
        await made.until(lambda: now() == ids, "the devices")
        await made.until(
            lambda: _published(made) == claimed and (not boxes or _boxes(made) == boxes),
            "the slices",
        )
    except AssertionError as error:
        rows = await made.asked("devices") or ()
        why = sorted({reason for row in rows for reason in row["reasons"]})
        raise ViolationError(
            f"offer: expected {_count(ids)}, kubelet has {_count(now())}; claims: expected "
            f"{claimed}, {boxes}, there are {_published(made)}, {_boxes(made)}; {why[:3]} "
            f"(each healthy device is offered, under the name that is foretold) {_end(error)}"
        ) from error


def _published(made: World) -> dict[str, tuple[str, int]]:
    """Return the single devices without a taint: the resource, and how many shares there are."""
    return {
        name: (
            each["attributes"]["resource"]["string"],
            int(each.get("capacity", {}).get("shares", {}).get("value", 0)),
        )
        for name, each in made.cluster.devices().items()
        if not each.get("taints") and "shape" not in each["attributes"]
    }


def _boxes(made: World) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in made.cluster.devices().values():
        if not each.get("taints") and "shape" in each["attributes"]:
            shape = each["attributes"]["shape"]["string"]
            found[shape] = found.get(shape, 0) + 1
    return found


def _count(ids: Mapping[str, set[str]]) -> dict[str, str]:
    return {name: f"{len(each)}: {', '.join(sorted(each)[:3])}" for name, each in ids.items()}


def _end(error: AssertionError) -> str:
    text = str(error)
    return "" if text.startswith("waited") else text[-1500:]


async def _told(made: World, choice: Choice) -> None:
    """See that labels are what is promised."""
    wanted = oracle.labels(choice)
    file = made.folder / "features.d/holdfast"
    if wanted:

        def wrong() -> dict[str, str | None]:
            lines = file.read_text().splitlines() if file.exists() else []
            there = dict(line.split("=", 1) for line in lines if "=" in line)
            return {key: there.get(key) for key, text in wanted.items() if there.get(key) != text}

        try:
            await made.until(lambda: not wrong(), "the labels")
        except AssertionError as error:
            raise ViolationError(
                f"labels: {wrong()}, expected {dict(sorted(wanted.items()))} (as NVIDIA's GPU "
                "feature discovery)"
            ) from error


async def _runs(made: World, resource: str, count: int, **how: Any) -> Pod:
    name = f"pod-{len(made.runtime.given)}"
    pod = await made.ask(name, resource, count, **how)
    if pod is None:
        raise ViolationError(f"allocate: the scheduler finds no place for {count} of {resource}")
    if pod.phase is Phase.FAILED:
        raise ViolationError(f"allocate: {count} of {resource}: {pod.message} (it is allocated)")
    await promised(made, made.running(pod), f"start: a pod with {count} of {resource} runs")
    if made.runtime.failures:
        raise ViolationError(f"start: {made.runtime.failures[0]} (it is given what it needs)")
    return pod


def _reaches(made: World, pod: Pod, had: Sequence[oracle.Offer]) -> None:
    """See that the container was told of, or handed, each device that it has."""
    given = made.answer(pod)
    for each in had:
        if each.path not in given and not each.told & given:
            raise ViolationError(
                f"start: the container has {each.id} and was given {sorted(given)} (it is given "
                "what it needs)"
            )
