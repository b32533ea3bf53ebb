"""What a fleet sees of claims: readiness and metrics of the real daemon, also without a server."""

import asyncio
from pathlib import Path
from typing import Any

from fakes.claimstage import DRIVER, ClaimStage, begin, claim_stage
from fakes.http import metrics
from ports import free_port


async def _checks(at: ClaimStage) -> dict[str, dict[str, Any]]:
    status = await at.node.asked("status") or {}
    return {each["name"]: each for each in status["checks"]}


async def test_a_fleet_sees_claims_slices_and_the_api_server(short_path: Path) -> None:
    port = free_port()
    async with claim_stage(short_path, http={"port": port, "address": "127.0.0.1"}) as at:

        async def published() -> bool:
            return bool((await _checks(at))["ResourceSlices"]["passes"])

        await at.node.until(published, "the slices to be published")
        assert f"registered {DRIVER}" in await _checks(at)
        first = at.allocate("first", 0)
        await at.prepared(first)
        await at.prepare(at.allocate("wrong", device="tpu-gone"))
        await at.unprepare(first)
        await at.prepared(at.allocate("second", 1))

        async def shown() -> bool:
            seen = await asyncio.to_thread(metrics, port)
            return seen['holdfast_claims{phase="prepared"}'] == 1

        await at.node.until(shown, "the claims to be shown")
        seen = await asyncio.to_thread(metrics, port)
        assert seen['holdfast_claim_prepare_seconds_count{outcome="prepared"}'] == 2
        assert seen['holdfast_claim_prepare_seconds_count{outcome="refused"}'] == 1
        assert seen['holdfast_claim_unprepare_seconds_count{outcome="free"}'] == 1
        assert seen['holdfast_resource_slice_writes_total{outcome="written"}'] >= 1
        assert seen['holdfast_api_requests_total{outcome="ok"}'] >= 4
        assert seen["holdfast_resource_slices_failing_seconds"] == 0
        assert seen[f'holdfast_kubelet_registered{{resource="{DRIVER}"}}'] in {0, 1}
        labels = "".join(seen)
        assert first.uid not in labels
        assert first.pods[0] not in labels

        at.plane.server.close()
        await at.node.until_problem("ResourceSlices", "cannot ask the API server")
        # Without a change there would be nothing to write for half a minute.
        await at.node.asked("quarantine", device="0000:00:05.0", reason="smells of smoke")

        async def failing() -> bool:
            seen = await asyncio.to_thread(metrics, port)
            return seen["holdfast_resource_slices_failing_seconds"] > 0

        await at.node.until(failing, "the failure to be shown")


async def test_a_claim_that_kubelet_has_lost_is_drift_until_it_is_found_again(
    short_path: Path,
) -> None:
    async with claim_stage(short_path, drift={"settle": "100ms", "beat": "200ms"}) as at:
        first, other = at.allocate("first", 0), at.allocate("other", 1)
        await at.prepared(first)
        at.record(other, device="", driver="other.dev")
        await _start_anew(at)
        await at.node.until(lambda: _drift(at, "claim-not-recorded"), "the drift to be told")
        at.record(first)
        await _start_anew(at)
        await at.node.for_some_beats()
        assert not await _drift(at, "claim-not-recorded")


async def _drift(at: ClaimStage, kind: str) -> bool:
    status = await at.node.asked("status") or {"drift": []}
    return any(each["kind"] == kind for each in status["drift"])


async def _start_anew(at: ClaimStage) -> None:
    """Have kubelet's record read now: at each start it is, and then once a minute."""
    at.node.kill()
    await begin(at)
