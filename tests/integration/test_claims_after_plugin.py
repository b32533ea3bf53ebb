"""Hardware that goes from the device plugin to claims, or back, while pods run."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.claimstage import begin, claim_stage
from fakes.ledgers import stored
from fakes.opener import opener
from fakes.stage import CHIPS, TPU, pod
from simulated.pods import Container, PodSpec


async def test_what_a_pod_of_the_device_plugin_has_is_free_for_claims_once_it_is_over(
    short_path: Path,
) -> None:
    """Whichever is first: its cgroup is gone, or kubelet, sent an empty list, writes so."""
    async with claim_stage(short_path, chips=1) as at:
        await at.serve_by_plugin()
        former = await at.node.run(pod("former", chips=1))
        await at.serve_by_claims()

        claim = at.allocate("next", 0)
        preparing = asyncio.create_task(at.prepared(claim))
        await at.node.until(at.node.queued, "the claim to wait for the pod")
        assert not preparing.done()
        await at.node.end(former)
        await preparing
        ended = ("the hardware comes by claims now", "kubelet no longer counts pod")
        history = await at.history(0)
        assert any(each in evidence for each in ended for evidence in history)
        await at.node.for_some_beats()
        assert await at.node.queued() == 0
        assert await at.unprepare(claim) == {"next": ""}
        await at.node.until_free()


async def test_what_a_pod_that_never_began_was_allocated_is_free_at_kubelets_word(
    short_path: Path,
) -> None:
    """Its cgroup was empty; and kubelet is sent a list without devices, and so it writes."""
    async with claim_stage(short_path, chips=1) as at:
        await at.serve_by_plugin()
        with opener(at.path(0)) as held:
            at.node.node.add_process(held.pid, "/user.slice")
            former = await at.node.submit(pod("former", chips=1))
            await at.node.waiting(former, f"pid {held.pid}")
            await at.node.until(
                lambda: former.uid in stored(at.node.state).pods, "the pod to be noted"
            )
            at.node.kill()
        at.node.configure(tpu={"api": "dra"})
        await begin(at)
        assert await at.node.locks() == {"0000:00:05.0": "held"}
        await at.node.end(former)
        await at.prepared(at.allocate("next", 0))
        history = await at.history(0)
        ended = ("which never started", "the hardware comes by claims now")
        assert any(each in evidence for each in ended for evidence in history), history


async def test_pods_that_have_the_resource_by_claims_start_while_the_plugins_pods_end(
    short_path: Path,
) -> None:
    """Kubelet 1.36.2 asks the plugin before the start of a pod that has its device by a claim."""
    async with claim_stage(short_path, chips=2) as at:
        await at.serve_by_plugin()
        former = await at.node.run(pod("former", chips=1))
        unchanged = PodSpec(
            name="unchanged", containers=(Container(extended=frozenset({TPU})),), restart="Always"
        )
        started = await at.node.submit(unchanged)
        await at.node.until(
            lambda: "no devices found allocated in local cache" in started.waiting,
            "kubelet to ask the plugin",
        )
        await at.serve_by_claims()
        await at.node.until(lambda: started.starts == 1, "the unchanged pod to start")
        registered = at.node.kubelet.registrations[-1]
        assert not registered.options.pre_start_required
        assert not at.node.healthy()
        assert (await at.node.asked("status") or {})["resources"], "its pod is there"

        await at.node.end(former)
        endpoint = at.node.kubelet.devices.endpoints[TPU]
        await at.node.until(lambda: endpoint.stub is None, "the resource to be left")
        assert not endpoint.pre_start


async def test_a_pod_of_the_plugin_that_is_yet_to_start_is_gated_as_before(
    short_path: Path,
) -> None:
    async with claim_stage(short_path, chips=1) as at:
        await at.serve_by_plugin()
        with opener(at.path(0)) as held:
            at.node.node.add_process(held.pid, "/user.slice")
            former = await at.node.submit(pod("former", chips=1))
            await at.node.waiting(former, f"pid {held.pid}")
            await at.serve_by_claims()
            refusals = former.refusals
            await at.node.until(lambda: former.refusals > refusals, "the gate to be asked")
            assert at.node.kubelet.registrations[-1].options.pre_start_required
            assert not former.starts
        await at.node.until(lambda: former.starts == 1, "the pod to start")
        await at.node.until(
            lambda: not at.node.kubelet.devices.endpoints[TPU].pre_start, "the gate to be left"
        )
        assert await at.node.locks() == {"0000:00:05.0": "held"}


def _a_rule(api: str) -> dict[str, Any]:
    return {"devices": [{"match": {"pci": CHIPS[0]}, "resource": "example.com/debug", "api": api}]}


_PLUGIN = {"tpu": {"api": "device-plugin"}}


@pytest.mark.parametrize(
    ("before", "device", "changes", "resource"),
    [
        ({}, "", _a_rule("device-plugin"), "example.com/debug"),
        ({}, "", _PLUGIN, TPU),
        (_a_rule("dra"), "debug-0000-00-05-0", {"devices": [], **_PLUGIN}, TPU),
    ],
    ids=["a rule", "all of them", "a rule that is gone"],
)
async def test_what_a_claim_of_a_lost_ledger_has_goes_to_no_pod_of_the_plugin(
    short_path: Path, before: dict[str, Any], device: str, changes: dict[str, Any], resource: str
) -> None:
    """Its pod runs, and has not opened the chip yet: only kubelet's record says whose it is."""
    async with claim_stage(short_path, **before) as at:
        device = device or at.label(0)
        claim = at.allocate("holder", device=device)
        await at.prepared(claim)
        at.node.node.add_pod(claim.pods[0])
        at.record(claim, device=device)
        at.node.kill()
        shutil.rmtree(at.node.state)
        at.node.configure(**changes)
        await begin(at)
        await at.node.until(lambda: at.node.kubelet.messages.get(resource), "a list of devices")
        assert await at.node.locks() == {CHIPS[0]: "held"}
        assert CHIPS[0] not in at.node.healthy(resource)
