"""The daemon is killed in the midst of a call: kubelet tries again with the next one."""

import asyncio
import random
from itertools import chain
from typing import Any

from matrix import oracle
from matrix.oracle import ViolationError
from matrix.world import World, promised
from simulated.pods import Phase, Pod

_BY_PLUGIN = ("Allocate", "PreStartContainer")
_BY_CLAIM = ("NodePrepareResources", "NodeUnprepareResources")
_LATE = 0.03
"""Seconds within which most calls are answered where nobody is in the way."""


class _Fatal:
    """What kubelet calls a plugin by: the first time that it is *call*, the daemon is killed."""

    def __init__(self, stub: Any, call: str, after: float, kill: "_Kill") -> None:
        self._stub, self._call, self._after, self._kill = stub, call, after, kill

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._stub, name)
        if name != self._call:
            return called

        async def cut_short(request: Any, **how: Any) -> Any:
            answer = called(request, **how)
            await asyncio.sleep(self._after)
            self._kill()
            return await answer

        return cut_short


class _Kill:
    """Kills the daemon once, and not the next one."""

    def __init__(self, made: World) -> None:
        self._made, self.done = made, asyncio.Event()

    def __call__(self) -> None:
        if not self.done.is_set():
            self._made.kill()
            self.done.set()


async def cut_short(made: World, resource: str, chance: random.Random) -> tuple[str, Pod | None]:
    """Kill the daemon while it answers a call about a pod; return the call, and the pod.

    Kubelet refuses a pod for good where Allocate fails. None found no place.
    """
    claims = resource in oracle.published(made.choice)
    by_claim = _BY_CLAIM[:1] if made.marked else _BY_CLAIM  # withheld, so that no pod may run
    call = chance.choice(by_claim if claims else _BY_PLUGIN)
    own, after, pod = chance.random() < 0.5, chance.random() * _LATE, None
    if call == "NodeUnprepareResources":
        pod = await made.ask("cut", resource, claim=own, patient=False)
        if pod is not None:
            await promised(made, made.running(pod), "start: a pod with a claim runs")
    kill, drivers = _Kill(made), made.cluster.dra.plugins.plugins.values()
    called: list[Any] = [*made.kubelet.devices.endpoints.values(), *chain(*drivers)]
    for each in called:
        each.stub = _Fatal(each.stub, call, after, kill)
    if pod is not None:
        made.let_end(pod)
    else:
        pod = await made.ask("cut", resource, claim=own, patient=False)
    if pod is None or pod.phase is Phase.FAILED:
        kill()
    try:
        await asyncio.wait_for(kill.done.wait(), made.limit)
    except TimeoutError as error:
        raise ViolationError(f"{call}: kubelet does not call, {pod and pod.waiting!r}") from error
    return call, pod
