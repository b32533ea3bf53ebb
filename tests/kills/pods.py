"""The pods of a story, the runtime that runs them, and for each process the truth: who wants it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from holdfast.model.ids import DeviceId, DeviceName, PodUid, ResourceName
from holdfast.model.reclaim.ending import RuntimeState
from holdfast.model.use.holders import DeviceAccess
from kills.edges import PODS
from kills.kernel import INIT, NODE, Kernel, Process

TPU = ResourceName("google.com/tpu")
CLAIMED = ResourceName("example.com/claimed")
"""What comes by claims alone; TPU comes by the device plugin."""
LINKS = {"/dev/vfio/e": "/dev/null", "/dev/vfio/f": "/dev/zero", "/dev/vfio/g": "/dev/full"}
"""The nodes of CLAIMED, and what each is a link to, whose number it has."""
_OPEN = frozenset({DeviceAccess.NODE, DeviceAccess.DEVICE_FD})
_LEAKED = frozenset({DeviceAccess.DEVICE_FD})
_SYSTEM = "/system.slice/containerd.service"


class Kind(Enum):
    """Which runtime runs a pod."""

    CONTAINERD = "containerd"
    CRIO = "cri-o"
    """Each container has a conmon, inside the pod's cgroup; there is no pause."""
    GVISOR = "gvisor"
    KATA = "kata"
    """Its containers are no processes of the node; its monitor leaves the shim, which is outside."""


SANDBOXED = frozenset({Kind.GVISOR, Kind.KATA})
# What a runtime's shim, conmon, infra container and monitor are called is its vendor's choice.
_SHIMS = ("containerd-shim", "docker-containerd-shim", "acme-shim", "init")
_CONMONS = ("conmon", "crio-conmon", "acme-conmon")
_PAUSES = ("pause", "pause", "pod", "infra")
_MONITORS = ("qemu-system-x86", "qemu-kvm", "acme-vmm")


@dataclass(eq=False, slots=True, kw_only=True)
class Container:
    name: str
    devices: frozenset[DeviceId]
    """What it has by the device plugin."""
    claimed: tuple[DeviceName, ...] = ()
    """What it has by claims."""
    init: bool = False
    running: bool = False
    """Whether the runtime has it running."""
    done: bool = False
    processes: list[Process] = field(default_factory=list)

    @property
    def names(self) -> list[DeviceName]:
        """Return everything that it may open."""
        return [DeviceName(TPU, id_) for id_ in sorted(self.devices)] + sorted(self.claimed)


@dataclass(eq=False, slots=True, kw_only=True)
class Pod:
    """One life of a pod. A static pod that comes back has the same UID and is another Pod."""

    uid: PodUid
    kind: Kind
    static: bool
    grace: float
    containers: list[Container]
    wanted: bool = True
    """Whether it exists for whoever made it: an API object or a manifest, not terminal."""
    listed: bool = True
    """Whether kubelet knows of it."""
    forgotten: bool = False
    """Whether kubelet once did not list it while it lived; then the runtime is its only witness."""
    deadline: float | None = None
    """When its grace is over, once it is to end."""
    over: bool = False
    """Whether kubelet has done with it."""
    shims: list[Process] = field(default_factory=list)
    pause: Process | None = None
    sentry: Process | None = None

    @property
    def cgroup(self) -> str:
        return f"{PODS}{self.uid}"

    def __str__(self) -> str:
        return f"pod {self.uid[:8]} ({self.kind.value}{', static' if self.static else ''})"


def some_containers(
    rng: random.Random, free: list[DeviceId], claimed: tuple[DeviceName, ...]
) -> list[Container]:
    """Return the containers of a new pod that has all of *claimed* and some of *free*, if any."""
    rng.shuffle(free)
    number = min(len(free), rng.choice((1, 1, 2)))
    sets = [frozenset(free[:number])] if free else []
    if number > 1 and rng.random() < 0.5:
        sets = [frozenset({id_}) for id_ in free[:number]]
    if claimed and (not sets or rng.random() < 0.5):
        sets.append(frozenset())
    containers = [Container(name=f"main{n}", devices=devices) for n, devices in enumerate(sets)]
    for each in containers[-1:]:
        each.claimed = claimed
    if sets and rng.random() < 0.2:
        containers.insert(0, Container(name="init", devices=sets[0], init=True))
    if sets and rng.random() < 0.2:
        containers.append(Container(name="sidecar", devices=frozenset()))
    return containers


