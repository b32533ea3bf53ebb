"""From any to any: what is accepted is changed while pods run, come and end, with crashes."""

import asyncio
import os
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fakes.controlplane import control_plane
from fakes.namednode import Cluster
from fakes.stage import Stage, end
from matrix import byhand, calls, oracle, space
from matrix.oracle import ViolationError
from matrix.run import only_one, until_offered
from matrix.space import Choice
from matrix.world import World, plug, promised, refusal, unplug, world
from simulated.pods import Phase, Pod

_QUEUE = 4
_INDEX = re.compile(r"=[\d:]+$")
"""How a CDI name ends that says which GPU by its index (docs/nvidia.md: it may lead to another)."""
_WAYS = ("reload", "crash", "call", "restart", "lost", "old", "reboot")
"""How a change is taken up; "call": after a crash in the midst of a call; "lost": after one that
left no ledger; "old": or a former one."""
_MEANWHILE = ("", "", "driver", "mig", "unplug", "kubelet")
"""What else happens: the driver goes and comes, MIG's layout or the hardware changes, or kubelet
restarts."""


async def changes(before: Choice, after: Choice, library: Path, chance: random.Random) -> bool:
    """Go from one choice to another of the same node; return False where either is refused."""
    way, meanwhile = _what_happens(before, after, chance)
    if way == "call":
        # Until then an answer may be that of a pod that kubelet has refused.
        after = {**after, "allocate.pendingTimeout": "5s"}
    async with world(after, library) as made:
        if await refusal(made) is not None:
            return False
        await made.stop()
        shutil.rmtree(made.state)
        made.cluster.wipe()
        made.adopt(before)
        made.renumber(before)
        made.show(before)
        if await refusal(made) is not None:
            return False
        await until_offered(made, before)
        story = _Story(made, f"{way}, {meanwhile or 'nothing else'}", chance)
        has = [
            each
            for each in _names(before)
            if _is_known(each, before, after, lost=way in {"lost", "old"})
        ]
        if way == "old":
            # That a claim is over without kubelet is looked for once a minute.
            await story.past([each for each in has if each in oracle.foretold(before)])
            ignored = shutil.ignore_patterns("*.sock")
            shutil.copytree(made.state, made.folder / "former", ignore=ignored)
        stands = meanwhile not in {"unplug", "numbers"}
        # While a process uses a GPU, its driver cannot go, nor the GPU be divided in another way.
        await story.begin(before, has, stands=stands, gpus=meanwhile in {"", "unplug", "kubelet"})
        if has and way not in {"lost", "old"} and chance.random() < 0.5:
            # Nobody is about to start on what is taken out.
            await story.withhold(before, after, has, comes=has if stands else ())
        if has and way == "call" and stands:
            await story.cut_short(has)

        if after["node.by"] == "ways":
            made.kill()
        made.adopt(after)
        else_ = asyncio.create_task(_MEANS[meanwhile](made, after, chance))
        await _come_through(made, story, way, after, chance)
        await else_
        await promised(made, _taken_up(made), f"{way}: the change is taken up")
        await promised(made, made.until_numbered(), f"{way}: the daemon sees the numbers")
        await story.end(after)
        return True


def _what_happens(before: Choice, after: Choice, chance: random.Random) -> tuple[str, str]:
    """Return how the change is taken up, and what happens meanwhile."""
    way, meanwhile = chance.choice(_WAYS), chance.choice(_MEANWHILE)
    if after["node.by"] == "ways" and way == "reload":
        way = "crash"  # a process keeps its variables and flags
    if way == "reboot":
        return way, ""
    return way, "numbers" if before["node.numbers"] != after["node.numbers"] else meanwhile


async def _come_through(
    made: World, story: "_Story", way: str, after: Choice, chance: random.Random
) -> None:
    """Let the daemon, or the node, end in this *way*, and come up again."""
    if way == "reboot":
        await made.reboot_as(after)
        await story.readmit(after)
        return
    if way != "reload" and made.process.poll() is None:
        await asyncio.sleep(chance.random() / 2)
        made.kill()
    if way in {"lost", "old"}:
        shutil.rmtree(made.state)
    if way == "old":
        (made.folder / "former").rename(made.state)
    if way == "restart":
        await made.come_up(way)
        await asyncio.sleep(chance.random() / 2)
        made.kill()
    if way == "restart" or made.process.poll() is not None:
        await made.come_up(way)


