"""Every order of six steps of two pods on one named claim, each held against what is promised."""

import asyncio
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from enum import Enum
from functools import partial
from pathlib import Path

from msgspec import Struct

from oneholder.node import Broken, ClaimNode
from oneholder.pods import PlayedPod
from oneholder.virtualtime import VirtualLoop

MOST_PASSES = 30
"""A call that waits for nothing is answered after fewer."""
LOOKS = tuple(map(float, range(5, 61, 5)))
_READS = (0.0, 0.0, 3.0)
_PULLS = (0.0, 3.0, 70.0)
"""The last is longer than a call is on its way."""
_CLAIM, _RIVAL, _NEXT = "shared", "rival", "next"


class Step(Enum):
    """What happens; each once in an order."""

    FIRST = "the first pod comes"
    JOINS = "the second pod comes"
    ENDS = "a pod is deleted"
    FORCED = "a pod is force-deleted"
    KUBELET = "kubelet restarts"
    CRASH = "the daemon is killed"


class Leaves(Enum):
    """What pods leave behind."""

    NOTHING = "nothing"
    ORPHAN = "a process that outlives its container"
    CONTAINER = "a container that cannot be stopped"


class Pause(Enum):
    """How much time passes after each step; the value is in seconds."""

    NONE = 0.0
    A_MOMENT = 1.5
    WITHIN_A_CALL = 20.0
    """Kubelet's call is under way, and the one of its look each minute may be, too."""
    ONE_CALL = 47.0
    """Kubelet's call has ended, and it has not asked again."""
    LONG = 150.0
    """The patience of an Unprepare is over."""


_PAUSES = (*Pause, Pause.NONE, Pause.WITHIN_A_CALL)
"""Where two calls can meet, more often."""


class Order(Struct, frozen=True, kw_only=True):
    """One story. Of the pods that are there `ENDS` and `FORCED` take the *newest* or the oldest.

    `rival`: the pod of another claim wants the chip from the moment at which the scheduler has it
    back. Before each pause all parts have their turn `passes` times. `crash` is after how many points
    of the daemon's work it is killed; 0: at once. Kubelet looks for pods that are not active `looks`
    seconds after its start, and each minute from then on; a read of its record takes `reads` seconds.
    Between a Prepare and its container's start a pod needs `pulls` seconds for images.
    """

    steps: tuple[Step, ...]
    ends_newest: bool = False
    forced_newest: bool = False
    leaves: Leaves = Leaves.NOTHING
    rival: bool = False
    pause: Pause = Pause.A_MOMENT
    passes: int = 0
    crash: int = 0
    lost: bool = False
    looks: float = 60.0
    reads: float = 0.0
    pulls: float = 0.0

    def __str__(self) -> str:
        which = f"{'newest' if self.ends_newest else 'oldest'} ends"
        forced = f"{'newest' if self.forced_newest else 'oldest'} forced"
        return (
            f"{[each.name for each in self.steps]}, {which}, {forced}, leaves {self.leaves.name}, "
            f"rival {self.rival}, pause {self.pause.name}, passes {self.passes}, crash {self.crash}, "
            f"lost {self.lost}, looks {self.looks:g}, reads {self.reads:g}, "
            f"pulls {self.pulls:g}"
        )


def orders(depth: int, chosen: random.Random) -> Iterator[Order]:
    """Yield every order of the steps in *depth* variants, with the daemon killed at once.

    The variants are *chosen* so that each comes as often as its pause is among all.
    """
    either = (False, True)
    variants = list(itertools.product(either, either, Leaves, either, _PAUSES, either))
    chosen.shuffle(variants)
    following = itertools.cycle(variants)
    for steps in itertools.permutations(Step):
        for ends, forced, left, rival, pause, lost in itertools.islice(following, depth):
            yield Order(
                steps=steps,
                ends_newest=ends,
                forced_newest=forced,
                leaves=left,
                rival=rival,
                pause=pause,
                passes=chosen.randrange(MOST_PASSES) if pause is Pause.NONE else 0,
                lost=lost,
                looks=chosen.choice(LOOKS),
                reads=chosen.choice(_READS),
                pulls=chosen.choice(_PULLS),
            )


