"""What this process lacks though its settings ask for it: by the table of needs, and in folders."""

from pathlib import Path

from holdfast.doctor.needs import NEEDS
from holdfast.host.files.paths import mount_of, mounts
from holdfast.host.own.privileges import privileges
from holdfast.host.root import HostRoot
from holdfast.model.node.filesystems import unfit
from holdfast.settings import Settings


def lacks(settings: Settings, root: HostRoot) -> tuple[str, ...]:
    """Return, for each need that certainly is not met, what is lost without it and the remedy.

    What cannot be told, or costs a feature in some cases only, is the doctor's to warn of.
    """
    found = privileges(root)
    return tuple(
        f"without {need.privilege} {need.lost}: {need.remedy}"
        for need in NEEDS
        if need.sure and need.asked(settings) and need.has(found) is False
    )


def missing_folders(settings: Settings, root: HostRoot) -> tuple[str, ...]:
    """Return, for each folder of the node that is not there, what is lost and the remedy.

    On a node on which kubelet never ran, its own is not there either; it is once kubelet starts.
    """
    found: list[str] = []
    socket = Path(settings.kubelet.pod_resources_socket)
    if not socket.parent.is_dir():
        found.append(
            f"without {socket.parent} holdfast cannot ask kubelet for its pods: locks of ended "
            "pods stay, and no pod is named: mount that folder of the node, or set "
            "kubelet.podResourcesSocket (kubelet creates it at its first start)"
        )
    mount = mount_of(mounts(root), settings.state_dir)
    if mount is not None and (why := unfit(mount.kind)):
        found.append(
            f"without a stateDir on the node's own disk locks are lost: {settings.state_dir} "
            f"is on {mount.point}, and {why}: mount a folder of the node there"
        )
    return tuple(found)
