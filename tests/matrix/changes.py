"""From any to any: what is accepted is changed while pods run, come and end, with crashes."""

import asyncio
import random
import shutil
import tempfile
from pathlib import Path

from fakes.controlplane import control_plane
from fakes.namednode import Cluster
from fakes.stage import Stage, asks
from matrix import oracle, space
from matrix.run import ViolationError, World, promised, refusal, until_offered, world
from matrix.space import Choice
from simulated.pods import Phase, Pod, PodSpec

_QUEUE = 4
_WAYS = ("reload", "crash", "restart")


async def changes(before: Choice, after: Choice, library: Path, chance: random.Random) -> bool:
    """Go from one choice to another of the same node; return False where either is refused."""
    way, pause = chance.choice(_WAYS), chance.random() / 2
    async with world(after, library) as made:
        if await refusal(made) is not None:
            return False
        await made.stop()
        shutil.rmtree(made.state)
        made.adopt(before)
        made.show(before)
        if await refusal(made) is not None:
            return False
        had = oracle.foretold(before)
        await until_offered(made, had)
        names = chance.sample(sorted(had), min(2, len(had)))
        holders = [await _begin(made, name, f"holder-{name}") for name in names]
        mine = {pod.uid: made.ids(pod, name) for pod, name in zip(holders, names, strict=True)}
        held = dict.fromkeys({each for ids in mine.values() for each in ids}, "held")

        made.adopt(after)
        if way != "reload":
            await asyncio.sleep(pause)
            made.kill()
        if way == "restart" or made.process.poll() is not None:
            said = await refusal(made)
            if said is not None:
                raise ViolationError(f"{way}: the daemon cannot start again: {said}")
        await promised(made, _taken_up(made), f"{way}: the change is taken up")
        await promised(made, made.until_locks(held), f"{way}: what pods have stays theirs")
        dead = [pod.spec.name for pod in holders if pod.phase is not Phase.RUNNING]
        if dead:
            raise ViolationError(f"{way}: {dead} ended (nothing is made worse)")

        wanted = oracle.foretold(after)
        for pod, name in zip(holders, names, strict=True):
            await _queue(made, pod, name, {each.id for each in wanted.get(name, ())})
        await promised(made, made.until_free(), f"{way}: in the end all is free")
        made.show(after)
        await until_offered(made, wanted)
        return True


async def _begin(made: World, resource: str, name: str) -> Pod:
    spec = PodSpec(name=name, containers=(asks(resource, 1),))
    pod = await made.kubelet.submit(spec)
    if pod.phase is not Phase.FAILED:
        await promised(made, made.running(pod), f"start: {name} runs (nobody waits for ever)")
    return pod


async def _queue(made: World, pod: Pod, resource: str, stays: set[str]) -> None:
    """Let pod follow pod: what is to leave may go to one more, and then to nobody."""
    late = 0
    for number in range(_QUEUE):
        left = made.ids(pod, resource) - stays
        await made.end(pod)
        pod = await _begin(made, resource, f"next-{number}")
        if pod.phase is Phase.FAILED:
            return
        late += bool(left & made.ids(pod, resource))
    await made.end(pod)
    if late > 1:
        raise ViolationError(
            f"change: {late} new pods got a device of {resource} that is to leave it (no pod is "
            "given what is left out, or has another name)"
        )


async def _taken_up(made: Stage) -> None:
    async def so() -> bool:
        answer = await made.asked("reload")
        if answer is not None and answer["problem"]:
            raise ViolationError(f"change: {answer['problem']} (a fresh start takes it)")
        return answer is not None and not answer["changed"]

    await made.until(so, "the change to be taken up")


async def labels(chance: random.Random) -> None:
    """Let the node's label go anywhere, with crashes: the daemon goes by what there is last."""
    folder = Path(tempfile.mkdtemp(prefix="hm-", dir="/tmp"))
    try:
        with control_plane(folder) as plane:
            cluster = Cluster(plane, folder / "named")
            for name, wait in (("default", "3s"), ("slow", "4s"), ("fast", "2s")):
                cluster.document(name, gate={"wait": wait, "poll": "50ms"})
            cluster.label(ours="slow")
            async with cluster.daemon(folder) as node:
                steps = [chance.choice(("slow", "fast", "nowhere", "")) for _ in range(2)]
                await _label_story(node, cluster, steps, chance)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _label_story(
    node: Stage, cluster: Cluster, steps: list[str], chance: random.Random
) -> None:
    for each in steps:
        cluster.label(**({"ours": each} if each else {}))
        await _read(node, each)
    node.kill()
    cluster.label(ours="fast")
    off = chance.random() < 0.5
    if off:
        node.settings["named"] = {**node.settings["named"], "labels": []}
    node.start()
    wanted = 3.0 if off else 2.0

    async def so() -> bool:
        answer = await node.asked("debug")
        return answer is not None and answer["settings"]["gate"]["wait"] == wanted

    try:
        await node.until(so, "the document")
    except AssertionError as error:
        lines = [line for line in node.log.splitlines() if "cannot" in line]
        raise ViolationError(
            f"label: labels {steps}, a crash, then {'none is read' if off else 'fast'}: the "
            f"daemon does not go by it: {lines[-1:]} (it can always start again, and ends as a "
            "fresh start does)"
        ) from error


async def _read(node: Stage, label: str) -> None:
    """Return when the daemon goes by *label*, or says that it cannot."""

    async def so() -> bool:
        said = await node.problem("configuration")
        return (
            (f"'{label}'" in said)
            if label == "nowhere"
            else f"document {label or 'default'}" in said
        )

    await node.until(so, lambda: f"the label {label!r} to be read")


def another(choice: Choice, chance: random.Random) -> Choice:
    """Return another choice for the same node; its GPUs may be divided in another way."""
    made = space.usable(space.at_random(chance, keep=0.85))
    here = {name: value for name, value in choice.items() if name.startswith("node.")}
    same = len(choice["node.gpus"])
    layouts = [each for each in space.axes()["node.gpus"] if len(each) == same]
    divided = chance.choice(layouts) if chance.random() < 0.3 else choice["node.gpus"]
    return space.usable({**made, **here, "node.gpus": divided})
