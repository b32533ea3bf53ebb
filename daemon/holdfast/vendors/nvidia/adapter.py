"""Looks for NVIDIA's driver. Nothing else of this adapter is loaded before the kernel has it."""

import os

from holdfast.discovery.source import Source
from holdfast.runtime.watched import pause
from holdfast.vendors.context import Context
from holdfast.vendors.nvidia.withoutdriver import WithoutDriver


class _StandIn(WithoutDriver):
    """Stands in for the whole adapter until the kernel has the driver."""

    async def run(self) -> None:
        """Put the whole adapter in its place once the kernel has the driver."""
        if not self._on.settings.value.gpu.enabled:
            await super().run()
        look = self._on.settings.part(lambda now: now.gpu.look)
        # One stat of /proc, which never blocks: most nodes do this forever.
        while not _has_driver(self._on):
            await pause(self._on.clock, look, float)
        from holdfast.vendors.nvidia.gpus import Gpus  # noqa: PLC0415 - memory

        gpus = Gpus(self._on)
        self._on.discovery.replace(gpus)
        await gpus.run()


def nvidia(on: Context) -> Source:
    """Return the adapter of GPUs; where the node never had the driver, one that looks for it."""
    # What was known of GPUs counts before their driver is there again.
    known = any(topic.startswith("nvidia/") for topic in on.ledger.book.value.kept)
    if not on.settings.value.gpu.enabled or not (known or _has_driver(on)):
        return _StandIn(on)
    from holdfast.vendors.nvidia.gpus import Gpus  # noqa: PLC0415 - memory

    return Gpus(on)


def _has_driver(on: Context) -> bool:
    return os.path.isdir(on.root.proc / "driver/nvidia")  # noqa: PTH112 - which raises nothing
