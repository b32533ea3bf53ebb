"""Orders of events on a node, each told as a story: who asks, who waits, who starts."""

from pathlib import Path

from msgspec.structs import replace

from fakes.stage import PATIENT, TIMES, TPU, asks, end, pod, stage
from simulated.pods import Phase


async def test_on_a_full_node_no_admission_fails_when_each_pod_is_followed_at_once(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        former = await node.run(pod("pod-0", chips=4, ignores_term=True))
        for number in range(1, 21):
            # Kubelet forgets the former at once, which lives on through its grace.
            node.kubelet.delete(former, grace=0.05, force=True)
            following = await node.submit(pod(f"pod-{number}", chips=4, ignores_term=True))
            await node.running(following)
            assert not node.node.lives(former.uid)
            former = following
        assert node.ever_unhealthy() == set()
        assert set((await node.owners()).values()) == {former.uid}


async def test_on_a_full_node_pods_that_end_by_themselves_are_followed_at_once(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        for number in range(6):
            orphan = -1 if number % 2 else 1
            former = await node.run(pod(f"pod-{number}", chips=4, runs_for=0.0, orphan=orphan))
            await node.until(lambda it=former: it.stopped, "the pod to be over")  # type: ignore[misc]
            left = await node.orphan(former)
            # As long as the scheduler takes to send the next one.
            await node.until(node.all_releasing, "its devices to be released")
            await node.questions(1)
            following = await node.submit(pod(f"next-{number}", chips=4, runs_for=0.0))
            await node.waiting(following, f"pid {left}")
            end(left)
            await node.running(following)
            await node.until(lambda it=following: it.stopped, "the pod to be over")  # type: ignore[misc]
        assert node.ever_unhealthy() == set()


async def test_the_lock_of_a_pod_that_was_refused_ends_by_itself(short_path: Path) -> None:
    async with stage(short_path, allocate={"pendingTimeout": "500ms"}) as node:
        await node.refused_for_another_resource()
        await node.until_free()
        assert await node.ever("held") != []


async def test_what_an_init_container_had_more_than_the_main_one_stays_the_pods(
    short_path: Path,
) -> None:
    async with stage(short_path) as node:
        init = (
            asks(TPU, 1, name="i1", runs_for=0.0),
            asks(TPU, 3, name="i2", runs_for=0.0),
        )
        first = await node.run(pod("first", init=init))
        assert first.starts == 3
        held = node.ids(first)
        assert len(held) == 3
        assert await node.owners() == dict.fromkeys(held, first.uid)
        second = await node.run(pod("second"))
        assert node.ids(second) == set(node.kubelet.devices.endpoints[TPU].devices) - held
        await node.questions()
        assert await node.owners() == dict.fromkeys(held, first.uid) | dict.fromkeys(
            node.ids(second), second.uid
        )
        await node.end(first)
        await node.until_locks(dict.fromkeys(node.ids(second), "held"))


async def test_repeated_allocations_of_one_pod_are_one(short_path: Path) -> None:
    async with stage(short_path, gate=PATIENT) as node:
        init = tuple(asks(TPU, 2, name=f"i{number}", runs_for=0.0) for number in range(3))
        only = await node.run(pod("only", chips=2, init=init))
        assert only.refusals == 0
        assert await node.owners() == dict.fromkeys(node.ids(only), only.uid)
        assert await node.queued() == 0
        await node.end(only)
        await node.until_free()


async def test_a_long_image_pull_ends_no_allocation_and_the_pod_then_starts(
    short_path: Path,
) -> None:
    async with stage(
        short_path, gate=PATIENT, allocate={"pendingTimeout": "200ms"}, withholdAfter="200ms"
    ) as node:
        slow = await node.submit(pod("slow", chips=2, pull=2.5))
        await node.until(node.owners, "its devices to be locked")
        before = await node.asked("locks")
        await node.until(slow.pulled.is_set, "the image")
        assert await node.ever("releasing") == []
        assert [row["fence"] for row in before] == [
            move["fence"] for move in await node.ever("held") if move["from"] == "free"
        ]
        await node.running(slow)
        assert slow.refusals == 0
        assert node.ever_unhealthy() == set()
        assert await node.owners() == dict.fromkeys(node.ids(slow), slow.uid)


async def test_a_stateful_pod_comes_back_by_its_name_on_the_same_chip(short_path: Path) -> None:
    async with stage(short_path, chips=1) as node:
        for _ in range(3):
            web = await node.run(pod("web-0"))
            assert await node.owners() == dict.fromkeys(node.ids(web), web.uid)
            await node.end(web)


async def test_a_static_pod_that_comes_back_by_its_uid_waits_for_its_former_self(
    short_path: Path,
) -> None:
    uid = "0123456789abcdef0123456789abcdef"
    async with stage(short_path, chips=1) as node:
        old, left = await node.left_behind("static", uid=uid)
        await node.until(lambda: old.stopped, "the pod to be over")
        new = await node.submit(pod("static", uid=uid))
        await node.waiting(new, f"pid {left}")
        end(left)
        await node.running(new)
        assert await node.owners() == dict.fromkeys(node.ids(new), new.uid)


async def test_the_lock_of_an_ended_pod_goes_soon_even_where_nobody_waits_for_it(
    short_path: Path,
) -> None:
    # Kubelet counts a pod for a while after its last process, and the slow question is far off.
    times, slow = replace(TIMES, finished=600.0), {"idleInterval": "10m"}
    async with stage(short_path, chips=1, times=times, question=slow) as node:
        only = await node.run(pod("only", runs_for=0.5))
        await node.until(lambda: only.phase is Phase.SUCCEEDED, "it to end")
        await node.questions()
        assert set((await node.locks()).values()) == {"held"}, "kubelet counts it"
        only.stopped = True  # from here on kubelet does not
        await node.until_free()