class _Story:
    """Pods that have something while all changes, one that ends then, and who comes after them."""

    def __init__(self, made: World, what: str, chance: random.Random) -> None:
        self.made, self._what, self._chance = made, what, chance
        self._numbers = made.numbers
        self._holders: list[tuple[Pod, str]] = []
        self._held: dict[str, str] = {}
        self._beside: list[Pod] = []
        self._ending: list[Pod] = []
        self._former: Pod | None = None
        self._left = ""
        self._waiting: list[tuple[Pod, str]] = []
        self._past: Pod | None = None
        self._rebooted = False
        self._came = 0

    async def past(self, has: Sequence[str]) -> None:
        """Let a pod run that is over when all begins."""
        self._past = await _begin(self.made, has[0], "past") if has else None

    async def begin(self, before: Choice, has: Sequence[str], *, stands: bool, gpus: bool) -> None:
        """Let two pods run, one wait for what another has left, and one begin to end.

        They have what goes by *has*. Unless the hardware *stands*, no process has it open: the
        kernel would not let it go. What is left behind is on *gpus* as well. Beside those that have
        a claim another pod may use that claim, and one watch their GPU.
        """
        made = self.made
        if self._past is not None:
            await promised(made, made.end(self._past), "end: kubelet ends past")
            await promised(made, made.until_free(), "end: what its pod had is free again")
        names = list(_apart(before, self._chance.sample(has, len(has))))[:3]
        left = (each for each in names if _can_be_left(before, each, stands=stands, gpus=gpus))
        behind = next(left, "")
        names = [each for each in names if each != behind][:2]
        for name in names:
            await self._hold(name, stands=stands)
        if name := next((each for each in names if _can_be_watched(before, each)), ""):
            await self._watch(name)
        self._held = await made.locks()
        if set(self._held.values()) - {"held"}:
            raise ViolationError(f"start: locks {self._held} while pods run")
        if behind:
            await self._let_wait(behind, len(oracle.foretold(before)[behind]))
        if names:
            ending = await _begin(made, names[0], "ending", opens=stands, patient=False)
            self._ending += [ending] if ending else []
        for each in self._ending:
            made.let_end(each)

    async def _hold(self, name: str, *, stands: bool) -> None:
        """Let a pod run that has one by *name*; or two, of one claim."""
        made, number = self.made, len(self._holders)
        shared = f"shared-{number}" if self._chance.random() < 0.5 else ""
        pods = []
        for each in (f"holder-{number}", f"sharer-{number}")[: 2 if shared else 1]:
            # A VFIO group can be opened once.
            pod = await _begin(made, name, each, shared=shared, opens=stands and not shared)
            if pod is None:
                break
            pods.append(pod)
            if not pod.spec.claims:
                break
        if len(pods) > 1:
            self._beside.append(self._chance.choice(pods))
        if len(pods) > 1 and self._chance.random() < 0.3:
            # It ends while all changes; the other one keeps what their claim has.
            self._ending.append(self._beside.pop())
        self._holders += [(pod, name) for pod in pods if pod not in self._ending]

    async def _watch(self, name: str) -> None:
        """Let a pod run that has a GPU of *name* with adminAccess, whoever has it."""
        pod = await _begin(self.made, name, "monitor", admin=True, patient=False)
        if pod is not None:
            self._holders.append((pod, name))
            self._beside.append(pod)

    async def _end_beside(self, after: Choice) -> None:
        """End the pods beside others: those keep what they have."""
        made, what = self.made, self._what
        for pod in self._beside:
            await promised(made, made.end(pod), f"{what}: kubelet ends {pod.spec.name}")
        self._holders = [each for each in self._holders if each[0] not in self._beside]
        if self._beside and not self._rebooted:
            held = _until_locks(made, self._held, after)
            await promised(made, held, f"{what}: what a claim has stays that of its other pods")

    async def withhold(
        self, before: Choice, after: Choice, has: Sequence[str], *, comes: Sequence[str]
    ) -> None:
        """Withhold some of *has* by hand; let pods want one that *comes* before kubelet is told."""
        made = self.made
        stays = before["node.gpus"] == after["node.gpus"]
        names = {
            each.card: each.card if each.shared else f"{each.resource}/{each.card}"
            for name in has
            for each in _offers(before, name)
            if stays or not each.card.startswith("MIG-")
        }
        self._what += f", {await byhand.withhold(made, names, self._chance)}"
        if self._former is not None and made.orphans(self._former):
            made.exempt -= {pod.uid for pod, _ in self._waiting}
        await self._come(comes)

    async def _come(self, names: Sequence[str]) -> None:
        """Let some pods come that want one of *names* each."""
        for name in self._chance.sample(names, min(len(names), 2)):
            self._came += 1
            own = self._chance.random() < 0.5
            pod = await self.made.ask(f"new-{self._came}", name, claim=own, patient=False)
            if pod is not None and pod.phase is not Phase.FAILED:
                self._waiting.append((pod, name))

    async def cut_short(self, has: Sequence[str]) -> None:
        """Have the daemon killed in the midst of a call about a new pod."""
        name = self._chance.choice(has)
        call, pod = await calls.cut_short(self.made, name, self._chance)
        self._what += f", {call}"
        if pod is not None and pod.deleting:
            self._ending.append(pod)
        elif pod is not None and pod.phase is not Phase.FAILED:
            self._waiting.append((pod, name))

    async def _let_wait(self, resource: str, count: int) -> None:
        """Let a pod leave a process on all of a resource that the next pod wants."""
        made = self.made
        self._former = await made.ask("former", resource, count, opens=True, orphan=count)
        if self._former is None or self._former.phase is Phase.FAILED:
            raise ViolationError(f"allocate: {count} of {resource} are not given")
        await promised(made, made.running(self._former), "start: former runs")
        if any(_is_gpu(each) for each in made.has(self._former, resource)):
            made.uses_gpus(self._former)
        self._left = f"{resource}/{made.has(self._former, resource)[0]}"
        await made.end(self._former)
        waiting = await made.ask("waiting", resource, count)
        # Kubelet refuses it where it was told that the devices are not free, by withholdAfter.
        if waiting is not None and waiting.phase is not Phase.FAILED:
            self._waiting.append((waiting, resource))

    async def _no_longer_waits(self, after: Choice) -> None:
        """End what was left, and take back what is withheld, upon which who waits starts.

        Unless nothing has its resource any more: kubelet starts no container without the plugin.
        """
        made, what = self.made, self._what
        by_hand = made.marked and self._chance.random() < 0.5
        # What is left ignores SIGTERM.
        if by_hand and self._former is not None and after.get("reclaim.termGrace") != space.LONG:
            await byhand.release(made, self._left, self._former)
        if self._former is not None:
            await made.for_some_beats(3)  # who starts too early does so by then
            end(*made.orphans(self._former))
        if made.marked:
            await self._start_again(after)
            await self._come(_names(after))
            await made.for_some_beats(3)
            await byhand.give_back(made)
        for pod, name in self._waiting:
            if name in _names(after):
                await self._starts(pod, name, 1, after)
            await promised(made, made.end(pod), f"{what}: kubelet ends {pod.spec.name}")

    async def readmit(self, after: Choice) -> None:
        """Have kubelet admit all anew, once it was told of what they have."""
        made, self._rebooted = self.made, True
        pods = [*self._holders, *self._waiting]

        def told() -> bool:
            return all(
                self._stays(pod, name, after) <= made.healthy(name)
                for pod, name in pods
                if not pod.spec.claims
            )

        await promised(made, made.until(told, "what pods have"), "reboot: it is Healthy again")
        for each in self._ending:
            made.let_end(each)
        await made.kubelet.readmit()
        lost = [
            pod for pod, name in pods if pod.phase.terminal and not self._has_all(pod, name, after)
        ]
        self._holders = [each for each in self._holders if each[0] not in lost]
        self._waiting = [each for each in self._waiting if each[0] not in lost]

    def _stays(self, pod: Pod, name: str, after: Choice) -> set[str]:
        """Return what of a pod's devices is there under the same name."""
        now = self.made.now(after)
        there = {each.id for each in oracle.foretold(now).get(name, ())}
        there |= {each.name for each in oracle.published(now).get(name, ())}
        return there & set(self.made.has(pod, name))

    def _has_all(self, pod: Pod, name: str, after: Choice) -> bool:
        return self._stays(pod, name, after) == {*self.made.has(pod, name)} != set()

    async def _starts(self, pod: Pod, name: str, times: int, after: Choice) -> None:
        """See that a pod starts, or is told to be deleted where it has numbers of before.

        Who has what is not there any more may wait. A claim that nobody had prepared while its GPU
        was shared, which it is no more, is refused.
        """
        made, turned = self.made, self._numbers != self.made.numbers
        stays = self._has_all(pod, name, after)
        names = [name.name for each in made.answers(pod) for name in each.cdi_devices]
        by_name = any(not _INDEX.search(each) for each in names)
        alone = not any(each.shared for each in _offers(made.now(after), name))

        def decided() -> bool:
            told = turned and not (by_name or pod.spec.claims) and "delete the pod" in pod.waiting
            late = times == 1 and alone and "which is not shared; delete the pod" in pod.waiting
            excused = told or late or (not stays and pod.waiting)
            return pod.starts >= times or bool(excused)

        wait = made.until(decided, lambda: f"{pod.spec.name}, which is told {pod.waiting!r}")
        await promised(made, wait, f"{self._what}: {pod.spec.name} starts on what it has")

    async def _start_again(self, after: Choice) -> None:
        """End the programs of pods, unless a reboot has: they start again."""
        made = self.made
        times = {pod.uid: 2 if self._rebooted else pod.starts + 1 for pod, _ in self._holders}
        running = [pod for pod, _ in self._holders if not (self._rebooted or pod.waiting)]
        for pod in running:
            os.kill(made.runtime.pid(pod, pod.spec.containers[0]), signal.SIGKILL)
        for pod, name in self._holders:
            await self._starts(pod, name, times[pod.uid], after)

    async def end(self, after: Choice) -> None:
        """See that pods kept what they had, and let all end as a fresh start does."""
        made, what = self.made, self._what
        over = made.until(lambda: all(each.stopped for each in self._ending), "who was ending")
        await promised(made, over, f"{what}: what was ending ends")
        await self._no_longer_waits(after)
        if not self._rebooted:
            held = _until_locks(made, self._held, after)
            await promised(made, held, f"{what}: what pods have stays theirs")
        await self._start_again(after)
        dead = [
            pod.spec.name
            for pod, _ in self._holders
            if pod.phase is not Phase.RUNNING and not (self._rebooted and pod.waiting)
        ]
        if dead:
            raise ViolationError(f"{what}: {dead} ended (nothing is made worse)")
        await self._end_beside(after)
        now = made.now(after)
        for pod, name in self._holders:
            offered = {each.id for each in oracle.foretold(now).get(name, ())}
            claimed = {each.name for each in oracle.published(now).get(name, ())}
            await _queue(made, pod, name, offered | claimed)
        await promised(made, _until_locks(made, {}, after), f"{what}: in the end all is free")
        made.show(after)
        await until_offered(made, after)
        if not after["gpu.enabled"]:
            await self._gpus_come_back(after)

    async def _gpus_come_back(self, after: Choice) -> None:
        """Enable GPUs again where that is accepted: what pods had of them is free then."""
        made = self.made
        made.kill()
        made.adopt({**after, "gpu.enabled": True})
        if await refusal(made) is None:
            free = made.until_free()
            await promised(made, free, f"{self._what}: with GPUs enabled again all is free")


