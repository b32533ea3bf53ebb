"""A trial of a device on a tree of plain files: what is reset, bound again, and found to answer."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.books import X, Y, allocated, device_lock, device_of, name
from fakes.ledgers import ledger_in
from fakes.observers import Unobserved
from holdfast.errors import HostError
from holdfast.host.pci.reset import FunctionControl, WriteOutcome
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import DeviceLock, LockState
from holdfast.model.book.draft import Draft
from holdfast.model.book.queue import settle
from holdfast.model.devices import Device, DeviceNode, pci_key
from holdfast.model.ids import BootId, PciAddress, PodUid
from holdfast.model.reclaim.reset import FunctionState, ResetPolicy
from holdfast.model.use.free import KernelFacts, OpenOutcome
from holdfast.reclaim.resetter import Findings, Resetter, Trial
from holdfast.runtime.watched import Nudges, Watched
from holdfast.settings.sections import ReclaimSettings
from manual_clock import ManualClock
from simulated.hosttree import HostTree
from waiting import until

ONE, TWO = PciAddress("0000:c0:02.0"), PciAddress("0000:c0:02.1")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[HostTree]:
    tree = HostTree(tmp_path)
    for address, group in ((ONE, 7), (TWO, 8)):
        tree.tpu(address, group=group)
        folder = tree.path(address)
        (folder / "reset_method").write_text("flr bus\n")
        (folder / "reset").write_text("")
        (folder / "config").write_bytes(b"\xe0\x1a\x76\x00")
        (folder / "driver_override").write_text("vfio-pci\n")
    (tree.folder / "sys/bus/pci/drivers_probe").write_text("")
    yield tree
    tree.close()


def _chip(tree: HostTree, *functions: PciAddress) -> Device:
    paths = {"/dev/vfio/7", "/dev/vfio/8"}
    return device_of(
        name("0000:c0:02"),
        pci_key(ONE),
        pci_key(TWO),
        nodes=tuple(
            DeviceNode(path=path, rdev=tree.node(path).stat().st_rdev) for path in sorted(paths)
        ),
        functions=functions or (ONE, TWO),
    )


def _try(
    tree: HostTree,
    device: Device | None = None,
    *,
    policy: ResetPolicy = ResetPolicy.AFTER_FORCED_RELEASE,
    rebind: bool = False,
    idle: bool = True,
    wanted: Callable[[], bool] = lambda: True,
    control: FunctionControl | None = None,
) -> Findings:
    return Trial(
        control=control or FunctionControl(tree.root),
        device=device or _chip(tree),
        policy=policy,
        rebind=rebind,
        idle=idle,
        wanted=wanted,
    ).run()


def _resets(tree: HostTree) -> list[str]:
    return [each for each in (ONE, TWO) if (tree.path(each) / "reset").read_text()]


def test_every_function_of_a_chip_is_reset_and_checked(tree: HostTree) -> None:
    findings = _try(tree)
    assert findings.problem == ""
    assert _resets(tree) == [ONE, TWO]
    assert [(each.step, each.outcome) for each in findings.did] == [
        ("reset", "done"),
        ("reset", "done"),
        ("verify", "done"),
    ]


def test_nothing_is_reset_unless_asked_for(tree: HostTree) -> None:
    assert _try(tree, policy=ResetPolicy.NEVER).problem == ""
    assert _resets(tree) == []


def test_nothing_is_reset_that_is_not_proven_idle(tree: HostTree) -> None:
    assert _try(tree, idle=False).problem == ""
    assert _resets(tree) == []


def test_nothing_is_reset_whose_lock_has_moved_meanwhile(tree: HostTree) -> None:
    assert _try(tree, wanted=lambda: False).problem == ""
    assert _resets(tree) == []


def test_a_function_that_is_enabled_is_not_reset(tree: HostTree) -> None:
    tree.write(ONE, "enable", "1")
    _try(tree)
    assert _resets(tree) == [TWO]


def test_nothing_is_reset_while_a_group_cannot_be_kept_from_others(tree: HostTree) -> None:
    chip = _chip(tree)
    wrong = replace(chip.nodes[1], rdev=chip.nodes[1].rdev + 1)
    for nodes in ((), (chip.nodes[0], wrong)):
        assert _try(tree, replace(chip, nodes=nodes)).problem == ""
        assert _resets(tree) == []


def test_each_group_is_open_while_its_function_is_reset(tree: HostTree) -> None:
    seen = []

    def look() -> bool:
        seen.append((tree.in_use("/dev/vfio/7"), tree.in_use("/dev/vfio/8")))
        return True

    _try(tree, wanted=look)
    assert seen == [(True, True), (True, True)]
    assert not tree.in_use("/dev/vfio/7")


def test_a_reset_that_the_kernel_refuses_is_a_failure(tree: HostTree) -> None:
    (tree.path(TWO) / "reset").unlink()
    (tree.path(TWO) / "reset").mkdir()
    findings = _try(tree)
    assert f"{TWO} cannot be reset" in findings.problem
    assert ("reset", "failed") in [(each.step, each.outcome) for each in findings.did]


def test_a_function_that_stops_answering_is_found_out(tree: HostTree) -> None:
    (tree.path(TWO) / "config").write_bytes(b"\xff" * 4)
    assert f"{TWO} does not answer" in _try(tree).problem


def test_a_function_off_vfio_is_found_out_and_left_alone_by_default(tree: HostTree) -> None:
    tree.unbind(TWO)
    tree.write(TWO, "driver_override", "(null)")
    assert f"{TWO} is bound to no driver" in _try(tree, _chip(tree, ONE)).problem
    assert (tree.folder / "sys/bus/pci/drivers_probe").read_text() == ""


def test_a_function_that_a_rescan_left_without_a_driver_is_offered_to_vfio_where_allowed(
    tree: HostTree,
) -> None:
    tree.unbind(TWO)
    tree.write(TWO, "driver_override", "(null)")
    findings = _try(tree, _chip(tree, ONE), rebind=True)
    assert (tree.folder / "sys/bus/pci/drivers_probe").read_text() == TWO
    assert (tree.path(TWO) / "driver_override").read_text() == "vfio-pci"
    assert ("rebind", "done") in [(each.step, each.outcome) for each in findings.did]
    assert "bound to no driver" in findings.problem, "plain files bind nothing"


def test_no_function_is_bound_again_whose_lock_has_moved_or_that_has_a_driver(
    tree: HostTree,
) -> None:
    tree.unbind(TWO)
    tree.write(TWO, "driver_override", "(null)")
    _try(tree, rebind=True, wanted=lambda: False)
    tree.bind(TWO, "nvme")
    _try(tree, rebind=True)
    assert (tree.folder / "sys/bus/pci/drivers_probe").read_text() == ""


def test_what_a_function_lacks_is_told_apart(tree: HostTree) -> None:
    control = FunctionControl(tree.root)
    (tree.path(ONE) / "reset_method").unlink()
    assert control.state_of(ONE).methods is None, "before Linux 5.15"
    (tree.path(ONE) / "reset").unlink()
    assert control.state_of(ONE).methods == ()
    assert control.reset(ONE).written is WriteOutcome.UNSUPPORTED
    (tree.path(ONE) / "config").unlink()
    assert control.state_of(ONE).vendor is None
    assert not control.state_of(PciAddress("0000:00:1f.0")).present


def test_a_group_that_cannot_be_opened_is_not_held(tree: HostTree) -> None:
    chip = _chip(tree)
    missing = DeviceNode(path="/dev/vfio/99", rdev=1)
    with FunctionControl(tree.root).holding((*chip.nodes, missing)) as opened:
        assert opened is OpenOutcome.UNAVAILABLE


class _Busy(FunctionControl):
    """Somebody has a group open, as the kernel says of each open."""

    def holding(
        self, nodes: Sequence[DeviceNode]
    ) -> contextlib.AbstractContextManager[OpenOutcome]:
        return contextlib.nullcontext(OpenOutcome.BUSY)


def test_a_device_whose_group_somebody_has_open_is_not_given_away(tree: HostTree) -> None:
    findings = _try(tree, control=_Busy(tree.root))
    assert "cannot be opened (busy)" in findings.problem
    assert _resets(tree) == []


class _Broken(FunctionControl):
    """Cannot look at any function while it is `broken`."""

    broken = True

    def state_of(self, address: PciAddress) -> FunctionState:
        if self.broken:
            raise HostError(f"cannot read {address}: Input/output error")
        return super().state_of(address)


@dataclass
class _Scene:
    """A resetter, and the lock of the chip, whose holder was ended."""

    resetter: Resetter
    ledger: Ledger
    control: _Broken
    clock: ManualClock
    chip: Device

    @property
    def lock(self) -> DeviceLock:
        return self.ledger.book.value.locks[self.chip.name]

    def state(self) -> LockState:
        """Return how its lock stands now."""
        return self.lock.state

    def clears(self, lock: DeviceLock | None = None) -> str | None:
        """Ask whether the chip may become free, of which the kernel shows nobody who has it."""
        return self.resetter.clears(lock or self.lock, self.chip, KernelFacts(holders=()))

    async def tried(self, lock: DeviceLock | None = None) -> None:
        """Begin a trial, and wait for its end."""
        assert self.clears(lock) is None, "it is tried first"
        await until(lambda: not self.resetter.at_work(self.chip.keys), what="its trial")


@contextlib.asynccontextmanager
async def _scene(
    tree: HostTree,
    folder: Path,
    *,
    pod: PodUid = X,
    state: LockState | None = LockState.RECLAIMING,
) -> AsyncIterator[_Scene]:
    """Let the chip's lock be of *pod* and in *state*; None: the chip is free."""
    chip, clock, boot = _chip(tree), ManualClock(), BootId("boot")

    def decide(draft: Draft) -> None:
        devices = {chip.name.id: chip.keys}
        granted = allocated(devices, resource=chip.name.resource, pod=pod, active=True)(draft)
        settle(draft)
        if state is not LockState.HELD:
            draft.end(draft.book.allocations[granted.id], "its pod is over")
            draft.move(chip.name, LockState.RECLAIMING, "ending pid 7")
            if state is not LockState.RECLAIMING:
                draft.move(chip.name, state or LockState.FREE, "for this test")

    async with ledger_in(folder / "state", clock, boot=boot) as ledger:
        await ledger.apply(decide)
        control = _Broken(tree.root)
        control.broken = False
        resetter = Resetter(
            ledger=ledger,
            control=control,
            clock=clock,
            settings=Watched(ReclaimSettings(reset="afterForcedRelease")),
            nudges=Nudges(),
            count=Unobserved().reclaimed,
        )
        yield _Scene(resetter=resetter, ledger=ledger, control=control, clock=clock, chip=chip)
        resetter.close()