class Runtime:
    """Starts and stops pods as containerd, CRI-O and runsc do, with everything they can leave."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.rng: random.Random = kernel.rng
        self.up = True
        self.readable = True
        """Whether the files of its state can be read."""
        self.pods: list[Pod] = []
        self._containers = 0
        self._conmons: dict[Process, tuple[Pod, Process]] = {}
        """Of each program that a conmon started: its pod, and the conmon."""
        kernel.on_exit.append(self._exited)

    def state(self, uid: PodUid) -> RuntimeState:
        """Return what its files say of a pod that has a sandbox."""
        if not self.readable:
            return RuntimeState(problem="its files cannot be read")
        mine = [each for each in self.pods if each.uid == uid and each.kind in SANDBOXED]
        running = [each.name for pod in mine for each in pod.containers if each.running]
        known = any(pod.shims for pod in mine)
        problem = "" if known or running else "its files do not have the pod's sandbox"
        return RuntimeState(containers=tuple(sorted(running)), problem=problem)

    def lives(self, pod: Pod) -> bool:
        return any(self.kernel.lives(each) for each in pod.shims)

    def start_sandbox(self, pod: Pod) -> None:
        kernel = self.kernel
        if pod not in self.pods:
            self.pods.append(pod)
        kernel.make_cgroup(pod.cgroup)
        if pod.kind is Kind.CRIO:
            return
        name = self.rng.choice(_SHIMS)
        shim = kernel.spawn(name, _SYSTEM, lambda: "it is a shim", adopts=True)
        pod.shims.append(shim)
        if pod.kind is Kind.CONTAINERD:
            place = f"{pod.cgroup}/{self._id()}"
            pod.pause = kernel.spawn(
                self.rng.choice(_PAUSES),
                place,
                self._rest_of(pod),
                parent=shim.id.pid,
                namespaces=self._apart(),
            )
            return
        if pod.kind is Kind.KATA:
            monitor = self.rng.choice(_MONITORS)
            pod.sentry = kernel.spawn(monitor, pod.cgroup, self._rest_of(pod))
            pod.sentry.machine = True
            return
        pod.sentry = kernel.spawn(
            self.rng.choice(("exe", "runsc-sandbox")),
            pod.cgroup,
            self._rest_of(pod),
            parent=shim.id.pid,
            arguments=("runsc-sandbox", "--root=/run", "boot"),
            namespaces=self._apart(),
        )

    def start(self, pod: Pod, container: Container) -> None:
        """Start a container that has passed the gate; it opens what is physically free."""
        kernel, rng = self.kernel, self.rng
        container.running = True
        container.processes = [] if pod.kind is Kind.KATA else self._programs(pod, container)
        if container.init and rng.random() < 0.7:
            return
        opener = pod.sentry if pod.sentry is not None else next(iter(container.processes), None)
        if opener is None:
            return
        for name in container.names:
            if all(each is opener for each in kernel.holders(name)):
                opener.access[name] = _OPEN
                for each in container.processes:
                    if rng.random() < 0.4:
                        each.access[name] = _OPEN

    def _programs(self, pod: Pod, container: Container) -> list[Process]:
        """Start the processes of a container, and the conmon of one of CRI-O's."""
        kernel = self.kernel
        why = self._work_of(pod, container)
        place, parent, conmon = f"{pod.cgroup}/{self._id()}", INIT, None
        if pod.kind is Kind.GVISOR and pod.sentry is not None:
            parent, place = pod.sentry.id.pid, pod.cgroup
        elif pod.kind is Kind.CRIO:
            name, home = self.rng.choice(_CONMONS), f"{pod.cgroup}/crio-conmon"
            conmon = kernel.spawn(name, home, lambda: "it is conmon", adopts=True)
            pod.shims.append(conmon)
            parent = conmon.id.pid
        elif pod.shims:
            parent = pod.shims[-1].id.pid
        main = kernel.spawn("python", place, why, parent=parent, namespaces=self._apart())
        if conmon is not None:
            self._conmons[main] = pod, conmon
        return [main, *self._workers(main, why)]

    def _workers(self, main: Process, why: Callable[[], str | None]) -> list[Process]:
        return [
            self.kernel.spawn(
                "worker", main.cgroup, why, parent=main.id.pid, namespaces=main.namespaces
            )
            for _ in range(self.rng.choice((0, 0, 1, 2)))
        ]

    def _exited(self, process: Process) -> None:
        """Let a conmon end with the program that it watched."""
        pod, conmon = self._conmons.pop(process, (None, None))
        if pod is not None and conmon is not None:
            pod.shims = [each for each in pod.shims if each is not conmon]
            self.kernel.exit(conmon)

    def stop(self, pod: Pod, container: Container, *, leaks: bool) -> None:
        """Stop a container; where it *leaks*, a part of it lives on, and nobody wants that."""
        if not container.running:
            return
        container.running = False
        container.done |= container.init
        left = [each for each in container.processes if self.kernel.lives(each)]
        kept = self.rng.choice(left) if leaks and left and pod.kind not in SANDBOXED else None
        sentry = pod.sentry
        for name in container.names:
            access = sentry.access.pop(name, None) if sentry is not None else None
            if access is not None and leaks and sentry is not None:
                sentry.access[name] = _LEAKED
        if kept is not None:
            for name in container.names:
                if all(each in left for each in self.kernel.holders(name)):
                    kept.access[name] = _OPEN
            kept.deaf = self.rng.random() < 0.5
            kept.stuck = self.rng.random() < 0.05
        for each in left:
            if each is not kept:
                self.kernel.exit(each)
        if pod.kind is Kind.CRIO:
            self._end_conmons(pod)

    def remove(self, pod: Pod, *, leaks: bool) -> None:
        """Stop what is left of a pod; a sandbox that *leaks* lives on without its shim, or with."""
        for container in pod.containers:
            self.stop(pod, container, leaks=leaks and self.rng.random() < 0.7)
        if pod.pause is not None:
            self.kernel.exit(pod.pause)
        leaking = leaks and pod.sentry is not None and bool(pod.sentry.access)
        if pod.sentry is not None and not leaking:
            self.kernel.exit(pod.sentry)
        if not (leaking and self.rng.random() < 0.3):
            self._end_shims(pod)
        pod.pause = None
        self.kernel.drop_cgroup(pod.cgroup)

    def lose_shims(self, pod: Pod) -> None:
        """Let its shims die, and its processes live on."""
        self._end_shims(pod)
        if pod.pause is not None and self.rng.random() < 0.7:
            self.kernel.exit(pod.pause)
            pod.pause = None

    def adopt(self, pod: Pod, process: Process) -> None:
        """Let somebody move a process into the cgroup of *pod*, to end with it."""
        process.works = self._rest_of(pod)
        self.kernel.move(process, pod.cgroup)

    def _end_conmons(self, pod: Pod) -> None:
        running = any(each.running for each in pod.containers)
        if not running:
            self._end_shims(pod)

    def _end_shims(self, pod: Pod) -> None:
        for shim in pod.shims:
            self.kernel.exit(shim)
        pod.shims.clear()

    def _work_of(self, pod: Pod, container: Container) -> Callable[[], str | None]:
        return lambda: self._why(pod, container.running)

    def _rest_of(self, pod: Pod) -> Callable[[], str | None]:
        return lambda: self._why(pod, any(each.running for each in pod.containers))

    def _why(self, pod: Pod, running: bool) -> str | None:
        """Return why somebody wants a process of *pod*: it exists, or its grace is not over.

        A pod that is to end has its grace for as long as the runtime has it; what the runtime has
        lost, nobody waits for; nor for what an exited container left in a pod that kubelet forgot.
        """
        if pod.wanted and (running or not pod.forgotten):
            return f"{pod} exists"
        now = self.kernel.clock.monotonic()
        if running and pod.deadline is not None and now < pod.deadline and self.lives(pod):
            return f"the grace of {pod} is not over"
        return None

    def _apart(self) -> int:
        """Return namespaces that no other container has."""
        self._containers += 1
        return NODE + self._containers

    def _id(self) -> str:
        self._containers += 1
        return f"{self._containers:064x}"
