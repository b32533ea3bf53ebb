"""The simulated kubelet: it says what a real one did."""

import re
from pathlib import Path

from fakes.stage import TPU, pod, stage

_RECORDED = (
    "device plugin PreStartContainer rpc failed with err: endpoint &{{{} {0 0}} google.com/tpu "
    "0xe7544133240 {14031257975158906108 299919142721 0x52fa3c0} <nil>} has been stopped"
)
"""What kubelet 1.36.2 told a pod that was admitted before its plugin went away."""


def _without_numbers(text: str) -> str:
    return re.sub(r"\b(0x)?[0-9a-f]+\b", "0", text)


async def test_a_pod_whose_plugin_has_gone_is_told_what_a_real_kubelet_told(
    short_path: Path,
) -> None:
    async with stage(short_path, chips=1) as node:
        made = await node.submit(pod("a"))
        node.kubelet.devices.endpoints[TPU].stop()  # it is admitted, and has not started yet
        told = await node.waiting(made, "has been stopped")
    assert _without_numbers(told) == _without_numbers(_RECORDED)
