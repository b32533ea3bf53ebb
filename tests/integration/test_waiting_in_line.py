"""Several that want one device: who goes first, and who leaves the line."""

from pathlib import Path

from fakes.stage import PATIENT, POOL, TPU, asks, end, pod, stage
from simulated.pods import Container, Phase, PodSpec

_POOL = ({"resourceName": POOL, "devices": ["1ae0:0063"]},)


async def test_of_two_that_wait_for_one_device_the_older_starts_first(short_path: Path) -> None:
    async with stage(short_path, chips=1, pools=_POOL) as node:
        await node.until(lambda: len(node.healthy(POOL)) == 1, "the pool to be offered")
        # Else kubelet would not give the one device to anybody under its other name.
        node.kubelet.hears.clear()
        _, left = await node.left_behind()
        older = await node.submit(pod("older", pull=1.0))
        younger = await node.submit(PodSpec(name="younger", containers=(asks(POOL, 1),)))
        node.kubelet.hears.set()
        await node.waiting(younger, f"(pid {left}) of ", "which has ended")
        end(left)
        # The device is free now, and yet it is the older one's, which is not there yet.
        await node.waiting(younger, "is held by ")
        await node.running(older)
        await node.until_named(older)
        told = await node.waiting(younger, "is held by default/older as google.com/tpu/")
        assert older.uid not in told
        await node.end(older)
        await node.running(younger)
        assert await node.owners() == dict.fromkeys(node.ids(younger, POOL), younger.uid)


async def test_a_device_in_use_under_one_name_is_withheld_under_the_other(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=2, pools=_POOL) as node:
        await node.until(lambda: len(node.healthy(POOL)) == 2, "the pool to be offered")
        chip = await node.run(pod("chip"))
        await node.until(
            lambda: not node.healthy(POOL) & node.ids(chip), "it to be withheld under the other"
        )
        assert len(node.healthy()) == 2, "under its own name it never is"
        other = await node.run(PodSpec(name="other", containers=(asks(POOL, 1),)))
        assert node.ids(other, POOL) == node.healthy(POOL)
        await node.end(chip)
        await node.until(lambda: len(node.healthy(POOL)) == 2, "it to be offered again")


async def test_a_pod_that_is_deleted_at_the_gate_gives_the_device_to_the_next(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1, gate=PATIENT) as node:
        _, left = await node.left_behind()
        deleted = await node.submit(pod("deleted"))
        await node.until(node.queued, "it to be queued")
        # Kubelet has forgotten it, but its worker still waits for PreStartContainer.
        await node.end(deleted)
        await node.questions()
        end(left)
        await node.for_some_beats()
        await node.until_free()
        following = await node.run(pod("next"))
        assert deleted.starts == 0
        assert await node.owners() == dict.fromkeys(node.ids(following), following.uid)


async def test_two_pods_that_each_want_most_of_the_node_take_turns(short_path: Path) -> None:
    async with stage(short_path) as node:
        former = await node.run(pod("pod-0", chips=3, ignores_term=True))
        for number in range(1, 6):
            node.kubelet.delete(former, grace=0.2, force=True)
            one = await node.submit(pod(f"one-{number}", chips=2, ignores_term=True))
            two = await node.submit(pod(f"two-{number}", chips=2))
            await node.running(one)
            await node.running(two)
            await node.end(two)
            node.kubelet.delete(one, grace=0.1, force=True)
            former = await node.run(pod(f"three-{number}", chips=3, ignores_term=True))
        assert node.ever_unhealthy() == set()


async def test_a_container_without_devices_beside_one_with_them_waits_for_nobody(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        _, left = await node.left_behind()
        containers = (asks(TPU, 1), Container(name="plain"))
        mixed = await node.submit(PodSpec(name="mixed", containers=containers))
        await node.until(lambda: mixed.starts == 1, "the plain one to run")
        assert mixed.phase is Phase.RUNNING
        end(left)
        await node.until(lambda: mixed.starts == 2, "the other to run")
