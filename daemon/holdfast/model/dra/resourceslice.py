"""A ResourceSlice of resource.k8s.io/v1, as far as a driver writes it, and its names."""

import hashlib
import re
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.model.ids import DeviceName

_LONGEST = 63
_DIGEST = 8
_OTHER = re.compile(r"[^a-z0-9]+")


def label(device: DeviceName) -> str:
    """Return the name of *device* in ResourceSlices and claims: ``tpu-0000-00-05-0``.

    It is made of the last part of the resource and the id, which names the silicon (a PCI address
    or a UUID). Names that would be too long end with a digest.
    """
    parts = device.resource.rpartition("/")[2], device.id
    kind, id_ = (_OTHER.sub("-", each.lower()).strip("-") for each in parts)
    name = id_ if id_.startswith(f"{kind}-") else f"{kind}-{id_}"
    return fitted(name, str(device))


def fitted(name: str, full: str, *, longest: int = _LONGEST, digits: int = _DIGEST) -> str:
    """Return *name*, shortened where it is too long, with a digest of *full* at its end."""
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(full.encode()).hexdigest()[:digits]
    return f"{name[: longest - digits - 1].rstrip('-.')}-{digest}"


class _Wire(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Written as Kubernetes' JSON."""


class AttributeValue(_Wire, frozen=True, kw_only=True):
    """The value of an attribute: exactly one of these is set."""

    text: str | None = field(default=None, name="string")
    number: int | None = field(default=None, name="int")
    truth: bool | None = field(default=None, name="bool")
    version: str | None = None
    """A semantic version."""


class Quantity(_Wire, frozen=True, kw_only=True):
    """A counter, such as ``1``."""

    value: str


class ValidRange(_Wire, frozen=True, kw_only=True):
    """Which amounts of a capacity one allocation can take; what is not set bounds nothing."""

    min: str


class RequestPolicy(_Wire, frozen=True, kw_only=True):
    """How much of a capacity one allocation takes: `default` unless its claim asks for more.

    Only for a device that allows multiple allocations. Either `valid_values` or `valid_range` is
    set; in a slice of others neither need be, nor the default.
    """

    default: str = ""
    valid_values: tuple[str, ...] = ()
    valid_range: ValidRange | None = None


class Capacity(_Wire, frozen=True, kw_only=True):
    """A capacity of a device, such as ``80Gi``.

    Without a policy one allocation takes all of it, unless its claim says how much.
    """

    value: str
    request_policy: RequestPolicy | None = None


class Taint(_Wire, frozen=True, kw_only=True):
    """Why new claims are not given a device; `time_added` is the server's."""

    key: str
    value: str = ""
    effect: str
    time_added: str = ""

    @property
    def what(self) -> tuple[str, str, str]:
        """Return all that the driver decides."""
        return self.key, self.value, self.effect


class CounterUse(_Wire, frozen=True, kw_only=True):
    """What a device takes from the counters of one set."""

    counter_set: str
    counters: Mapping[str, Quantity]


class CounterSet(_Wire, frozen=True, kw_only=True):
    """Counters that devices of the pool share."""

    name: str
    counters: Mapping[str, Quantity]


class SliceDevice(_Wire, frozen=True, kw_only=True):
    """One device that a claim can be given; `name` is a DNS label, unique in the pool.

    With `allow_multiple_allocations` several claims can have it, as long as there is enough left of
    each capacity.
    """

    name: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    allow_multiple_allocations: bool = False
    taints: tuple[Taint, ...] = ()
    consumes_counters: tuple[CounterUse, ...] = ()


class SlicePool(_Wire, frozen=True, kw_only=True):
    """The pool that a slice is part of.

    The scheduler uses the slices of the highest generation, once there are as many of them as
    `resource_slice_count` says.
    """

    name: str
    generation: int
    resource_slice_count: int


class SliceContent(Struct, frozen=True, kw_only=True):
    """What one slice of a pool has: devices, or counters, but not both."""

    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class SliceSpec(_Wire, frozen=True, kw_only=True):
    """The spec of a slice of one node."""

    driver: str
    pool: SlicePool
    node_name: str = ""
    devices: tuple[SliceDevice, ...] | None = ()
    shared_counters: tuple[CounterSet, ...] | None = ()

    @property
    def content(self) -> SliceContent:
        """Return the content without what the server adds to it."""
        return SliceContent(
            devices=tuple(map(_without_times, self.devices or ())),
            shared_counters=self.shared_counters or (),
        )


class OwnerReference(_Wire, frozen=True, kw_only=True):
    """The object with which a slice is to go."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class SliceMetadata(_Wire, frozen=True, kw_only=True):
    """The metadata of a slice; `uid` and `resource_version` are the server's."""

    name: str
    uid: str = ""
    resource_version: str = ""
    owner_references: tuple[OwnerReference, ...] | None = ()


class ResourceSlice(_Wire, frozen=True, kw_only=True):
    """A slice as it is sent and as the server returns it; in a list it names no kind."""

    api_version: str = ""
    kind: str = ""
    metadata: SliceMetadata
    spec: SliceSpec


def _without_times(device: SliceDevice) -> SliceDevice:
    return replace(device, taints=tuple(replace(each, time_added="") for each in device.taints))
