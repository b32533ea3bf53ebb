"""How the scheduler knows our devices: by names that are DNS labels and survive a reboot."""

import hashlib
import re

from holdfast.model.ids import DeviceName

_LONGEST = 63
_DIGEST = 8
_OTHER = re.compile(r"[^a-z0-9]+")


def label(device: DeviceName) -> str:
    """Return the name of *device* in ResourceSlices and claims: ``tpu-0000-00-05-0``.

    It is made of the last part of the resource and the id, which names the silicon (a PCI address
    or a UUID). Names that would be too long end with a digest.
    """
    kind, id_ = (_OTHER.sub("-", each.lower()).strip("-") for each in _parts(device))
    name = id_ if id_.startswith(f"{kind}-") else f"{kind}-{id_}"
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(str(device).encode()).hexdigest()[:_DIGEST]
    return f"{name[: _LONGEST - _DIGEST - 1].rstrip('-')}-{digest}"


def _parts(device: DeviceName) -> tuple[str, str]:
    return device.resource.rpartition("/")[2], device.id
