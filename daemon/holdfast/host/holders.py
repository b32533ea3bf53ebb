"""Which processes have a device open or mapped: one pass through /proc."""

import errno
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.host.cgroups import cgroup_of
from holdfast.host.procfs import Procfs
from holdfast.host.root import HostRoot
from holdfast.model.cgroup_names import pod_of
from holdfast.model.ids import DeviceName, PciAddress, ProcessId
from holdfast.model.use import Grip, Holder, Scan, ScanTarget

_MOST_GAPS = 8
_DEVICE_FD = "[vfio-device]"


class HolderScan:
    """Scans /proc below one root. It blocks for as long as it takes: run it on a lane.

    Files are matched by device number, never by the text of their path: a node may be mounted
    under another name. What vanishes while it is read is gone, and no gap.
    """

    def __init__(self, root: HostRoot) -> None:
        """Scan below *root*'s proc folder."""
        self._root = root
        self._proc = str(root.proc)
        self._procfs = Procfs(root)

    def scan(
        self,
        targets: Sequence[ScanTarget],
        *,
        pids: Iterable[int] | None = None,
        maps: bool = False,
    ) -> Scan:
        """Return who holds each of *targets*, among *pids* (None: every process).

        *maps*: look at mappings too, for holders that have closed everything.
        """
        started = time.monotonic()
        search = _Search(self._root, self._proc, targets)
        gaps: list[str] = [] if pids is not None else list(self._procfs.blind_spots())
        wanted = self._procfs.pids() if pids is None else list(pids)
        for pid in wanted:
            try:
                search.files(pid)
                if maps:
                    search.maps(pid)
            except PermissionError as error:
                gaps.append(_gap(pid, error))
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.ESRCH}:
                    gaps.append(_gap(pid, error))
        holders, unattributed = search.found(self._procfs)
        return Scan(
            holders=holders,
            unattributed=unattributed,
            gaps=tuple(gaps[:_MOST_GAPS]),
            processes=len(wanted),
            seconds=time.monotonic() - started,
        )


class _Search:
    """Collects, for one scan, which pid has which grip on which device."""

    def __init__(self, root: HostRoot, proc: str, targets: Sequence[ScanTarget]) -> None:
        self._root = root
        self._proc = proc
        self._by_rdev: dict[int, list[DeviceName]] = defaultdict(list)
        self._by_address: dict[PciAddress, list[DeviceName]] = defaultdict(list)
        for target in targets:
            for rdev in target.rdevs:
                self._by_rdev[rdev].append(target.device)
            for address in target.addresses:
                self._by_address[address].append(target.device)
        self._grips: dict[tuple[int, DeviceName], set[Grip]] = defaultdict(set)
        self._loose: dict[int, set[Grip]] = defaultdict(set)

    def files(self, pid: int) -> None:
        """Look at the open files of a process."""
        folder = f"{self._proc}/{pid}/fd"
        names = os.listdir(folder)
        if names:
            self._folder(pid, folder, names)
            return
        # A leader that has exited shows no files, while its threads still have them.
        for task in os.listdir(f"{self._proc}/{pid}/task"):
            if task != str(pid):
                folder = f"{self._proc}/{pid}/task/{task}/fd"
                self._folder(pid, folder, os.listdir(folder))

    def maps(self, pid: int) -> None:
        """Look at what a process has mapped."""
        with open(f"{self._proc}/{pid}/maps", "rb") as file:
            text = file.read()
        if b"vfio" not in text and b"/dev/" not in text:
            return
        for line in text.splitlines():
            path = line.split(None, 5)[5:]
            if not path:
                continue
            if _DEVICE_FD.encode() in path[0]:
                self._loose[pid].add(Grip.MAPPED)
            elif path[0].startswith(b"/dev/"):
                self._mapped_node(pid, path[0].decode(errors="replace"))

    def found(
        self, procfs: Procfs
    ) -> tuple[dict[DeviceName, tuple[Holder, ...]], tuple[Holder, ...]]:
        """Return the holders of each device, and those whose device is not known."""
        self._attribute_by_group()
        holders: dict[DeviceName, list[Holder]] = defaultdict(list)
        for (pid, device), grips in sorted(self._grips.items()):
            holder = self._describe(procfs, pid, grips)
            if holder is not None:
                holders[device].append(holder)
        loose = [self._describe(procfs, pid, grips) for pid, grips in sorted(self._loose.items())]
        return (
            {device: tuple(found) for device, found in holders.items()},
            tuple(each for each in loose if each is not None),
        )

    def _folder(self, pid: int, folder: str, names: list[str]) -> None:
        readlink, stat = os.readlink, os.stat
        by_rdev = self._by_rdev
        for name in names:
            path = f"{folder}/{name}"
            try:
                link = readlink(path)
                if link[0] == "/":
                    rdev = stat(path).st_rdev
                    if rdev and rdev in by_rdev:
                        for device in by_rdev[rdev]:
                            self._grips[pid, device].add(Grip.NODE)
                elif link.endswith(_DEVICE_FD):
                    self._device_fd(pid, folder, name)
            except FileNotFoundError:  # closed meanwhile
                continue

    def _device_fd(self, pid: int, folder: str, name: str) -> None:
        """Attribute a VFIO device fd through fdinfo, where the kernel (6.18) says whose it is."""
        info = f"{folder.removesuffix('/fd')}/fdinfo/{name}"
        for line in Path(info).read_text(errors="replace").splitlines():
            if line.startswith("vfio-device-syspath:"):
                address = PciAddress(line.rsplit("/", 1)[-1].strip())
                for device in self._by_address.get(address, ()):
                    self._grips[pid, device].add(Grip.DEVICE_FD)
                return
        self._loose[pid].add(Grip.DEVICE_FD)

    def _mapped_node(self, pid: int, path: str) -> None:
        try:
            rdev = self._root.node(path.removesuffix(" (deleted)")).stat().st_rdev
        except OSError:
            return
        for device in self._by_rdev.get(rdev, ()):
            self._grips[pid, device].add(Grip.MAPPED)

    def _attribute_by_group(self) -> None:
        """Give a process's device fd to the one device whose group node it also has open."""
        for pid, grips in list(self._loose.items()):
            devices = [device for (holder, device) in self._grips if holder == pid]
            if len(devices) == 1:
                self._grips[pid, devices[0]] |= grips
                del self._loose[pid]

    def _describe(self, procfs: Procfs, pid: int, grips: set[Grip]) -> Holder | None:
        facts = procfs.process(pid)
        if facts is None:
            return None
        try:
            cgroup = cgroup_of(Path(f"{self._proc}/{pid}/cgroup").read_text(errors="replace"))
            uid = os.stat(f"{self._proc}/{pid}").st_uid
        except OSError:
            return None
        pod, container = pod_of(cgroup)
        return Holder(
            process=ProcessId(pid, facts.process.start_ticks),
            command=facts.comm,
            grips=frozenset(grips),
            cgroup=cgroup,
            pod=pod,
            container=container,
            uid=uid,
        )


def _gap(pid: int, error: OSError) -> str:
    return f"the files of pid {pid} cannot be read: {error.strerror}"
