"""Every order of events that a real kubelet produces, undisturbed and with a restart at each turn.

The stage asserts of each of them that no program started on a device that somebody had open.
"""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.stage import PATIENT, POOL, TIMES, TPU, Stage, asks, end, pod, stage
from simulated.pods import Phase, Pod, PodSpec

Turn = Callable[[], Awaitable[None]]
Order = Callable[[Stage, Turn], Awaitable[Pod]]


async def _static_pod_edited(node: Stage, turn: Turn) -> Pod:
    old = await node.run(pod("static", ignores_term=True))
    node.kubelet.delete(old, grace=3600.0, force=True)
    # Allocate for the new one comes at once, its start only when kubelet saw the old one end.
    new = await node.submit(pod("static", pull=1.0))
    assert node.orphans(old), "the old one still runs"
    await turn()
    end(*node.orphans(old))
    return new


async def _static_pod_edited_under_its_uid(node: Stage, turn: Turn) -> Pod:
    old = await node.run(pod("static", ignores_term=True, uid="5" * 32))
    node.kubelet.delete(old, grace=3.0, force=True)
    new = await node.submit(pod("static", uid="5" * 32))
    await turn()
    await node.until(lambda: old.stopped or new.starts, "the old one to be stopped")
    assert old.stopped, "kubelet starts no pod while one of its UID is being stopped"
    return new


async def _force_delete(node: Stage, turn: Turn) -> Pod:
    old = await node.run(pod("old", ignores_term=True))
    await node.until_named(old)
    (pid,) = node.orphans(old)
    node.kubelet.delete(old, grace=3600.0, force=True)
    await turn()
    new = await node.submit(pod("new"))
    await node.waiting(new, f"(pid {pid}) of default/old, which has ended")
    await turn()
    assert node.orphans(old) == (pid,), "it lives through its grace, whoever restarts"
    end(pid)
    return new


async def _self_ending_pod(node: Stage, turn: Turn) -> Pod:
    old, left = await node.left_behind()
    await node.until(node.all_releasing, "the lock to be released")
    await turn()
    assert await node.locks() == dict.fromkeys(node.healthy(), "releasing")
    following = await node.submit(pod("next"))
    await node.waiting(following, f"pid {left}", old)
    await turn()
    end(left)
    return following


async def _container_restart(node: Stage, turn: Turn) -> Pod:
    only = await node.run(pod("only", restart="Always", runs_for=0.5, orphan=1))
    assert "pid " in await node.waits_again(only, starts=1)
    await turn()
    assert only.starts == 1
    end(*node.orphans(only))
    await node.until(lambda: only.starts == 2, "the container to start again")
    return only


async def _init_containers_and_a_sidecar(node: Stage, turn: Turn) -> Pod:
    init = (
        asks(TPU, 1, name="sidecar", restartable=True),
        asks(TPU, 1, name="first", runs_for=0.3),
        asks(TPU, 2, name="second", runs_for=1.0),
    )
    only = await node.submit(pod("only", init=init, pull=0.5))
    await turn()
    await node.until(lambda: only.starts == 3, "the second init container to run")
    await turn()
    await node.until(lambda: only.starts == 4, "the main container to run")
    assert len(node.ids(only)) == 3, "the main container has what the init containers had"
    return only


async def _two_containers_on_different_chips(node: Stage, turn: Turn) -> Pod:
    containers = (
        asks(TPU, 1, name="steady"),
        asks(TPU, 1, name="restless", runs_for=0.3, orphan=1),
    )
    only = await node.submit(PodSpec(name="only", containers=containers, restart="Always"))
    told = await node.waits_again(only, starts=2)
    assert "pid " in told
    await turn()
    assert only.starts == 2
    steady = {pid for pid in node.orphans(only) if f"pid {pid})" not in told}
    end(*set(node.orphans(only)) - steady)
    await node.until(lambda: only.starts == 3, "the restless one to start again")
    assert steady <= set(node.orphans(only)), "the other container was not disturbed"
    return only


async def _retries(node: Stage, turn: Turn) -> Pod:
    _, left = await node.left_behind()
    following = await node.submit(pod("next"))
    await node.until(lambda: following.refusals >= 2, "it to be refused twice")
    await turn()
    refused = following.refusals
    await node.until(lambda: following.refusals > refused, "it to be refused once more")
    end(left)
    return following


async def _prestart_cancelled(node: Stage, turn: Turn) -> Pod:
    _, left = await node.left_behind()
    following = await node.submit(pod("next"))
    await node.waiting(following, "DEADLINE_EXCEEDED")
    await turn()
    assert await node.queued() == 1
    refused = following.refusals
    await node.until(lambda: following.refusals >= refused + 2, "two more tries")
    end(left)
    return following


