"""Builds what faces kubelet: its folder, its books, and the device lists it is sent."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from holdfast.app.wiring.foundation import Foundation
from holdfast.discovery.source import Sources
from holdfast.host.proc.peer import peer_of
from holdfast.kubelet.books import BooksReader
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.offering import Offering
from holdfast.kubelet.plugin import Allocate, DevicePlugin, Prefer, PreStart
from holdfast.kubelet.podresources import PodResources
from holdfast.kubelet.registration import Registrar, RegistrationTimes
from holdfast.kubelet.traffic import Traffic
from holdfast.model.book.offers import Offers
from holdfast.model.ids import ProcessId, ResourceName

Called = Callable[[str, str, str, float], None]
"""Hears of one of kubelet's calls: the resource, the call's name, its status code, its seconds."""


class KubeletSide(Struct, frozen=True, kw_only=True):
    """What knows kubelet."""

    folder: FolderWatch
    traffic: Traffic
    books: BooksReader
    offering: Offering


def build_kubelet_side(on: Foundation, sources: Sources) -> KubeletSide:
    """Build the folder's watch and the two that need each other.

    The lists are sent again so that kubelet writes its books.
    """
    kubelet, question = on.settings.kubelet, on.settings.kubelet.question
    folder = FolderWatch(
        folder=Path(kubelet.plugin_dir),
        prefix=kubelet.socket_prefix,
        paths=on.host.paths,
        lane=on.host.lanes["kubelet"],
        interval=kubelet.poll,
    )
    traffic = Traffic()

    def peer(socket: Path) -> ProcessId | None:
        return peer_of(socket, on.host.procfs)

    def resend() -> None:
        offering.resend()

    async def offered() -> Offers:
        return await offering.offers.until(lambda offers: bool(offers.devices))

    books = BooksReader(
        folder=folder,
        pods=PodResources(Path(kubelet.pod_resources_socket), deadline=question.timeout),
        traffic=traffic,
        peer=peer,
        resend=resend,
        active=lambda: bool(on.ledger.book.value.locks),
        promised=sources.promised,
        offered=offered,
        lane=on.host.lanes["kubelet"],
        clock=on.clock,
        settings=question,
    )
    offering = Offering(
        ledger=on.ledger,
        inventory=on.scanner.inventory,
        view=books.view,
        clock=on.clock,
        withhold_after=on.settings.withhold_after,
    )
    return KubeletSide(folder=folder, traffic=traffic, books=books, offering=offering)


def build_registrar(
    on: Foundation,
    side: KubeletSide,
    *,
    allocate: Allocate,
    pre_start: PreStart,
    prefer: Prefer,
    called: Called,
) -> Registrar:
    """Build what registers a plugin for each resource; *called* hears of kubelet's calls."""

    def plugin(resource: ResourceName) -> DevicePlugin:
        return DevicePlugin(
            resource=resource,
            offers=side.offering.offers,
            allocate=allocate,
            pre_start=pre_start,
            prefer=prefer,
            traffic=side.traffic,
            clock=on.clock,
            observe=partial(called, resource),
        )

    return Registrar(
        offers=side.offering.offers,
        plugin=plugin,
        folder=side.folder,
        prefix=on.settings.kubelet.socket_prefix,
        clock=on.clock,
        times=RegistrationTimes(register=on.settings.kubelet.register_timeout),
    )
