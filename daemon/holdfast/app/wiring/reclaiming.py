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
from holdfast.reclaim.evidence import Evidence
from holdfast.reclaim.handrelease import HandRelease
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.leaks import LeakedSandboxes
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer
from holdfast.reclaim.resetter import Resetter
from holdfast.reclaim.signals import Signals
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
    settings = on.settings.reclaim

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
        cgroups=Cgroups(on.host.root, monotonic=on.clock.monotonic),
        runtimes=RuntimeFiles(on.host.root),
        procfs=on.host.procfs,
        paths=on.host.paths,
        lane=on.host.lanes["pods"],
        emptied=emptied,
    )
    evidence = Evidence(
        ledger=on.ledger,
        books=books,
        pods=pods,
        clock=on.clock,
        settings=settings,
        question_timeout=on.settings.kubelet.question.timeout,
        own_pid=os.getpid(),
    )
    reclaimer = Reclaimer(
        ledger=on.ledger,
        evidence=evidence,
        signals=Signals(evidence=evidence, pods=pods, pidfds=on.host.pidfds),
        clock=on.clock,
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
        settings=settings,
        pending_timeout=on.settings.allocate.pending_timeout,
    )
    hand = HandRelease(
        ledger=on.ledger,
        inventory=on.scanner.inventory,
        look=look,
        pods=pods,
        evidence=evidence,
        reclaimer=reclaimer,
        clock=on.clock,
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
    return LeakedSandboxes(
        ledger=on.ledger,
        inventory=on.scanner.inventory,
        books=books,
        starts=starts,
        look=look,
        pods=pods,
        pidfds=on.host.pidfds,
        clock=on.clock,
        settings=on.settings.reclaim,
    )