class Played(Struct, frozen=True, kw_only=True):
    """How an order went: what was promised and not kept, and the points after the crash was due."""

    broken: str
    points: int
    forced: int
    """How often kubelet's look ended a claim for a pod that its worker was still to end."""


def play(order: Order) -> Played:
    """Play *order* on a node of its own."""
    shm = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(dir=shm if os.access(shm, os.W_OK) else None))
    loop = VirtualLoop()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(_play(order, loop, root))
    finally:
        shutil.rmtree(root)


async def _play(order: Order, loop: VirtualLoop, root: Path) -> Played:
    node = ClaimNode(
        loop, root, loses_ledger=order.lost, looks=order.looks, reads=order.reads, pulls=order.pulls
    )
    points = 0
    try:
        await node.start()
        await asyncio.sleep(1.5)
        if order.rival:
            node.after_deallocation = lambda: _rival(node)
        for step in order.steps:
            if step is Step.CRASH:
                node.points = 0
            await _do(step, node, order)
            for _ in range(order.passes):
                await asyncio.sleep(0)
            if order.pause.value:
                await asyncio.sleep(order.pause.value)
                node.check(calm=node.daemon.calm)
        points = node.points
        await _wind_up(node)
    except Broken:
        pass
    finally:
        await node.close()
    failed = node.kubelet.failed
    broken = node.broken[0] if node.broken else ""
    if failed is not None and not isinstance(failed, Broken):
        raise failed
    return Played(broken=broken, points=points, forced=node.forced)


async def _do(step: Step, node: ClaimNode, order: Order) -> None:
    there = [pod for pod in node.pods if pod.claim == _CLAIM and pod.in_api]
    match step:
        case Step.FIRST:
            _submit(node, "one", order)
        case Step.JOINS:
            _submit(node, "two", order)
        case Step.ENDS:
            if left := [pod for pod in there if not pod.deleting]:
                node.delete(left[-1 if order.ends_newest else 0])
        case Step.FORCED:
            if there:
                node.force_delete(there[-1 if order.forced_newest else 0])
        case Step.KUBELET:
            node.restart_kubelet()
        case Step.CRASH:
            if order.crash:
                node.crash_in = order.crash - 1
            else:
                node.crash()


def _submit(node: ClaimNode, name: str, order: Order) -> None:
    node.submit(
        PlayedPod(
            name=name,
            claim=_CLAIM,
            lingers=order.leaves is not Leaves.NOTHING,
            stuck=order.leaves is Leaves.CONTAINER,
        )
    )


def _rival(node: ClaimNode) -> None:
    if all(pod.claim != _RIVAL for pod in node.pods):
        node.submit(PlayedPod(name="other", claim=_RIVAL))


async def _wind_up(node: ClaimNode) -> None:
    """End all that is left: nobody waits without end, and the chip is free for the next claim."""
    node.crash_in = None
    while True:
        for pod in node.pods:
            pod.lingers = pod.stuck = False
            pod.holds = pod.holds and pod.running
        scheduled = [pod for pod in node.pods if node.is_scheduled(pod)]
        for pod in scheduled:
            if not pod.deleting:
                await node.until(partial(_runs, pod), f"the start of {pod.name}")
        await asyncio.sleep(3.0)
        node.check(calm=node.daemon.calm)
        for pod in scheduled:
            if not pod.deleting:
                node.delete(pod)
        for pod in scheduled:
            await node.until(partial(_is_gone, pod), f"the end of {pod.name}")
        if not any(pod.in_api for pod in node.pods):
            break
    record = node.kubelet.manager.cache.claims
    await node.until(lambda: not record, "the end of the claims in kubelet's record")
    await node.until(lambda: node.daemon.up and not node.daemon.locks, "a chip that is free")
    await node.until(lambda: not [*node.specs.glob("*.json")], "the end of the CDI specs")
    last = PlayedPod(name="last", claim=_NEXT)
    node.submit(last)
    await node.until(lambda: last.running, "the start of the next claim's pod")


def _runs(pod: PlayedPod) -> bool:
    return pod.running or pod.forgotten


def _is_gone(pod: PlayedPod) -> bool:
    return not pod.in_api
