"""Runs a command as a container runtime runs the one container of a pod, by the pod's manifest.

usage: as_pod.py FILE    FILE is JSON: `pod` is the pod's spec, `files` the content of its ConfigMaps
by name and key, `cgroup` the container's own, `image` the folder with the image's files, `command`
what the image's entry point and the manifest's arguments make together, `environment` what the image
sets.

What is not imitated: seccomp's filter, AppArmor and SELinux, and the pause container. Where hostPID
is false this process stays outside, passes a signal to end on and has the exit status of the command.
"""

import fcntl
import json
import os
import shutil
import socket
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from vm.guest.capabilities import become
from vm.guest.device_cgroup import restrict
from vm.guest.syscalls import (
    BIND,
    NEW_CGROUP,
    NEW_IPC,
    NEW_MOUNTS,
    NEW_NETWORK,
    NEW_PIDS,
    NEW_UTS,
    NODEV,
    NOEXEC,
    NOSUID,
    PRIVATE,
    READ_ONLY,
    RECURSIVE,
    REMOUNT,
    SHARED,
    SLAVE,
    check,
    libc,
    mount,
    stay_outside,
    unshare,
)

_PROPAGATION = {"None": PRIVATE, "HostToContainer": SLAVE, "Bidirectional": SHARED}
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DETACH = 2
_SET_FLAGS, _UP = 0x8914, 0x1
_NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
_MASKED = (
    *("acpi", "asound", "kcore", "keys", "latency_stats", "timer_list", "timer_stats"),
    *("sched_debug", "scsi"),
)
_UNWRITABLE = ("bus", "fs", "irq", "sys", "sysrq-trigger")


def main(file: Path) -> None:
    """Become the container that *file* describes."""
    given = json.loads(file.read_text())
    pod, (container,) = given["pod"], given["pod"]["containers"]
    security: Mapping[str, Any] = container.get("securityContext", {})
    privileged = bool(security.get("privileged"))
    cgroup = Path(given["cgroup"])
    if not privileged:
        restrict(cgroup)
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    _unshare(pod)
    if not pod.get("hostPID"):
        stay_outside()
    root = file.parent / "root"
    _mount_image(Path(given["image"]), root)
    _build(root, pod, container, given["files"], privileged=privileged)
    _enter(root, read_only=bool(security.get("readOnlyRootFilesystem")))
    if not pod.get("hostNetwork"):
        _loopback_up()
    become(security, privileged=privileged)
    environment = given["environment"] | dict(_environment(container))
    os.execvpe(given["command"][0], given["command"], environment)


def _unshare(pod: Mapping[str, Any]) -> None:
    flags = NEW_MOUNTS | NEW_CGROUP | NEW_UTS
    for key, flag in {
        "hostIPC": NEW_IPC,
        "hostPID": NEW_PIDS,
        "hostNetwork": NEW_NETWORK,
    }.items():
        flags |= 0 if pod.get(key) else flag
    unshare(flags)


# --- files ------------------------------------------------------------------------------------


def _mount_image(image: Path, root: Path) -> None:
    """Mount the image's files at *root*, below a layer of this container's own."""
    mount("none", "/", flags=SLAVE | RECURSIVE)
    layer = root.with_name("layer")
    shutil.rmtree(layer, ignore_errors=True)
    for folder in (root, layer / "upper", layer / "work"):
        folder.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={image},upperdir={layer}/upper,workdir={layer}/work"
    mount("overlay", root, "overlay", options=options)
    mount("none", root, flags=PRIVATE)


def _build(
    root: Path,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    files: Mapping[str, Mapping[str, str]],
    *,
    privileged: bool,
) -> None:
    """Mount everything that the container sees below *root*."""
    for name in ("proc", "sys", "dev"):
        (root / name).mkdir(exist_ok=True)
    plain = NOSUID | NODEV | NOEXEC
    unwritable = 0 if privileged else READ_ONLY
    mount("proc", root / "proc", "proc", flags=plain)
    mount("sysfs", root / "sys", "sysfs", flags=plain | unwritable)
    mount("cgroup", root / "sys/fs/cgroup", "cgroup2", flags=plain | unwritable)
    if privileged:
        mount("/dev", root / "dev", flags=BIND | RECURSIVE)
    else:
        _make_dev(root / "dev")
        _hide(root)
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    mounts = sorted(container.get("volumeMounts", ()), key=lambda each: len(_parts(each)))
    for wanted in mounts:
        source = _source(root.parent, volumes[wanted["name"]], files) / wanted.get("subPath", "")
        target = _inside(root, wanted["mountPath"])
        _make_target(target, like=source)
        mount(source, target, flags=BIND | RECURSIVE)
        propagation = _PROPAGATION[wanted.get("mountPropagation", "None")]
        mount("none", target, flags=propagation | RECURSIVE)
        if wanted.get("readOnly"):
            mount("none", target, flags=REMOUNT | BIND | READ_ONLY)
    _pretend(root)