def _names(choice: Choice) -> list[str]:
    return sorted({**oracle.foretold(choice), **oracle.published(choice)})


def _apart(choice: Choice, names: Iterable[str]) -> Iterator[str]:
    """Yield those of *names* that have nothing on VFIO that another has too."""
    seen: set[str] = set()
    for name in names:
        own = {each.path for each in _offers(choice, name) if each.path.startswith("/dev/vfio/")}
        if not own & seen:
            yield name
        seen |= own


def _is_known(name: str, before: Choice, after: Choice, *, lost: bool) -> bool:
    """Tell whether the daemon can know whose the devices of *name* are, and see their pods' end.

    Where the ledger is *lost*, only a name that is still given tells, of hardware of which anybody
    can still have a part; or a claim while claims are served, of devices that are still there. With
    no list left to send kubelet, it does not say which pods are over (docs/configuration.md:
    hardware is switched off on a drained node).
    """
    plugin, claims = oracle.foretold(after), oracle.published(after)
    stays = name in plugin or name in claims
    if not lost:
        return stays or bool(plugin)
    had, there = _offers(before, name), _offers(after)
    if name in oracle.published(before):
        return bool(claims) and {each.card for each in had} <= {each.card for each in there}
    return stays and {each.path for each in had} <= {each.path for each in there}


