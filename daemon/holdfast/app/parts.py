"""Builds the parts of the daemon from the settings; what depends on what is read off here."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.allocation.allocator import Allocator
from holdfast.allocation.cdi import CdiSpecs
from holdfast.allocation.gate import Gate, GateTimes
from holdfast.allocation.granting import Granting, TpuInputs
from holdfast.allocation.preference import Preference
from holdfast.app.drift import DriftTimes, DriftWatch
from holdfast.discovery.inventory import Offered
from holdfast.discovery.scanner import Scanner
from holdfast.discovery.tpu_env import read_tpu_env, tpu_env_path
from holdfast.host.boot import boot_id
from holdfast.host.cdi import SpecFolder
from holdfast.host.cgroups import Cgroups
from holdfast.host.inotify import PathWatcher
from holdfast.host.look import Look
from holdfast.host.peer import peer_of
from holdfast.host.pidfd import Pidfds
from holdfast.host.procfs import Procfs
from holdfast.host.reset import FunctionControl
from holdfast.host.root import HostRoot
from holdfast.host.runtimestate import RuntimeFiles
from holdfast.host.sysfs import Sysfs
from holdfast.host.vfio import node_rdev
from holdfast.kubelet.accounts import Accounts, QuestionTimes
from holdfast.kubelet.checkpoint import FileId
from holdfast.kubelet.enrolment import EnrolmentTimes
from holdfast.kubelet.folder import FolderWatch
from holdfast.kubelet.offering import Offering
from holdfast.kubelet.plugin import DevicePlugin
from holdfast.kubelet.podresources import PodResources
from holdfast.kubelet.registrar import Registrar
from holdfast.kubelet.traffic import Traffic
from holdfast.ledger.ledger import Ledger
from holdfast.model.ids import BootId, DeviceName, PodUid, ProcessId, ResourceName
from holdfast.model.promise import names_of_ours
from holdfast.model.reclaim import ReclaimTimes
from holdfast.model.reset import ResetPolicy
from holdfast.model.tpu_env import TpuHostFacts
from holdfast.reclaim.byhand import HandRelease
from holdfast.reclaim.kernel import KernelWatch
from holdfast.reclaim.leaks import LeakedSandboxes, LeakRules
from holdfast.reclaim.pods import Pods
from holdfast.reclaim.reclaimer import Reclaimer, ReclaimRules
from holdfast.reclaim.resetter import ResetRules, Resetter
from holdfast.reclaim.runtimes import Runtimes
from holdfast.reclaim.watcher import Watcher, WatchTimes
from holdfast.runtime.clock import Clock
from holdfast.runtime.lane import Lane
from holdfast.settings import Settings

_LANES = {"ledger": 30.0, "scan": 30.0, "discovery": 30.0, "cdi": 5.0, "pods": 10.0, "kubelet": 5.0}
"""Each lane with its deadline in seconds; a call that takes longer is a fact for /readyz."""

Called = Callable[[str, str, str, float], None]
"""Hears of one of kubelet's calls: the resource, the call's name, its status code, its seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """What every other part reads the node through."""

    root: HostRoot
    procfs: Procfs
    boot: BootId
    paths: PathWatcher
    pidfds: Pidfds
    lanes: Mapping[str, Lane]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The running daemon."""

    host: Hosts
    ledger: Ledger
    specs: CdiSpecs
    scanner: Scanner
    folder: FolderWatch
    accounts: Accounts
    offering: Offering
    registrar: Registrar
    kernel: KernelWatch
    watcher: Watcher
    look: Look
    gate: Gate
    reclaimer: Reclaimer
    resetter: Resetter
    leaks: LeakedSandboxes
    hand: HandRelease
    drift: DriftWatch


def host_root(settings: Settings) -> HostRoot:
    """Return where the host's folders are."""
    host = settings.host
    return HostRoot(
        sys=Path(host.sys),
        proc=Path(host.proc),
        dev=Path(host.dev),
        cgroup=Path(host.cgroup),
        etc=Path(host.etc),
        run=Path(host.run),
    )


