"""The first file system of the guest: a cpio archive that finds the host's root and enters it."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from vm.parts import Parts

_FOLDERS = ("bin", "lib", "proc", "sys", "dev", "mnt", "mnt/root", "mnt/over", "newroot")

_INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
{insmods}
off() {{ echo "VM BOOT FAILED: $1"; echo o > /proc/sysrq-trigger; sleep 9; }}
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro hostroot /mnt/root || off "no 9p root"
mount -t tmpfs tmpfs /mnt/over; mkdir /mnt/over/upper /mnt/over/work
mount -t overlay -o lowerdir=/mnt/root,upperdir=/mnt/over/upper,workdir=/mnt/over/work overlay /newroot || off "no overlay"
for folder in dev proc sys; do mount --move /$folder /newroot/$folder; done
exec switch_root /newroot {command}
"""


def archive(parts: Parts, command: list[str]) -> bytes:
    """Return an initramfs that mounts the host's root under a writable layer and runs *command*."""
    insmods = "\n".join(f"insmod /lib/{module.name}" for module in parts.first_modules)
    init = _INIT.format(insmods=insmods, command=shlex.join(command))
    entries = [
        *((folder, 0o040755, b"") for folder in _FOLDERS),
        ("bin/busybox", 0o100755, parts.busybox.read_bytes()),
        *((f"lib/{module.name}", 0o100644, module.read_bytes()) for module in parts.first_modules),
        ("init", 0o100755, init.encode()),
        ("TRAILER!!!", 0, b""),
    ]
    return b"".join(
        part
        for inode, (name, mode, content) in enumerate(entries, start=1)
        for part in _entry(inode, name, mode, content)
    )


def write(parts: Parts, command: list[str], target: Path) -> None:
    """Write the initramfs for *command* to *target*."""
    target.write_bytes(archive(parts, command))


def _entry(inode: int, name: str, mode: int, content: bytes) -> Iterator[bytes]:
    """Yield one member in the "newc" form: thirteen hexadecimal fields, name, content, padded to 4."""
    encoded = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    yield header + b"\0" * (-len(header) % 4)
    yield content + b"\0" * (-len(content) % 4)
