"""Looks for NVIDIA's driver. Nothing else of this adapter is loaded before the kernel has it."""

from collections.abc import Mapping, Sequence

from holdfast.discovery.source import Found, Source
from holdfast.model.ids import ResourceName
from holdfast.vendors.context import Context

RESOURCES = frozenset({ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/mig-*")})
"""All under which GPUs and slices are advertised."""

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


class NvidiaAdapter(Source):
    """What is known of GPUs before there is a driver: pods may still have some."""

    name = "nvidia"

    def __init__(self, on: Context) -> None:
        """Wait for the driver on the node of *on*."""
        self._on = on

    def found(self) -> Found:
        """Return no GPU: nobody can tell which there are."""
        return Found(unseen=RESOURCES)

    def promised(self, variables: Mapping[str, str], mounts: Sequence[str]) -> tuple[str, ...]:
        """Return the indexes by which an answer tells NVIDIA's runtime of GPUs and slices."""
        if _VISIBLE not in variables:
            return ()
        from holdfast.model.nvidia.grant import told_by_index  # noqa: PLC0415 - for GPUs alone

        return told_by_index(variables, mounts)

    async def run(self) -> None:
        """Put the whole adapter in this one's place once the kernel has the driver."""
        gpu = self._on.settings.gpu
        if not gpu.enabled:
            await super().run()
        # One stat of /proc, which never blocks: most nodes do this forever.
        while not _has_driver(self._on):
            await self._on.clock.sleep(gpu.look)
        from holdfast.vendors.nvidia.gpus import Gpus  # noqa: PLC0415 - memory

        gpus = Gpus(self._on)
        self._on.replace(gpus)
        await gpus.run()


def nvidia(on: Context) -> Source:
    """Return the adapter of GPUs; where the node never had the driver, one that looks for it."""
    # What was known of GPUs counts before their driver is there again.
    known = any(topic.startswith("nvidia/") for topic in on.ledger.book.value.kept)
    if not on.settings.gpu.enabled or not (known or _has_driver(on)):
        return NvidiaAdapter(on)
    from holdfast.vendors.nvidia.gpus import Gpus  # noqa: PLC0415 - memory

    return Gpus(on)


def _has_driver(on: Context) -> bool:
    return (on.root.proc / "driver/nvidia").is_dir()
