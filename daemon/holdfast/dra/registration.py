"""Keeps the DRA driver registered with kubelet, whatever happens to either side's sockets."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from grpc import aio
from msgspec import Struct
from msgspec.structs import replace

from holdfast._pb.pluginregistration.v1 import api_pb2, api_pb2_grpc
from holdfast.errors import HoldfastError, KubeletError
from holdfast.host.files.kernelfile import is_folder
from holdfast.host.proc.pidfd import listener
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.socket import SocketServer
from holdfast.ledger.instance import PluginFolderLock
from holdfast.model.kubelet import Registration
from holdfast.model.text import printable
from holdfast.names import DRA_SOCKET
from holdfast.runtime.clock import Clock, backoff
from holdfast.runtime.lane import Lane
from holdfast.runtime.problem import Problem
from holdfast.runtime.watched import Changes, Watched

SERVICES = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
"""What we serve, the most wanted first: kubelet takes the first of a kind that it knows."""

_MOST_OF_A_REFUSAL = 1000
log = structlog.get_logger(__name__)

_Call = aio.ServicerContext[Any, Any]


class Announcement(api_pb2_grpc.RegistrationServicer):
    """What kubelet is told about us, and what it said.

    `registration` counts its questions and its acceptances. A `refusal` counts until it is cleared.
    """

    def __init__(self, driver: str, endpoint: str, clock: Clock) -> None:
        """Tell kubelet that *driver* serves at *endpoint*."""
        self.registration = Watched(Registration(since=clock.wall()))
        self.refusal = Watched("")
        self._clock = clock
        self._info = api_pb2.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=SERVICES
        )

    def add_to(self, server: aio.Server) -> None:
        """Have *server* answer kubelet."""
        api_pb2_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(  # noqa: N802
        self,
        request: api_pb2.InfoRequest,  # noqa: ARG002
        context: _Call,  # noqa: ARG002
    ) -> api_pb2.PluginInfo:
        """Say who we are and where claims are prepared."""
        before = self.registration.value
        self.registration.set(replace(before, attempts=before.attempts + 1))
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: api_pb2.RegistrationStatus,
        context: _Call,  # noqa: ARG002
    ) -> api_pb2.RegistrationStatusResponse:
        """Hear whether kubelet took us."""
        if request.plugin_registered:
            now = self.registration.value.turned("", at=self._clock.wall())
            times = now.registrations + 1
            self.registration.set(replace(now, registrations=times))
            log.info("DRA driver registered with kubelet", driver=self._info.name, times=times)
        else:
            reason = printable(request.error, _MOST_OF_A_REFUSAL) or "no reason given"
            self.refusal.set(reason)
        return api_pb2.RegistrationStatusResponse()


def _what_to_do(reason: str) -> str:
    """Return advice for kubelet's *reason*, in the words of kubelet's plugin manager."""
    if "already registered" in reason:
        return "another driver has this name on this node: stop it, or set dra.driverName"
    if "version" in reason or "supported" in reason:
        return f"kubelet must know one of {', '.join(SERVICES[:2])}: Kubernetes 1.34 and later do"
    return "see kubelet's log"


class DriverTimes(Struct, frozen=True, kw_only=True):
    """Durations in seconds."""

    first_delay: float = 1.0
    last_delay: float = 60.0
    asked: float = 30.0
    """How long kubelet may take from our socket's appearance to its acceptance."""