async def _until_locks(made: World, wanted: dict[str, str], choice: Choice) -> None:
    """Return when exactly these devices are locked, in these states.

    While GPUs are not enabled, the lock of one that was released stays (docs/nvidia.md).
    """
    seen: dict[str, str] = {}

    async def so() -> bool:
        seen.clear()
        seen.update(await made.locks())
        stays = {each for each, state in seen.items() if _is_gpu(each) and state != "held"}
        unseen = set() if choice["gpu.enabled"] else stays
        return {each: state for each, state in seen.items() if each not in unseen} == wanted

    await made.until(so, lambda: f"locks to be {wanted}; they are {seen}")


def _is_gpu(id_: str) -> bool:
    return id_.startswith(("GPU-", "MIG-"))


def _can_be_watched(choice: Choice, resource: str) -> bool:
    """Tell whether claims have GPUs by *resource*: of nothing else adminAccess is given."""
    offers = [each.offers[0] for each in oracle.published(choice).get(resource, ())]
    return any(each.path.startswith("/dev/nvidia") for each in offers)


def _can_be_left(choice: Choice, resource: str, *, stands: bool, gpus: bool) -> bool:
    """Tell whether a pod can have all of *resource*, by the plugin, and leave a process on it."""
    offers = oracle.foretold(choice).get(resource, ())
    if any(each.path.startswith("/dev/nvidia") for each in offers):
        return gpus and not only_one(choice, offers)
    return bool(offers) and stands