async def _two_allocations_queued(node: Stage, turn: Turn) -> Pod:
    _, left = await node.left_behind()
    first = await node.submit(pod("first"))
    await node.waiting(first, f"pid {left}")
    # Deleted while it waits, and followed at once by another that kubelet gives the same device.
    node.kubelet.delete(first, grace=0.0, force=True)
    second = await node.submit(pod("second"))
    await turn()
    await node.waiting(second, f"pid {left}")
    await turn()
    end(left)
    await node.running(second)
    assert (first.starts, await node.queued()) == (0, 0)
    return second


async def _refused_for_another_resource(node: Stage, turn: Turn) -> Pod:
    refused = await node.refused_for_another_resource()
    assert "example.com/nic" in refused.message
    await turn()
    return await node.submit(pod("next"))


async def _deleted_between_allocate_and_start(node: Stage, turn: Turn) -> Pod:
    early = await node.submit(pod("early", pull=3600.0))
    await node.until(node.owners, "its chip to be locked")
    await turn()
    await node.end(early)
    await turn()
    await node.until_free()
    assert early.starts == 0
    return await node.submit(pod("next"))


async def _two_counted_pods_on_one_device(node: Stage, turn: Turn) -> Pod:
    one, two = await node.given_twice()
    await node.waiting(two, "given the same devices to 2 pods", one, two)
    await node.waiting(one, "given the same devices to 2 pods", one, two)
    await turn()
    assert (one.starts, two.starts) == (0, 0)
    await node.end(one)
    return two


async def _two_resources_asked_crosswise(node: Stage, turn: Turn) -> Pod:
    await node.until(lambda: len(node.healthy(POOL)) == 2, "the pool to be offered")
    both = (asks(TPU, 1, name="one"), asks(POOL, 1, name="two"))
    # Kubelet admits the second before it reads that the first one has what it wants.
    node.kubelet.hears.clear()
    first = await node.submit(PodSpec(name="first", containers=both, pull=1.0))
    second = await node.submit(PodSpec(name="second", containers=both))
    node.kubelet.hears.set()
    assert node.ids(first, TPU) == node.ids(second, POOL) != node.ids(second, TPU)
    await turn()
    await node.waiting(second, "is held by ", first)
    await node.until(lambda: first.starts == 2, "both containers of the first to run")
    assert second.starts == 0
    await turn()
    await node.end(first)
    await node.until(lambda: second.starts == 2, "both containers of the second to run")
    return second


_ORDERS: dict[str, Order] = {
    "a static pod is edited": _static_pod_edited,
    "a static pod is edited and keeps its UID": _static_pod_edited_under_its_uid,
    "a pod is deleted by force": _force_delete,
    "a pod ends by itself": _self_ending_pod,
    "a container restarts in its pod": _container_restart,
    "init containers and a sidecar share ids": _init_containers_and_a_sidecar,
    "two containers of a pod have different chips": _two_containers_on_different_chips,
    "kubelet tries again and again": _retries,
    "kubelet cancels PreStartContainer": _prestart_cancelled,
    "two Allocations are queued for one device": _two_allocations_queued,
    "a pod is refused for another resource": _refused_for_another_resource,
    "a pod is deleted between Allocate and start": _deleted_between_allocate_and_start,
    "two counted pods are on one device": _two_counted_pods_on_one_device,
    "two resources are asked for crosswise": _two_resources_asked_crosswise,
}
_CHIPS: dict[Order, int] = {
    _init_containers_and_a_sidecar: 3,
    _two_containers_on_different_chips: 2,
    _two_resources_asked_crosswise: 2,
}
_SETTINGS: dict[Order, dict[str, Any]] = {
    _prestart_cancelled: {"times": replace(TIMES, pre_start=0.3), "gate": PATIENT},
    _two_resources_asked_crosswise: {
        "pools": ({"resourceName": POOL, "devices": ["1ae0:0063"]},),
    },
}


@pytest.mark.parametrize("turn", ["nothing", "kubelet restarts", "the daemon is killed"])
@pytest.mark.parametrize("order", _ORDERS)
async def test_whatever_the_order_the_right_pod_starts_and_no_lock_is_left(
    short_path: Path, order: str, turn: str
) -> None:
    tell = _ORDERS[order]
    async with stage(
        short_path, chips=_CHIPS.get(tell, 1), own_process=True, **_SETTINGS.get(tell, {})
    ) as node:

        async def interrupt() -> None:
            if turn == "kubelet restarts":
                await node.restart_kubelet()
            elif turn == "the daemon is killed":
                await node.kill_and_start()

        last = await tell(node, interrupt)
        await node.running(last)
        assert last.phase is Phase.RUNNING, last.message
        assert await node.owners() == dict.fromkeys(node.ids(last) | node.ids(last, POOL), last.uid)
        await node.end(last)
        for pid in node.orphans(last):
            with contextlib.suppress(ProcessLookupError):  # it ended with its pod
                end(pid)
        await node.until_free()