def build_host(settings: Settings) -> Hosts:
    """Open what the node is read through; the loop must run."""
    root = host_root(settings)
    procfs = Procfs(root)
    return Hosts(
        root=root,
        procfs=procfs,
        boot=boot_id(root),
        paths=PathWatcher(),
        pidfds=Pidfds(procfs),
        lanes={name: Lane(name, deadline=deadline) for name, deadline in _LANES.items()},
    )


def build(
    settings: Settings, host: Hosts, ledger: Ledger, clock: Clock, *, called: Called
) -> Parts:
    """Wire everything; nothing runs yet. *called* hears of each of kubelet's calls."""

    def names_wanted() -> bool:
        # Pods that were promised names need them also where new ones get their nodes by path.
        return settings.device_list_strategy == "cdi" or any(
            entry.resource in scanner.inventory.value.resources and names_of_ours(entry)
            for entry in accounts.view.value.entries
        )

    specs = CdiSpecs(
        SpecFolder(Path(settings.cdi.spec_dir), prefix=settings.kubelet.socket_prefix),
        lane=host.lanes["cdi"],
        wanted=names_wanted,
    )
    scanner = _scanner(settings, host, ledger=ledger, specs=specs, clock=clock)
    folder = FolderWatch(
        folder=Path(settings.kubelet.plugin_dir),
        prefix=settings.kubelet.socket_prefix,
        paths=host.paths,
        clock=clock,
        interval=settings.kubelet.poll,
    )
    traffic = Traffic()
    accounts, offering = _books(
        settings,
        host,
        ledger=ledger,
        scanner=scanner,
        folder=folder,
        traffic=traffic,
        clock=clock,
    )
    look = Look(host.root, host.lanes["scan"])
    watcher, kernel, reclaimer, resetter, hand = _watcher(
        settings,
        host,
        ledger=ledger,
        scanner=scanner,
        accounts=accounts,
        look=look,
        clock=clock,
    )
    gate = Gate(
        ledger=ledger,
        inventory=scanner.inventory,
        books=accounts,
        look=look,
        looked=watcher.looked,
        obstacle=watcher.obstacle,
        at_work=resetter.at_work,
        clock=clock,
        times=GateTimes(
            wait=settings.gate.wait,
            poll=settings.gate.poll,
            caller_lookup=settings.gate.caller_lookup,
        ),
        published=lambda: specs.published,
        exclusive_open=settings.gate.exclusive_open,
    )
    allocator = Allocator(
        ledger=ledger,
        inventory=scanner.inventory,
        granting=_granting(settings, host, specs),
        node_rdev=lambda path: node_rdev(host.root, path),
        checkpoint_at=lambda: _modified(folder.checkpoint),
        commit_timeout=settings.allocate.commit_timeout,
    )
    preference = Preference(ledger=ledger, inventory=scanner.inventory)

    def plugin(resource: ResourceName) -> DevicePlugin:
        made = DevicePlugin(
            resource=resource,
            offers=offering.offers,
            allocating=allocator,
            gating=gate,
            preferring=preference,
            traffic=traffic,
        )
        made.observe = partial(called, resource)
        return made

    registrar = Registrar(
        offers=offering.offers,
        plugin=plugin,
        folder=folder,
        prefix=settings.kubelet.socket_prefix,
        clock=clock,
        times=EnrolmentTimes(register=settings.kubelet.register_timeout),
    )
    return Parts(
        host=host,
        ledger=ledger,
        specs=specs,
        scanner=scanner,
        folder=folder,
        accounts=accounts,
        offering=offering,
        registrar=registrar,
        kernel=kernel,
        watcher=watcher,
        look=look,
        gate=gate,
        reclaimer=reclaimer,
        resetter=resetter,
        leaks=_leaks(
            settings,
            host,
            ledger=ledger,
            scanner=scanner,
            accounts=accounts,
            look=look,
            gate=gate,
            clock=clock,
        ),
        hand=hand,
        drift=DriftWatch(
            ledger=ledger,
            view=accounts.view,
            inventory=scanner.inventory,
            offers=offering.offers,
            kernel=kernel,
            preference=preference,
            clock=clock,
            times=DriftTimes(
                settle=settings.drift.settle,
                beat=settings.drift.beat,
                lock_patience=settings.allocate.pending_timeout,
            ),
        ),
    )


