"""What kubelet is told about the DRA driver when it finds its socket, and what it says to that."""

from collections.abc import Awaitable

from grpc import aio
from msgspec import Struct
from msgspec.structs import replace

from holdfast._pb.pluginregistration.v1 import api_pb2, api_pb2_grpc
from holdfast.model.text import printable
from holdfast.runtime.watched import Watched

SERVICES = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
"""What we serve, the most wanted first: kubelet takes the first of a kind that it knows."""

_MOST_OF_A_REFUSAL = 1000


class Told(Struct, frozen=True, kw_only=True):
    """What kubelet has said on the registration socket; the `refusal` is its latest."""

    asked: int = 0
    accepted: int = 0
    refused: int = 0
    refusal: str = ""

    def why_refused(self, driver: str) -> str:
        """Return why kubelet refused *driver*, and what to do."""
        reason = self.refusal or "no reason given"
        return f"kubelet refused DRA driver {driver}: {reason}; {_what_to_do(reason)}"


class Announcement(api_pb2_grpc.RegistrationServicer):
    """What kubelet is told about us; `told` is what it said."""

    def __init__(self, driver: str, endpoint: str) -> None:
        """Tell kubelet that *driver* serves at *endpoint*."""
        self.told: Watched[Told] = Watched(Told())
        self._info = api_pb2.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=SERVICES
        )

    def add_to(self, server: aio.Server) -> None:
        """Have *server* answer kubelet."""
        api_pb2_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(  # noqa: N802
        self,
        request: api_pb2.InfoRequest,  # noqa: ARG002
        context: aio.ServicerContext[api_pb2.InfoRequest, Awaitable[api_pb2.PluginInfo]],  # noqa: ARG002
    ) -> api_pb2.PluginInfo:
        """Say who we are and where claims are prepared."""
        told = self.told.value
        self.told.set(replace(told, asked=told.asked + 1))
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: api_pb2.RegistrationStatus,
        context: aio.ServicerContext[  # noqa: ARG002
            api_pb2.RegistrationStatus, Awaitable[api_pb2.RegistrationStatusResponse]
        ],
    ) -> api_pb2.RegistrationStatusResponse:
        """Hear whether kubelet took us."""
        told = self.told.value
        if request.plugin_registered:
            self.told.set(replace(told, accepted=told.accepted + 1))
        else:
            text = printable(request.error, _MOST_OF_A_REFUSAL)
            self.told.set(replace(told, refused=told.refused + 1, refusal=text))
        return api_pb2.RegistrationStatusResponse()


def _what_to_do(reason: str) -> str:
    """Return advice for kubelet's *reason*, in the words of kubelet's plugin manager."""
    if "already registered" in reason:
        return "another driver has this name on this node: stop it, or set dra.driverName"
    if "version" in reason or "supported" in reason:
        return f"kubelet must know one of {', '.join(SERVICES[:2])}: Kubernetes 1.34 and later do"
    return "see kubelet's log"