def _offers(choice: Choice, resource: str = "") -> list[oracle.Offer]:
    """Return what pods can have, by *resource* or by any."""
    claimed = (
        (name, [each for device in devices for each in device.offers])
        for name, devices in oracle.published(choice).items()
    )
    every = (*oracle.foretold(choice).items(), *claimed)
    return [each for name, offers in every if resource in {"", name} for each in offers]


async def _nothing(made: World, after: Choice, chance: random.Random) -> None:
    pass


async def _driver(made: World, after: Choice, chance: random.Random) -> None:
    """Unload NVIDIA's driver and load it again."""
    if after["node.gpus"]:
        made.gpus.leave()
        await asyncio.sleep(chance.random())
        made.load_driver()


async def _mig(made: World, after: Choice, chance: random.Random) -> None:
    """Divide the GPUs as they are in the end, while pods have them as they were."""
    await asyncio.sleep(chance.random())
    made.show(after)


async def _unplug(made: World, after: Choice, chance: random.Random) -> None:
    """Take a function that is on VFIO out of the node, and put it in again."""
    there = [each for each in oracle.hardware(made.now(after)) if each.functions]
    if not there:
        return
    thing = chance.choice(there)
    unplug(made.node, thing)
    await asyncio.sleep(chance.random())
    plug(made.node, thing)


async def _numbers(made: World, after: Choice, chance: random.Random) -> None:
    """Give groups and GPUs other numbers."""
    await asyncio.sleep(chance.random())
    made.renumber(after)


async def _kubelet(made: World, after: Choice, chance: random.Random) -> None:
    """Restart kubelet."""
    await made.kubelet.stop()
    made.another_kubelet()
    await asyncio.sleep(chance.random())
    await made.kubelet.start()


_MEANS: dict[str, Callable[[World, Choice, random.Random], Coroutine[None, None, None]]] = {
    "": _nothing,
    "driver": _driver,
    "mig": _mig,
    "unplug": _unplug,
    "kubelet": _kubelet,
    "numbers": _numbers,
}


async def _begin(made: World, resource: str, name: str, **work: Any) -> Pod | None:
    """Let a pod run; return None where there is no device for it."""
    pod = await made.ask(name, resource, claim=True, **work)
    if pod is None or pod.phase is Phase.FAILED:
        return None
    await promised(made, made.running(pod), f"start: {name} runs (nobody waits for ever)")
    return pod


async def _queue(made: World, pod: Pod, resource: str, stays: set[str]) -> None:
    """Let pod follow pod: what is to leave may go to one more, and then to nobody."""
    late = 0
    for number in range(_QUEUE):
        left = set(made.has(pod, resource)) - stays
        await promised(made, made.end(pod), f"end: kubelet ends {pod.spec.name}")
        following = await _begin(made, resource, f"next-{number}")
        if following is None:
            return
        pod = following
        late += bool(left & set(made.has(pod, resource)))
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
    # Claims of the former name have to end before the driver's name changes (docs/configuration.md).
    here = {
        name: value
        for name, value in choice.items()
        if (name.startswith("node.") and name != "node.numbers") or name == "dra.driverName"
    }
    same = len(choice["node.gpus"])
    layouts = [each for each in space.axes()["node.gpus"] if len(each) == same]
    divided = chance.choice(layouts) if chance.random() < 0.3 else choice["node.gpus"]
    if not made["gpu.enabled"]:
        # A pod with a claim ends after this time: nobody sees that its GPU is free.
        here["dra.unprepareWait"] = "0s"
    return space.usable({**made, **here, "node.gpus": divided})