def _scanner(
    settings: Settings, host: Hosts, *, ledger: Ledger, specs: CdiSpecs, clock: Clock
) -> Scanner:
    def held() -> tuple[DeviceName, ...]:
        return tuple(ledger.book.value.locks)

    tpu = settings.tpu
    return Scanner(
        host.root,
        Sysfs(host.root),
        lane=host.lanes["discovery"],
        clock=clock,
        offered=Offered(
            tpu=ResourceName(tpu.resource_name) if tpu.enabled else None,
            pools=tuple(pool.spec() for pool in settings.pools),
        ),
        held=held,
        before=specs.publish,
        rescan=settings.discovery.rescan,
        debounce=settings.discovery.debounce,
        held_look=settings.discovery.held_check,
    )


def _books(
    settings: Settings,
    host: Hosts,
    *,
    ledger: Ledger,
    scanner: Scanner,
    folder: FolderWatch,
    traffic: Traffic,
    clock: Clock,
) -> tuple[Accounts, Offering]:
    """Build the two that need each other: the lists are sent again so that kubelet writes."""
    question = settings.kubelet.question

    def peer(socket: Path) -> ProcessId | None:
        return peer_of(socket, host.procfs)

    def resend() -> None:
        offering.resend()

    accounts = Accounts(
        folder=folder,
        pods=PodResources(Path(settings.kubelet.pod_resources_socket)),
        traffic=traffic,
        peer=peer,
        resend=resend,
        active=lambda: bool(ledger.book.value.locks),
        lane=host.lanes["kubelet"],
        clock=clock,
        times=QuestionTimes(
            min_interval=question.min_interval,
            idle_interval=question.idle_interval,
            settle=question.settle,
            answer=question.timeout,
        ),
    )
    offering = Offering(
        ledger=ledger,
        inventory=scanner.inventory,
        view=accounts.view,
        clock=clock,
        withhold_after=settings.withhold_after,
    )
    return accounts, offering


