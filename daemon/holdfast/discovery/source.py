"""What an adapter of one vendor's hardware is to the rest of the daemon."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.host.pci.sysfs import Snapshot
from holdfast.host.use.look import DriverAnswer
from holdfast.kubelet.checkpoint import Promises
from holdfast.model.cards import ReplicaNames
from holdfast.model.devices import Device, DeviceKind, Fault, Inventory
from holdfast.model.gate.placement import Choice, preferred
from holdfast.model.gate.promise import Breach
from holdfast.model.grants import ContainerGrant
from holdfast.model.groups import grouped
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.kubelet import CheckpointEntry
from holdfast.model.node.readiness import ReadinessCheck

if TYPE_CHECKING:
    from holdfast.model.dra.advertised import AdvertisedDevice


class DeviceListing(Struct, frozen=True, kw_only=True):
    """Devices that a driver lists, in the order that kubelet is to see."""

    resources: tuple[ResourceName, ...] = ()
    devices: tuple[Device, ...] = ()
    unseen: frozenset[ResourceName] = frozenset()
    """Resources of which there may be more devices; see `Inventory.unseen`."""


class HardwareError(Protocol):
    """An error that the hardware reported and that makes a device Unhealthy until it is cleared."""

    @property
    def text(self) -> str:
        """Return what happened, and what clears it."""


class Source:
    """The hardware of one vendor. An adapter overrides what its hardware needs, and no more.

    What a method returns here is right for a device whose nodes are all that a container needs and
    that nobody but a process can hold. All methods are called on the event loop and answer at
    once, or await a lane; `scan`, `labels` and `promised` are called on lanes of others.
    """

    name: ClassVar[str] = ""
    """A short name, such as ``acme``; topics of the ledger start with it."""
    replica_names: ClassVar[ReplicaNames | None] = None
    """How its replicas are called, where a card can be had by several pods at once."""

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """Return the resources that are always this node's, also while there is no device."""
        return ()

    def scan(self, snapshot: Snapshot) -> Iterable[Device]:
        """Return the devices that the kernel's files show, in any order; it may block.

        Raises HostError or OSError where they cannot be read: the last inventory then stays, that
        of other vendors too. So hardware that the node does not have is no error.
        """
        return ()

    def found(self) -> DeviceListing:
        """Return what a driver listed; `Context.discovery.look_again` says that it changed."""
        return DeviceListing()

    async def prepare(self, inventory: Inventory) -> Inventory:
        """Make ready what containers need for the devices, before anybody hears of them.

        Return *inventory* with a fault on each device that could not be made ready.
        """
        return inventory

    def faults(self) -> Mapping[str, tuple[Fault, ...]]:
        """Return by device id what no scan shows; `Context.discovery.publish` says that it changed.

        What is said of a card is said of its replicas.
        """
        return {}

    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """Return by device id what people should know and what makes no device Unhealthy."""
        return {}

    async def ask(self, devices: tuple[Device, ...]) -> Mapping[DeviceName, DriverAnswer]:
        """Return what the driver answers about who uses *devices*, all of kind DRIVER.

        A device without an answer is not granted, and its lock does not become free.
        """
        return {}

    def grant(
        self,
        resource: ResourceName,
        devices: tuple[Device, ...],
        inventory: Inventory,
        *,
        by_claim: bool,
    ) -> ContainerGrant:
        """Return what a container gets for *devices*; it never waits.

        The nodes of VFIO and accel devices, or their CDI names, are added to it.
        *by_claim*: a claim's containers get them, and start again without being asked about.
        """
        return ContainerGrant(
            nodes=tuple(
                node.path
                for device in devices
                if device.kind is DeviceKind.DRIVER
                for node in device.nodes
            )
        )

    def labels(self, inventory: Inventory) -> Mapping[str, str]:
        """Return the node labels of this hardware: keys with their domain, any text.

        It may read files. The text becomes a value as `model.node.labels.label_value` makes it.
        node-feature-discovery refuses keys of kubernetes.io and of the domains below it.
        """
        return {}

    def refuses(self, devices: Sequence[Device]) -> str:
        """Return why a container is never given *devices* together; empty: it can be."""
        return ""

    def preferred(self, devices: Sequence[Device], choice: Choice) -> tuple[DeviceId, ...]:
        """Return what kubelet should pick of *devices*, which are all of the resource."""
        return preferred(devices, choice)

    def advertised(self, devices: Sequence[Device]) -> "Iterable[AdvertisedDevice]":
        """Return what the scheduler is told about *devices*, in their order: one entry for each.

        Groups that a claim can be given as one device follow them. Names never change.
        """
        from holdfast.model.dra.advertised import plain  # noqa: PLC0415 - only where DRA is on

        return map(plain, devices)

    def promised(self, variables: Mapping[str, str], mounts: Sequence[str]) -> tuple[str, ...]:
        """Return what an answer to Allocate promises to the vendor's own container runtime.

        It is kept as `CheckpointEntry.promised_ids` for `breach`. It must be quick, and pure.
        """
        return ()

    def breach(self, entry: CheckpointEntry, devices: Sequence[Device]) -> Breach | None:
        """Return why the answer that a container replays no longer leads to *devices*."""
        return None

    def errors(self, device: DeviceName) -> Sequence[HardwareError]:
        """Return the errors of *device* that a person may overrule."""
        return ()

    def forgive(self, device: DeviceName, errors: Collection[HardwareError]) -> None:
        """Clear *errors* of *device*: a person says that it can be used."""

    async def let_go(self, reason: str) -> str:
        """Let the driver go so that it can be unloaded; return what is not done yet, or nothing."""
        return ""

    async def take_up(self) -> None:
        """Use the driver again after `let_go`."""

    def checks(self) -> Iterable[ReadinessCheck]:
        """Return the readiness checks of this hardware."""
        return ()

    def state(self) -> object:
        """Return what `holdfast debug` shows, as values that have a JSON form."""
        return None

    def hanging(self) -> Iterable[str]:
        """Return what has not come back from the driver to a thread of the adapter's own.

        Lanes tell it of themselves. While there is such a thread the daemon does not restart in its
        process, which would wait for the thread.
        """
        return ()

    async def run(self) -> None:
        """Follow the hardware until cancelled. An error ends the daemon, and so does a return."""
        await asyncio.Event().wait()