def _make_dev(dev: Path) -> None:
    mount("tmpfs", dev, "tmpfs", flags=NOSUID, options="mode=755,size=64k")
    for name, minor in _NODES.items():
        _make_node(dev / name, 1, minor)
    _make_node(dev / "tty", 5, 0)
    for name, target in {
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
        "ptmx": "pts/ptmx",
    }.items():
        (dev / name).symlink_to(target)
    for name in ("pts", "shm", "mqueue"):
        (dev / name).mkdir()
    mount("devpts", dev / "pts", "devpts", flags=NOSUID | NOEXEC, options="newinstance")
    mount("shm", dev / "shm", "tmpfs", flags=NOSUID | NODEV | NOEXEC)
    mount("mqueue", dev / "mqueue", "mqueue", flags=NOSUID | NODEV | NOEXEC)


def _make_node(path: Path, major: int, minor: int) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)


def _hide(root: Path) -> None:
    """Cover what containers are not to see, and protect what they are not to write."""
    for name in _MASKED:
        path = root / "proc" / name
        if path.is_dir():
            mount("tmpfs", path, "tmpfs", flags=READ_ONLY)
        elif path.exists():
            mount("/dev/null", path, flags=BIND)
    mount("tmpfs", root / "sys/firmware", "tmpfs", flags=READ_ONLY)
    for name in _UNWRITABLE:
        path = root / "proc" / name
        if path.exists():
            mount(path, path, flags=BIND | RECURSIVE)
            mount("none", path, flags=REMOUNT | BIND | READ_ONLY)


def _source(work: Path, volume: Mapping[str, Any], files: Mapping[str, Mapping[str, str]]) -> Path:
    """Return where the node has the volume, as kubelet provides it."""
    name = volume["name"]
    if "hostPath" in volume:
        path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type", "")
        if kind in {"", "DirectoryOrCreate"}:
            path.mkdir(parents=True, exist_ok=True)
        elif kind == "Directory" and not path.is_dir():
            raise FileNotFoundError(f"MountVolume.SetUp failed for volume {name}: no {path}")
        elif kind not in {"Directory", "File", "Socket", "CharDevice"}:
            raise NotImplementedError(f"volume {name}: type {kind}")
        return path
    folder = work / f"volume-{name}"
    folder.mkdir(exist_ok=True)
    if "configMap" in volume:
        for key, text in files[volume["configMap"]["name"]].items():
            (folder / key).write_text(text)
    elif "emptyDir" not in volume:
        raise NotImplementedError(f"volume {name}: {', '.join(volume)}")
    return folder


def _inside(root: Path, path: str) -> Path:
    """Return where *path* is below *root*, whose links lead to places below it."""
    at = root
    pending = [part for part in path.split("/") if part]
    while pending:
        part = pending.pop(0)
        step = at / part
        if step.is_symlink():
            target = step.readlink()
            pending = [*(each for each in target.parts if each != "/"), *pending]
            at = root if target.is_absolute() else at
        elif part == "..":
            at = root if at == root else at.parent
        else:
            at = step
    return at


def _make_target(target: Path, *, like: Path) -> None:
    if like.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=True)


def _parts(mount: Mapping[str, Any]) -> Sequence[str]:
    return Path(mount["mountPath"]).parts


def _pretend(root: Path) -> None:
    """Repeat in the container's /proc what a case has the kernel say (see reboot.py)."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    covered = [line.split()[4] for line in lines if line.split()[4].startswith("/proc/sys/")]
    for path in covered:
        mount(path, root / path.lstrip("/"), flags=BIND)


def _enter(root: Path, *, read_only: bool) -> None:
    os.chdir(root)
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    check(libc.syscall(number, b".", b"."), "pivot_root")
    check(libc.umount2(b".", _DETACH), "unmount the node's root")
    os.chdir("/")
    if read_only:
        mount("none", "/", flags=REMOUNT | BIND | READ_ONLY)


def _environment(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for variable in container.get("env", ()):
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if field not in {None, "spec.nodeName"}:
            raise NotImplementedError(f"the variable {variable['name']} from {field}")
        yield variable["name"], variable.get("value", "vm" if field else "")


def _loopback_up() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
