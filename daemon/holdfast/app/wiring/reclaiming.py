"""Builds the way out: who watches locks, ends what outlives its pod, and checks what was freed."""

import os

from msgspec import Struct

from holdfast.app.wiring.foundation import Foundation
from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.host.cgroup.runtimestate import RuntimeFiles
from holdfast.host.pci.reset import FunctionControl
from holdfast.host.use.look import Look
from holdfast.kubelet.books import KubeletBooks
from holdfast.model.ids import PodUid, ProcessId
from holdfast.model.reclaim.leak import HeldUp
from holdfast.reclaim.byhand import HandRelease
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.runtimes import Runtimes
from holdfast.reclaim.watcher import Watcher
from holdfast.runtime.watched import Watched


class Reclaiming(Struct, frozen=True, kw_only=True):
    """The parts that bring devices back."""

    kernel: KernelWatch
    pods: Pods
    reclaimer: Reclaimer
    resetter: Resetter
    watcher: Watcher
    hand: HandRelease


def build_reclaiming(on: Foundation, books: KubeletBooks, look: Look) -> Reclaiming:
    """Wire the watcher with all that it moves locks by."""
    settings, lane = on.settings.reclaim, on.host.lanes["pods"]
    question_timeout = on.settings.kubelet.question.timeout
    cgroups = Cgroups(on.host.root, monotonic=on.clock.monotonic)

    def holder_exited(_process: ProcessId) -> None:
        watcher.holder_exited()

    def emptied(pod: PodUid) -> None:
        watcher.pod_changed(pod)

    def device_checked() -> None:
        watcher.nudge()

    kernel = KernelWatch(
        look=look,
        pidfds=on.host.pidfds,
        clock=on.clock,
        exited=holder_exited,
        rescan=settings.foreign_scan,
        exclusive_open=on.settings.gate.exclusive_open,
    )
    pods = Pods(
        cgroups=cgroups,
        procfs=on.host.procfs,
        paths=on.host.paths,
        lane=lane,
        emptied=emptied,
    )
    runtimes = Runtimes(files=RuntimeFiles(on.host.root), lane=lane, clock=on.clock)
    reclaimer = Reclaimer(
        ledger=on.ledger,
        books=books,
        pods=pods,
        runtimes=runtimes,
        cgroups=cgroups,
        pidfds=on.host.pidfds,
        lane=lane,
        clock=on.clock,
        own_pid=os.getpid(),
        settings=settings,
        question_timeout=question_timeout,
    )
    resetter = Resetter(
        ledger=on.ledger,
        control=FunctionControl(on.host.root),
        clock=on.clock,
        settings=settings,
        ended=device_checked,
    )
    watcher = Watcher(
        ledger=on.ledger,
        inventory=on.scanner.inventory,
        books=books,
        kernel=kernel,
        pods=pods,
        reclaimer=reclaimer,
        resetter=resetter,
        clock=on.clock,
        boot=on.host.boot,
        settings=settings,
        pending_timeout=on.settings.allocate.pending_timeout,
    )
    hand = HandRelease(
        ledger=on.ledger,
        inventory=on.scanner.inventory,
        look=look,
        pods=pods,
        runtimes=runtimes,
        books=books,
        reclaimer=reclaimer,
        nudge=watcher.nudge,
        clock=on.clock,
        settings=settings,
        question_timeout=question_timeout,
    )
    return Reclaiming(
        kernel=kernel,
        pods=pods,
        reclaimer=reclaimer,
        resetter=resetter,
        watcher=watcher,
        hand=hand,
    )


def build_leaks(
    on: Foundation,
    books: KubeletBooks,
    look: Look,
    *,
    pods: Pods,
    starts: Watched[frozenset[HeldUp]],
) -> LeakedSandboxes:
    """Wire what ends a living pod's own leaking sandbox, where the operator allows that."""
    lane = on.host.lanes["pods"]
    return LeakedSandboxes(
        ledger=on.ledger,
        inventory=on.scanner.inventory,
        books=books,
        starts=starts,
        look=look,
        pods=pods,
        # Not the watcher's: each remembers since when what it is about has been so.
        runtimes=Runtimes(files=RuntimeFiles(on.host.root), lane=lane, clock=on.clock),
        cgroups=Cgroups(on.host.root, monotonic=on.clock.monotonic),
        pidfds=on.host.pidfds,
        lane=lane,
        clock=on.clock,
        settings=on.settings.reclaim,
    )