class Sources(Promises):
    """The adapters of this node, in order: the first that finds a device has it."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        """Take adapters with different names."""
        self._sources = {each.name: each for each in sources}

    def __iter__(self) -> Iterator[Source]:
        """Yield each adapter."""
        return iter(tuple(self._sources.values()))

    def add(self, source: Source) -> None:
        """Take one more adapter."""
        if source.name in self._sources:
            raise ValueError(f"two adapters are called {source.name!r}")
        self.put(source)

    def put(self, source: Source) -> None:
        """Take *source*, in the place of one with its name where there is one."""
        self._sources[source.name] = source

    def of(self, devices: Iterable[Device]) -> Source:
        """Return the adapter that found all of *devices*; a plain one where that is not one."""
        names = {device.source for device in devices}
        return self._sources.get(names.pop(), Source()) if len(names) == 1 else Source()

    def faults(self) -> Mapping[str, tuple[Fault, ...]]:
        """Return by device id what adapters report and no scan shows."""
        return {id_: faults for each in self for id_, faults in each.faults().items()}

    async def prepare(self, inventory: Inventory) -> Inventory:
        """Have each adapter make ready what containers need for its devices."""
        for each in self:
            inventory = await each.prepare(inventory)
        return inventory

    async def ask(self, devices: Iterable[Device]) -> Mapping[DeviceName, DriverAnswer]:
        """Return what drivers answer about who uses those of *devices* that are of kind DRIVER."""
        wanted = grouped((each.source, each) for each in devices if each.kind is DeviceKind.DRIVER)
        answers: dict[DeviceName, DriverAnswer] = {}
        for mine in wanted.values():
            answers |= await self.of(mine).ask(mine)
        return answers

    def labels(self, inventory: Inventory) -> Mapping[str, str]:
        """Return the node labels of all hardware."""
        return {key: text for each in self for key, text in each.labels(inventory).items()}

    def advertised(self, devices: Iterable[Device]) -> "tuple[AdvertisedDevice, ...]":
        """Return what the scheduler is told about *devices*, single ones before groups of them."""
        found = grouped((device.source, device) for device in devices)
        told = [each for mine in found.values() for each in self.of(mine).advertised(mine)]
        return tuple(sorted(told, key=lambda each: len(each.devices) > 1 and not each.shared))

    def told(
        self, inventory: Inventory, serves: Callable[[ResourceName], bool]
    ) -> "tuple[AdvertisedDevice, ...]":
        """Return what the scheduler is told about those devices whose resource DRA *serves*."""
        # Groups are made of what is beside each other on the node, whatever it is called.
        hardware = inventory.hardware or inventory.devices
        from holdfast.model.dra.advertised import as_assigned, told_apart  # noqa: PLC0415 - as above

        told = told_apart(self.advertised(hardware), hardware)
        if inventory.hardware:
            told = as_assigned(told, inventory)
        return tuple(each for each in told if all(serves(name.resource) for name in each.devices))

    def promised(self, variables: Mapping[str, str], mounts: Sequence[str]) -> tuple[str, ...]:
        """Return what an answer to Allocate promises to vendors' own container runtimes."""
        return tuple(id_ for each in self for id_ in each.promised(variables, mounts))


def stamped(devices: Iterable[Device], source: Source) -> Iterator[Device]:
    """Yield *devices* as those that *source* found."""
    return (replace(device, source=source.name) for device in devices)
