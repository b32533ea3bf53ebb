"""Between our own values and the messages of the device plugin API."""

from holdfast._pb.deviceplugin.v1beta1 import api_pb2
from holdfast.model.book.offers import OfferedDevice
from holdfast.model.grants import ContainerGrant

API_VERSION = "v1beta1"
"""The one version of the API that any kubelet takes."""

_HEALTHY = "Healthy"
_UNHEALTHY = "Unhealthy"


def device_list(devices: tuple[OfferedDevice, ...]) -> api_pb2.ListAndWatchResponse:
    """Return *devices* as one message of ListAndWatch."""
    return api_pb2.ListAndWatchResponse(devices=[_device(device) for device in devices])


def container_answer(grant: ContainerGrant) -> api_pb2.ContainerAllocateResponse:
    """Return *grant* as the answer for one container."""
    return api_pb2.ContainerAllocateResponse(
        envs=dict(grant.envs),
        mounts=[
            api_pb2.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.read_only,
            )
            for mount in grant.mounts
        ],
        devices=[
            api_pb2.DeviceSpec(
                container_path=node.container_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in grant.nodes
        ],
        annotations=dict(grant.annotations),
        cdi_devices=[api_pb2.CDIDevice(name=name) for name in grant.cdi_devices],
    )


def _device(device: OfferedDevice) -> api_pb2.Device:
    message = api_pb2.Device(ID=device.id, health=_HEALTHY if device.healthy else _UNHEALTHY)
    # Only where it is known: each NUMA node named makes kubelet's search for a place longer.
    if device.numa_node is not None:
        message.topology.nodes.add(ID=device.numa_node)
    return message
