"""Keeps every resource on offer registered with kubelet, each on its own."""

import asyncio
from collections.abc import Callable, Mapping

from holdfast.errors import KubeletError
from holdfast.kubelet.enrolment import Enrolment, EnrolmentTimes, Registration
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.plugin import DevicePlugin
from holdfast.model.book.offers import Offers
from holdfast.model.ids import ResourceName
from holdfast.runtime.clock import Clock
from holdfast.runtime.watched import Watched


class Registrar:
    """Serves and registers each resource as soon as it is on offer.

    A resource that leaves the offers stays registered, with an empty list: kubelet would otherwise
    count its devices as lost for as long as it remembers them. `registrations` tells where each
    one stands.
    """

    def __init__(
        self,
        *,
        offers: Watched[Offers],
        plugin: Callable[[ResourceName], DevicePlugin],
        folder: FolderWatch,
        prefix: str,
        clock: Clock,
        times: EnrolmentTimes,
    ) -> None:
        """Register what *offers* has, with a servicer that *plugin* makes for each resource."""
        self.registrations: Watched[Mapping[ResourceName, Registration]] = Watched({})
        self._offers = offers
        self._plugin = plugin
        self._folder = folder
        self._prefix = prefix
        self._clock = clock
        self._times = times
        self._enrolments: dict[ResourceName, Enrolment] = {}

    async def run(self) -> None:
        """Keep them all registered, until cancelled; then `close`."""
        async with asyncio.TaskGroup() as group:
            async for offers in self._offers.follow():
                for resource in offers.devices:
                    if resource not in self._enrolments:
                        enrolment = self._enrol(resource)
                        self._enrolments[resource] = enrolment
                        group.create_task(enrolment.run(), name=f"register {resource}")

    async def answers(self, resource: ResourceName) -> None:
        """Dial our own socket of *resource*; raise KubeletError when we do not answer there."""
        enrolment = self._enrolments.get(resource)
        if enrolment is None:
            raise KubeletError(f"cannot reach our socket of {resource}: none is served yet")
        await enrolment.answers()

    async def close(self) -> None:
        """End all streams, stop all servers and remove our sockets. `run` must be over."""
        await asyncio.gather(*(each.close() for each in self._enrolments.values()))

    def _enrol(self, resource: ResourceName) -> Enrolment:
        return Enrolment(
            plugin=self._plugin(resource),
            folder=self._folder,
            prefix=self._prefix,
            clock=self._clock,
            times=self._times,
            changed=self._publish,
        )

    def _publish(self, state: Registration) -> None:
        self.registrations.set({**self.registrations.value, state.resource: state})
