"""Hardware that goes from the device plugin to claims while pods run."""

import asyncio
from pathlib import Path

from fakes.claimstage import ClaimStage, begin, claim_stage
from fakes.stage import pod


async def test_what_a_pod_of_the_device_plugin_has_is_free_for_claims_once_it_is_over(
    short_path: Path,
) -> None:
    """Kubelet hears no list of devices any more, and so its checkpoint names the pod for good."""
    async with claim_stage(short_path, chips=1) as at:
        at.node.kill()
        at.node.configure(tpu={"api": "device-plugin"})
        await at.node.start_and_register()
        await at.node.until(lambda: bool(at.node.healthy()), "the chip to be offered")
        former = await at.node.run(pod("former", chips=1))
        at.node.kill()
        at.node.configure(tpu={"api": "dra"})
        await begin(at)

        claim = at.allocate("next", 0)
        preparing = asyncio.create_task(at.prepared(claim))
        await at.node.until(lambda: _queued(at), "the claim to wait for the pod")
        assert not preparing.done()
        await at.node.end(former)
        await preparing
        checkpoint = at.node.checkpoint.read_text()
        assert former.uid in checkpoint, "kubelet's checkpoint was written: this proves nothing"
        assert any("the hardware comes by claims now" in each for each in await at.history(0))
        await at.node.for_some_beats()
        assert await at.node.queued() == 0
        assert await at.unprepare(claim) == {"next": ""}
        await at.node.until_free()


async def _queued(at: ClaimStage) -> bool:
    return await at.node.queued() > 0