async def test_what_a_trial_found_is_no_word_about_another_part_of_a_locks_life(
    tree: HostTree, tmp_path: Path
) -> None:
    """A pod may have had the device since, and been forced to let go of it too."""
    async with _scene(tree, tmp_path) as on:
        await on.tried()
        later = replace(on.lock, fence=on.lock.fence + 1)
        assert await on.resetter.detains(later) == ""
        await on.tried(later)
        assert await on.resetter.detains(later) == ""
        assert on.clears(later) is not None


@pytest.mark.parametrize(
    ("pod", "state", "reset"),
    [
        (X, LockState.RECLAIMING, True),
        (X, LockState.QUARANTINED, True),
        (X, LockState.HELD, False),
        (X, None, False),
        (Y, LockState.RECLAIMING, False),
    ],
)
async def test_nothing_is_reset_that_is_not_left_of_the_same_pod_by_then(
    tree: HostTree, tmp_path: Path, pod: PodUid, state: LockState | None, reset: bool
) -> None:
    """The lane has its turn later, and the next pod of the device may have begun to use it."""
    async with _scene(tree, tmp_path, pod=pod, state=state) as on:
        judged = device_lock(
            on.chip.name, *on.chip.keys, state=LockState.RECLAIMING, since=0.0, pod=X
        )
        await on.tried(judged)
        assert bool(_resets(tree)) is reset


async def test_what_a_check_found_is_asked_for_again_after_a_while(
    tree: HostTree, tmp_path: Path
) -> None:
    async with _scene(tree, tmp_path) as on:
        await on.tried()
        assert await on.resetter.detains(on.lock) == ""
        on.clock.shift(10.0)
        await on.tried()
        assert await on.resetter.detains(on.lock) == ""
        assert on.clears() is not None


async def test_a_function_that_cannot_be_looked_at_is_kept_and_tried_again(
    tree: HostTree, tmp_path: Path
) -> None:
    async with _scene(tree, tmp_path) as on:
        on.control.broken = True
        await on.tried()
        assert "cannot be checked" in await on.resetter.detains(on.lock)
        assert on.state() is LockState.QUARANTINED
        assert on.clears() is None
        on.control.broken = False
        assert "cannot be checked" in await on.resetter.detains(on.lock), "not at once"
        on.clock.shift(float(ReclaimSettings().retry.last))
        assert await on.resetter.detains(on.lock) == "its functions are tried again"
        assert on.state() is LockState.RECLAIMING
        await on.tried()
        assert await on.resetter.detains(on.lock) == ""
        assert on.clears() is not None
