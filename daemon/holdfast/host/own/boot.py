"""Tells one boot of this host from another."""

import re

from holdfast.errors import HostError
from holdfast.host.files.kernelfile import read_text
from holdfast.host.root import HostRoot
from holdfast.model.ids import BootId

_FORM = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def boot_id(root: HostRoot) -> BootId:
    """Return the random id that the kernel gave this boot; raise HostError where it has none.

    Without it a lock of this boot and one of a former boot look the same, so there is no guess.
    """
    path = root.proc / "sys/kernel/random/boot_id"
    text = read_text(path)
    if text is None or not _FORM.fullmatch(text):
        seen = "it is missing" if text is None else f"it says {text[:40]!r}"
        raise HostError(f"cannot read the boot id from {path}: {seen}; mount the host's /proc")
    return BootId(text)