@dataclass(kw_only=True, eq=False)
class DriverRegistrar:
    """Serves the driver's two sockets, and has kubelet register it.

    `registration` tells where it stands. Its `registrations` grow whenever kubelet accepts us: a
    second time in our life means that kubelet was restarted, and has deleted the ResourceSlices of
    its node.

    What `services` add is served on dra.sock in `plugins`, the folder of `driver` alone. Kubelet
    finds it by a socket in `registry`, its plugins_registry.
    """

    driver: str
    plugins: FolderWatch
    registry: FolderWatch
    services: Sequence[Callable[[aio.Server], None]]
    lane: Lane
    clock: Clock
    times: DriverTimes = field(default_factory=DriverTimes)

    def __post_init__(self) -> None:
        self._problem = Problem(log, "DRA driver not registered", driver=self.driver)
        path = self.plugins.path / DRA_SOCKET
        self._kubelet = Announcement(self.driver, str(path), self.clock)
        self.registration = self._kubelet.registration
        self._lock: PluginFolderLock | None = None
        advice = "kubelet's folders plugins and plugins_registry must be mounted writable"
        hidden = f".{hashlib.sha256(self.driver.encode()).hexdigest()[:8]}-"
        self._service = SocketServer(
            path, hidden=hidden, what=f"DRA driver {self.driver}", advice=advice
        )
        # Kubelet passes over names that begin with a dot, so it never dials the hidden one.
        self._registration_socket = SocketServer(
            self.registry.path / f"{self.driver}-reg.sock",
            hidden=hidden,
            what=f"the registration of DRA driver {self.driver}",
            advice=advice,
        )
        self._sockets = (
            (self._service, self.plugins, self._add_services),
            (self._registration_socket, self.registry, self._kubelet.add_to),
        )

    async def run(self) -> None:
        """Serve and stay registered, until cancelled; then `close`."""
        delays = self._delays()
        while True:
            folders, asked = self._folders(), self.registration.value.attempts
            self._kubelet.refusal.set("")
            try:
                await self._serve()
                problem = await self._over(asked)
                if self.registration.value.registered:
                    self._problem.set("")
                    delays = self._delays()
                await self._registration_socket.stop()  # its next appearance makes kubelet ask
            except HoldfastError as error:
                problem = str(error)
            self._report(problem)
            await self._pause(next(delays), folders)

    async def close(self) -> None:
        """Stop serving and remove our sockets; `run` must be over.

        Kubelet then takes the driver for gone, and deletes its ResourceSlices after 30 s.
        """
        await self._registration_socket.stop()
        await self._service.stop()
        if self._lock is not None:
            self._lock.close()

    async def _serve(self) -> None:
        """Serve each socket that does not lie at its path, dra.sock first."""
        await self.lane.run(self._prepare)
        for server, folder, add in self._sockets:
            if not (await folder.refresh()).has(server):
                await server.stop()
                await server.start(add)
                await folder.refresh()  # `_over` compares what is published with our socket
                log.info("DRA socket opened", driver=self.driver, socket=str(server.path))

    def _add_services(self, server: aio.Server) -> None:
        for each in self.services:
            each(server)

    def _prepare(self) -> None:
        """Make our folder, and see that nobody else serves this driver; runs on the lane."""
        folder, registry = self.plugins.path, self.registry.path
        if not is_folder(registry):
            raise KubeletError(
                f"cannot register DRA driver {self.driver}: there is no folder {registry} "
                "(waiting for kubelet to create it; is it kubelet's folder, and mounted?)"
            )
        try:
            folder.mkdir(mode=0o750, exist_ok=True)
        except OSError as error:
            raise KubeletError(
                f"cannot serve DRA driver {self.driver}: cannot make the folder {folder}: "
                f"{error.strerror}; kubelet's folder plugins must be mounted writable"
            ) from error
        if self._lock is None:
            self._lock = PluginFolderLock(folder, what=f"DRA driver {self.driver}: its folder")
        else:
            self._lock.keep()
        for server, _, _ in self._sockets:
            if not server.in_place:
                self._refuse_another(server.path)

    def _refuse_another(self, path: Path) -> None:
        try:
            pid = listener(path)
        except BlockingIOError:  # it listens, and too many wait already for it to answer
            pid = 0
        except OSError:
            return  # nothing lies there, or it is left over
        raise KubeletError(
            f"cannot serve DRA driver {self.driver}: another process (pid {pid or 'unknown'}) "
            f"listens at {path}; stop it, or give this driver another name (dra.driverName)"
        )

    async def _over(self, asked: int) -> str:
        """Return, with the reason, when we have to register with kubelet once more.

        *asked* is how often it had asked before we served.
        """
        told_by = self.clock.monotonic() + self.times.asked
        while True:
            refusal = self._kubelet.refusal
            changes = Changes((self.registration, refusal, self.plugins.state, self.registry.state))
            if reason := refusal.value:
                return f"kubelet refused DRA driver {self.driver}: {reason}; {_what_to_do(reason)}"
            now, left = self.registration.value, told_by - self.clock.monotonic()
            if not now.registered and left <= 0:
                return self._not_asked(asked=now.attempts > asked)
            for server, folder, _ in self._sockets:
                if not folder.state.value.has(server):
                    return f"our socket {server.path} was removed; serving and registering again"
            await changes.wait(math.inf if now.registered else left)

    def _not_asked(self, *, asked: bool) -> str:
        if asked:
            return (
                f"kubelet asked about DRA driver {self.driver} but did not register it in "
                f"{self.times.asked:g} s; see kubelet's log"
            )
        return (
            f"kubelet has not asked about {self._registration_socket.path} in "
            f"{self.times.asked:g} s; is it running, and is this its plugins_registry (kubelet's "
            "--root-dir)?"
        )

    def _report(self, problem: str) -> None:
        self.registration.set(self.registration.value.turned(problem, at=self.clock.wall()))
        self._problem.set(problem)

    async def _pause(self, seconds: float, tried: tuple[object, object]) -> None:
        """Return after *seconds*, or as soon as there are other folders to try."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            changes = Changes([self.plugins.state, self.registry.state])
            if self._folders() != tried:
                return
            await changes.wait(left)

    def _folders(self) -> tuple[object, object]:
        return self.plugins.state.value.folder, self.registry.state.value.folder

    def _delays(self) -> Iterator[float]:
        return backoff(self.times.first_delay, self.times.last_delay)
