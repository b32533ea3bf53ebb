"""The pods of a play, and the one chip that they have by claims."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from fakes.books import device_of, name
from holdfast.model.devices import DeviceNode
from holdfast.model.dra.advertised import plain
from holdfast.model.ids import (
    PciAddress,
    ResourceName,
)
from simulated.pods import Container, Pod, PodSpec

DRIVER, NAMESPACE, POOL = "holdfast.dev", "team", "node-1"
TPU = ResourceName("google.com/tpu")
_ADDRESS = PciAddress("0000:00:05.0")
NODE = "/dev/vfio/10"
"""A link to /dev/null, whose number it has."""
CHIP = device_of(
    name(_ADDRESS, TPU),
    f"pci/{_ADDRESS}",
    nodes=(DeviceNode(path=NODE, rdev=Path("/dev/null").stat().st_rdev),),
    functions=(_ADDRESS,),
)
LABEL = plain(CHIP).name


@dataclass(kw_only=True, eq=False)
class PlayedPod:
    """A pod with one container that has the chip open from its start to its end."""

    name: str
    claim: str
    lingers: bool = False
    """Whether its process outlives its container, until the play ends it."""
    stuck: bool = False
    """Whether the runtime cannot stop its container while that process lives."""
    in_api: bool = True
    deleting: bool = False
    cgroup: bool = False
    prepared: bool = False
    """Whether kubelet had its claim prepared, and no Unprepare of that has succeeded since."""
    given: bool = False
    """The same, and kubelet has called no Unprepare since: its containers may start."""
    forgotten: bool = False
    """Whether kubelet has lost its claim before its container started, which it does not any more."""
    running: bool = False
    holds: bool = False
    """Whether a process of it has the chip open."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody deletes it."""

    @property
    def uid(self) -> str:
        return f"uid-of-{self.name}"

    @property
    def simulated(self) -> Pod:
        container = Container(claims=(("it", ""),))
        return Pod(
            spec=PodSpec(
                name=self.name,
                uid=self.uid,
                namespace=NAMESPACE,
                containers=(container,),
                claims={"it": self.claim},
            )
        )