def _watcher(
    settings: Settings,
    host: Hosts,
    *,
    ledger: Ledger,
    scanner: Scanner,
    accounts: Accounts,
    look: Look,
    clock: Clock,
) -> tuple[Watcher, KernelWatch, Reclaimer, Resetter, HandRelease]:
    rules = settings.reclaim
    times = ReclaimTimes(
        term_grace=rules.term_grace,
        kill_grace=rules.kill_grace,
        retry_first=rules.retry.first,
        retry_last=rules.retry.last,
    )
    cgroups = Cgroups(host.root)

    def holder_exited(_process: ProcessId) -> None:
        accounts.ask("a holder exited")
        watcher.nudge()

    def emptied(pod: PodUid) -> None:
        watcher.pod_changed(pod)

    kernel = KernelWatch(
        look=look,
        pidfds=host.pidfds,
        clock=clock,
        exited=holder_exited,
        rescan=rules.foreign_scan,
    )
    pods = Pods(
        cgroups=cgroups,
        procfs=host.procfs,
        paths=host.paths,
        lane=host.lanes["pods"],
        emptied=emptied,
    )
    runtimes = Runtimes(files=RuntimeFiles(host.root), lane=host.lanes["pods"], clock=clock)
    times = ReclaimTimes(
        term_grace=rules.term_grace,
        kill_grace=rules.kill_grace,
        retry_first=rules.retry.first,
        retry_last=rules.retry.last,
    )
    reclaimer = Reclaimer(
        ledger=ledger,
        books=accounts,
        pods=pods,
        runtimes=runtimes,
        cgroups=cgroups,
        pidfds=host.pidfds,
        lane=host.lanes["pods"],
        clock=clock,
        own_pid=os.getpid(),
        rules=ReclaimRules(
            terminate=rules.mode == "terminate",
            let_go_grace=rules.let_go_grace,
            orphan_grace=rules.orphan_grace,
            sandbox_grace=rules.sandbox_grace,
            question_timeout=settings.kubelet.question.timeout,
            times=times,
        ),
    )

    def device_checked() -> None:
        watcher.nudge()

    resetter = Resetter(
        ledger=ledger,
        control=FunctionControl(host.root),
        clock=clock,
        rules=ResetRules(
            policy=ResetPolicy(rules.reset),
            timeout=rules.reset_timeout,
            rebind=rules.rebind,
            times=times,
        ),
        ended=device_checked,
    )
    watcher = Watcher(
        ledger=ledger,
        inventory=scanner.inventory,
        books=accounts,
        kernel=kernel,
        pods=pods,
        reclaimer=reclaimer,
        resetter=resetter,
        clock=clock,
        boot=host.boot,
        times=WatchTimes(
            poll=rules.poll,
            quick_poll=rules.release_poll,
            pending_timeout=settings.allocate.pending_timeout,
            unseen_grace=rules.unseen_grace,
        ),
    )
    hand = HandRelease(
        ledger=ledger,
        inventory=scanner.inventory,
        look=look,
        pods=pods,
        runtimes=runtimes,
        books=accounts,
        reclaimer=reclaimer,
        nudge=watcher.nudge,
        clock=clock,
        times=times,
        question_timeout=settings.kubelet.question.timeout,
        poll=rules.release_poll,
    )
    return watcher, kernel, reclaimer, resetter, hand


def _leaks(
    settings: Settings,
    host: Hosts,
    *,
    ledger: Ledger,
    scanner: Scanner,
    accounts: Accounts,
    look: Look,
    gate: Gate,
    clock: Clock,
) -> LeakedSandboxes:
    rules, cgroups, lane = settings.reclaim, Cgroups(host.root), host.lanes["pods"]
    return LeakedSandboxes(
        ledger=ledger,
        inventory=scanner.inventory,
        books=accounts,
        starts=gate.starts.held_up,
        look=look,
        pods=Pods(
            cgroups=cgroups,
            procfs=host.procfs,
            paths=host.paths,
            lane=lane,
            emptied=lambda _pod: None,
        ),
        runtimes=Runtimes(files=RuntimeFiles(host.root), lane=lane, clock=clock),
        cgroups=cgroups,
        pidfds=host.pidfds,
        lane=lane,
        clock=clock,
        rules=LeakRules(
            restart=rules.leaked_sandbox == "restart",
            terminate=rules.mode == "terminate",
            leak_grace=rules.leak_grace,
            first=rules.retry.first,
            last=rules.retry.last,
        ),
    )


def _granting(settings: Settings, host: Hosts, specs: CdiSpecs) -> Granting:
    tpu = settings.tpu
    file = Path(tpu.env_file) if tpu.env_file else tpu_env_path(host.root)
    configured = TpuHostFacts(
        topology=tpu.topology or None,
        accelerator_type=tpu.accelerator_type or None,
        worker_id=None if tpu.worker_id is None else str(tpu.worker_id),
        worker_hostnames=tpu.worker_hostnames,
        vbar_url=tpu.vbar_url or None,
    )
    inputs = TpuInputs(
        resource=ResourceName(tpu.resource_name),
        configured=configured,
        generation=tpu.generation,
    )
    by_name = settings.device_list_strategy == "cdi"
    return Granting(
        inputs if tpu.enabled else None,
        from_file=lambda: read_tpu_env(file).facts,
        published=(lambda: specs.published) if by_name else None,
    )


def _modified(path: Path) -> float:
    """Return when a file was last written, in seconds since the epoch; 0 when it is not there."""
    file = FileId.of(path)
    return 0.0 if file is None else file.written_at
