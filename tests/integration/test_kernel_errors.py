"""A kernel that answers with errors: they mean "unknown", never "free", "gone" or "over"."""

import asyncio
import errno
import mmap
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fakes.faultydisk import preloaded
from fakes.inuse import device_use, look_at
from fakes.opener import opener, stranger
from fakes.stage import end, pod, stage
from holdfast.errors import HostError
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.files.wholefile import FileId
from holdfast.host.pci.sysfs import Snapshot, Sysfs
from holdfast.host.pci.vfio import EnableLevels
from holdfast.host.proc.procfs import Procfs, SandboxRoles
from holdfast.host.root import HostRoot
from holdfast.ledger.instance import PluginFolderLock
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.use.free import Freedom, judge_kernel
from holdfast.model.use.holders import Sandbox
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.lane import Lane
from holdfast.vendors.tpu.chips import tpu_devices
from simulated.node import SimulatedNode
from simulated.pods import Phase

_ERRORS = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.ESTALE)
_AREAS = ("node/", "node/proc/", "node/sys/", "node/sys/fs/cgroup", "node/dev/", "dp")
_TRUE = [Freedom.IN_USE, Freedom.IN_USE, Freedom.FREE, Freedom.IN_USE, Freedom.IN_USE]
_UID = PodUid("11111111-2222-3333-4444-555555555555")


class _Errors:
    """What the kernel answers to a process that is started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._folder, file = folder, folder / "errors"
        if not file.exists():
            file.write_bytes(bytes(8192))
            library = str(preloaded("faultykernel.c", folder))
            self.environment = {"LD_PRELOAD": library, "FAULTY_KERNEL": str(file)}
        with file.open("r+b") as opened:
            self._order = mmap.mmap(opened.fileno(), 0)

    def come(self, rng: random.Random, rates: Sequence[float] = (0.03, 0.2, 0.6, 1.0)) -> None:
        """Have calls fail: as many, where and by which errors *rng* says; of rate 0 none."""
        where = f"{self._folder}/{rng.choice(_AREAS)}".encode()
        errors, rate = rng.choices(_ERRORS, k=16), int(65536 * rng.choice(rates))
        struct.pack_into("18I100s", self._order, 0, rate, rng.getrandbits(32), *errors, where)


@pytest.mark.parametrize("seed", range(3))
async def test_the_daemon_outlives_errors_and_all_is_well_when_they_are_over(
    short_path: Path, seed: int
) -> None:
    rng, errors = random.Random(seed), _Errors(short_path)
    async with stage(short_path, own_process=True, environment=errors.environment) as node:
        a, leaves = await node.run(pod("a")), await node.run(pod("b", orphan=1))
        await node.end(leaves)
        left = await node.orphan(leaves)
        waits = await node.submit(pod("c", chips=3))
        for _ in range(12):
            errors.come(rng)
            await node.for_some_beats(2)
            errors.come(rng, (0.0,))
            assert (a.phase, waits.phase) == (Phase.RUNNING, Phase.PENDING)
            assert set(await node.locks() or node.ids(a)) >= node.ids(a)
        end(left)
        await node.running(waits)
        await node.until(lambda: len(node.healthy()) == 4, "all of it to be offered")
        assert set((await node.owners()).values()) == {a.uid, waits.uid}
        assert "registering again" not in node.log


@pytest.mark.parametrize("seed", range(3))
def test_no_error_makes_a_look_say_that_nobody_is_there(short_path: Path, seed: int) -> None:
    errors = _Errors(short_path)
    (short_path / "dp").mkdir()
    (short_path / "dp/x.sock").touch()
    node = SimulatedNode(short_path / "node")
    node.tree.accel("0000:00:1f.0", 0)
    held = (node.node("/dev/vfio/10"), node.node("/dev/accel0"))
    with opener(*held, command="qemu-kvm") as holder, stranger(node, "/dev/vfio/11") as other:
        node.add_pod(_UID)
        node.enter(_UID, "main", holder.pid)
        for address in ("0000:00:05.0", "0000:00:06.0", "0000:00:08.0"):
            node.tree.write(address, "enable", "1")  # the last was left so
        told = subprocess.run(
            [sys.executable, __file__, str(short_path), str(seed), str(holder.pid)],
            env={**os.environ, **errors.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.lives
    node.close()
    assert told.returncode == 0, told.stderr


async def _look(folder: Path, seed: int, pid: int) -> None:
    """Look at the node in *folder* while calls fail; *pid*, of a pod, has some of its devices."""
    rng, errors, root = random.Random(seed), _Errors(folder), HostRoot.under(folder / "node")
    lane, clock, procfs = Lane("looks", deadline=60.0), SystemClock(), Procfs(root)
    lock, sysfs = PluginFolderLock(folder / "dp"), Sysfs(root)
    chips = tpu_devices(Snapshot(root))
    taken, names = [chips[0], chips[1], chips[4]], {each.name for each in chips}
    process = ProcessId(pid, procfs.start_ticks(pid) or 0)
    levels = EnableLevels(sysfs)
    levels.learn(chips[3].functions)
    file, old = FileId.of(socket := folder / "dp/x.sock"), look_at(root, lane)
    await old.scan(taken, {})
    refused = 0
    use = device_use(old, root, clock)
    for turn in range(60):
        look = old if turn % 3 else look_at(root, lane)
        use = use if turn % 4 else device_use(look, root, clock)
        if turn % 2:
            await use.facts(taken)  # so that it knows who has them, and looks at these alone
        errors.come(rng)
        lock.keep()
        asks: tuple[tuple[Callable[[], object], object], ...] = (
            (lambda: Cgroups(root).pod(_UID).populated is False, False),  # type: ignore[union-attr]
            (lambda: FileId.of(socket), file),
            (lambda: procfs.has_ended(process), False),
            (lambda: SandboxRoles(procfs, seconds=60.0).of(pid), Sandbox.MACHINE),
            (lambda: {each.name for each in tpu_devices(Snapshot(root))}, names),
            (lambda: levels.of(chips[3].functions) is None, False),
            *[(lambda: sysfs.function(chips[3].functions[0]) is None, False)] * 9,
        )
        for ask, told in asks:
            try:
                assert ask() == told
            except HostError:
                refused += 1
        enabled = await look.enabled(taken)
        for facts in (
            await look.scan(taken, {}),
            *[await look.scan(taken, {}, pids=[pid]) for _ in range(12)],
            await use.facts(taken),
            await use.known(taken, {}, enabled=enabled, to_free=names),
        ):
            assert all(judge_kernel(of).freedom is not Freedom.FREE for of in facts.values()), facts
        errors.come(rng, (0.0,))
        assert levels.of(chips[3].functions).above == ()
        shown = await look.scan(chips, {})
        assert [judge_kernel(shown[each.name]).freedom for each in chips] == _TRUE
    assert refused, "no call failed"
    lane.close()


if __name__ == "__main__":
    asyncio.run(_look(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
