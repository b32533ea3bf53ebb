"""Which kinds of filesystem lose what is on them, and on which a ledger must not lie."""

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})
"""Filesystems that a reboot empties."""
CONTAINERS_OWN = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
_OVER_A_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "ceph",
        "afs",
        "lustre",
        "glusterfs",
        "virtiofs",
        "vboxsf",
    }
)


def unfit(kind: str) -> str:
    """Return why a ledger must not lie on a filesystem of *kind*; nothing where it may."""
    if kind in IN_MEMORY:
        return f"{kind} is emptied by a reboot, and the locks are lost"
    if kind in CONTAINERS_OWN:
        return f"{kind} belongs to a container: the next container would start without the ledger"
    if kind in _OVER_A_NETWORK or kind.startswith("fuse"):
        return f"locks and writes on {kind} are not kept in order as a ledger needs them"
    return ""
