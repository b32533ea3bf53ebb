"""One random story: pods come and go, kubelets and runtimes fail, and the daemon is in between."""

import itertools
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from fakes.books import inventory, silicon
from holdfast.model.devices import Device
from holdfast.model.ids import DeviceId, PodUid
from kills.claims import Claim
from kills.daemon import Daemon, Guards
from kills.kernel import Kernel
from kills.kubelet import CORRUPT, EMPTY, Kubelet
from kills.pods import CLAIMED, LINKS, TPU, Kind, Pod, Runtime, some_containers
from kills.strangers import Strangers
from manual_clock import ManualClock


def _linked(device: Device) -> Device:
    """Return *device* with the numbers that its nodes have below a root with LINKS."""
    return replace(
        device,
        nodes=tuple(
            replace(each, rdev=Path(LINKS[each.path]).stat().st_rdev) for each in device.nodes
        ),
    )


_CHIPS = inventory({TPU: silicon(d0="a", d1="b", d2="c", d3="d")})
_BY_CLAIMS = inventory({CLAIMED: silicon(e0="e", e1="f", e2="g")})
_NODE = replace(
    _CHIPS,
    resources=(*_CHIPS.resources, *_BY_CLAIMS.resources),
    devices=(*_CHIPS.devices, *map(_linked, _BY_CLAIMS.devices)),
)
_NAMES = frozenset(device.name for device in _NODE.devices)
_IDS = frozenset(name.id for name in _NAMES if name.resource == TPU)
_CLAIMED = frozenset(name for name in _NAMES if name.resource == CLAIMED)
_SHM = Path("/dev/shm")  # the ledger is proved against power cuts elsewhere: here it is to be quick


class Outcome(Struct, frozen=True, kw_only=True):
    """How a story ended. `ended` counts processes, `wrong` names each signal at somebody's work."""

    seed: int
    ended: int
    wrong: tuple[str, ...]
    told: tuple[str, ...]


class Story:
    """A node with four devices on which the next event is always a random one."""

    def __init__(self, seed: int, state: Path, guards: Guards) -> None:
        """Tell the story of *seed*; the daemon's ledger is in *state*."""
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.kernel = Kernel(rng, self.clock, random.Random(f"mishaps {seed}"))
        self.runtime = Runtime(self.kernel)
        record = state / "dra_manager_state"
        self.kubelet = Kubelet(self.kernel, self.runtime, _IDS, _CLAIMED, record, plugin=self)
        self.daemon = Daemon(
            state,
            kubelet=self.kubelet,
            inventory=_NODE,
            meanwhile=self._meanwhile,
            happens=self._something_happens,
            guards=guards,
        )
        self._names = itertools.count(1)
        self._old_file = self.kubelet.file
        self._inside = False
        strangers = Strangers(self.kernel, _NAMES)
        self._acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (14, self._a_pod_finishes),
            (8, self._a_pod_is_deleted),
            (5, self._a_pod_is_deleted_by_force),
            (4, self._a_container_exits),
            (2, self._kubelet_restarts),
            (2, self._kubelet_goes_down_or_comes_back),
            (3, self._the_checkpoint_suffers),
            (2, self._the_record_of_claims_suffers),
            (1, self.kubelet.claims.server_is_restored),
            (2, self._the_api_goes_or_comes),
            (2, self._kubelet_forgets_a_pod_or_finds_it_again),
            (3, self._shims_die),
            (2, self._the_runtime_goes_or_comes),
            (2, self._the_network_goes_or_comes),
            (1, self._the_runtimes_files_cannot_be_read),
            (2, self._the_clock_is_set),
            (1, self._the_scan_goes_blind_or_sees_again),
            (3, self._a_process_moves),
            (4, strangers.one_has_the_pid_of_an_orphan),
            (1, strangers.one_comes_or_goes),
        )

    async def tell(self) -> Outcome:
        rng = self.rng
        self.kernel.kills_cgroups = rng.random() < 0.7
        self.kernel.freezes_cgroups = rng.random() < 0.7
        await self.daemon.start()
        try:
            await self._time_passes(1.0)
            for _ in range(3):
                await self._a_pod_comes()
                await self._time_passes(2.0)
            for _ in range(rng.randrange(12, 24)):
                await self._next()
                for _ in range(rng.choice((1, 2, 3))):
                    await self._time_passes(rng.choice((0.3, 1.0, 5.0, 12.0, 31.0)))
            await self._calm()
        finally:
            await self.daemon.end()
        return Outcome(
            seed=self.seed,
            ended=self.kernel.ended,
            wrong=tuple(self.kernel.wrong),
            told=tuple(self.kernel.told),
        )

    # What the kubelet calls.

    async def allocate(self, devices: frozenset[DeviceId]) -> bool:
        return await self.daemon.allocate(devices)

    async def start(self, devices: frozenset[DeviceId]) -> bool:
        return await self.daemon.pass_gate(devices)

    async def prepare(self, claim: Claim) -> bool:
        return await self.daemon.prepare(claim)

    async def unprepare(self, claim: Claim) -> bool:
        return await self.daemon.unprepare(claim)

    # The course of things.

    async def _next(self) -> None:
        chance = self.rng.random()
        if chance < 0.25:
            await self._a_pod_comes()
        elif chance < 0.31:
            await self._the_daemon_dies_or_comes_back()
        elif chance < 0.33:
            if self.kubelet.process is not None:
                await self.kubelet.claims.unprepare_one_in_use(self.runtime.lives)
        elif chance < 0.38:
            await self._a_claim_is_handed_on_too_early()
        else:
            self._something_happens_for_sure()

    async def _time_passes(self, seconds: float) -> None:
        self.clock.shift(seconds)
        self.kernel.answer_late()
        await self.kubelet.sync()
        self._somebody_freezes_or_thaws_a_pod()
        await self.daemon.beat()
        if self.daemon.up:
            self.kernel.complain(self.daemon.claims.wrong())
            self.kernel.complain(self.kernel.still_frozen())

    async def _calm(self) -> None:
        """Let everything work again for a while, so that what is an orphan is ended as one."""
        self.kernel.say("everything works again")
        self.kernel.smooth = True
        self.runtime.up = self.runtime.readable = self.kubelet.api = self.kubelet.network = True
        self.kernel.blind = False
        if self.kubelet.process is None:
            self.kubelet.start()
        if not self.daemon.up:
            await self.daemon.start()
        self.daemon.lane.calls_left = None
        for _ in range(14):
            await self._time_passes(12.0)
        self._inside = True  # nothing happens meanwhile any more: what is lost is found
        for _ in range(3):
            self.kubelet.api = True
            self.kubelet.claims.record.write()
            await self._time_passes(61.0)
        self.kernel.complain(self.daemon.claims.kept_for_nobody())

    async def _meanwhile(self) -> None:
        """While the daemon waits for kubelet's answer, anything can happen, kubelet's work too."""
        if self.rng.random() < 0.15 and not self._inside:
            self._inside = True
            self.kernel.say("meanwhile:")
            self._something_happens_for_sure()
            await self.kubelet.sync()
            self._inside = False

    def _something_happens(self) -> None:
        if self.rng.random() < 0.05:
            self.kernel.say("just then:")
            self._something_happens_for_sure()

    def _something_happens_for_sure(self) -> None:
        weights = [weight for weight, _ in self._acts]
        (_, act), *_ = self.rng.choices(self._acts, weights)
        act()

    def _some(self, wanted: Callable[[Pod], bool]) -> Pod | None:
        found = [each for each in self.kubelet.pods if wanted(each)]
        return self.rng.choice(found) if found else None

    def _say(self, text: str) -> None:
        self.kernel.say(text)

    # Events.

    async def _a_pod_comes(self) -> None:
        rng = self.rng
        back = self._pod_that_comes_back()
        static = back is not None or rng.random() < 0.3
        claims = [] if static or rng.random() < 0.4 else self.kubelet.claims.for_a_pod()
        free = [] if claims and rng.random() < 0.6 else self.kubelet.free()
        claimed = tuple(name for each in claims for name in each.devices)
        containers = some_containers(rng, free, claimed)
        if not containers:
            return
        name = f"{next(self._names):08x}" + "0" * 24
        pod = Pod(
            uid=back.uid if back is not None else PodUid(self._uid(name, static=static)),
            kind=rng.choice((Kind.CONTAINERD, Kind.CONTAINERD, Kind.CRIO, Kind.GVISOR, Kind.KATA)),
            static=static,
            grace=rng.choice((2.0, 30.0, 30.0, 3600.0)),
            containers=containers,
        )
        for each in claims:
            each.pods.append(pod)
        admitted = await self.kubelet.admit(pod)
        names = sorted({name.id for each in containers for name in each.names})
        told = ", ".join([*names, *(f"claim {each}" for each in claims)])
        again = "" if back is None else " again"
        self._say(f"{pod} comes{again} for {told}: admitted={admitted}")

    def _pod_that_comes_back(self) -> Pod | None:
        """Return a static pod that is over, and has not come back already."""
        back = self._some(lambda each: each.static and each.over)
        if back is None or self.rng.random() < 0.5:
            return None
        lives = any(each.uid == back.uid and not each.over for each in self.kubelet.pods)
        return None if lives else back

    @staticmethod
    def _uid(name: str, *, static: bool) -> str:
        return name if static else str(UUID(name))

    def _a_pod_finishes(self) -> None:
        pod = self._some(lambda each: not each.over and any(c.running for c in each.containers))
        if pod is not None and self.runtime.up and self.kubelet.process is not None:
            self._say(f"{pod} finishes")
            self.kubelet.end_pod(pod, leaks=self.rng.random() < 0.8)

    def _a_pod_is_deleted(self) -> None:
        pod = self._some(lambda each: each.wanted and each.deadline is None)
        if pod is not None and (self.kubelet.api or pod.static):
            self._say(f"{pod} is deleted, grace {pod.grace:g} s")
            pod.deadline = self.clock.monotonic() + pod.grace
            pod.wanted = False

    def _a_pod_is_deleted_by_force(self) -> None:
        pod = self._some(lambda each: each.listed and not each.over)
        if pod is not None and self.kubelet.api:
            self._delete_by_force(pod)

    def _delete_by_force(self, pod: Pod) -> None:
        self._say(f"{pod} is deleted by force, grace {pod.grace:g} s")
        pod.deadline = pod.deadline or self.clock.monotonic() + pod.grace
        pod.wanted = pod.listed = False
        self.kubelet.claims.deleted_by_force(pod)

    def _a_container_exits(self) -> None:
        pod = self._some(lambda each: any(c.running for c in each.containers))
        if pod is not None and self.runtime.lives(pod):
            container = self.rng.choice([each for each in pod.containers if each.running])
            self._say(f"{container.name} of {pod} exits")
            self.runtime.stop(pod, container, leaks=self.rng.random() < 0.4)

    def _kubelet_restarts(self) -> None:
        if self.kubelet.process is not None:
            self._say("kubelet restarts")
            self.kubelet.end()
            self.kubelet.start()

    def _kubelet_goes_down_or_comes_back(self) -> None:
        if self.kubelet.process is None:
            self._say("kubelet comes back")
            self.kubelet.start()
        else:
            self._say("kubelet goes down")
            self.kubelet.end()

    def _the_checkpoint_suffers(self) -> None:
        kubelet = self.kubelet
        how = self.rng.choice(("lost", "corrupt", "rolled back", "kept aside"))
        self._say(f"the checkpoint is {how}")
        if how == "kept aside":
            self._old_file = kubelet.file
            return
        kubelet.file = {"lost": EMPTY, "corrupt": CORRUPT}.get(how, self._old_file)
        kubelet.touch()
        if self.rng.random() < 0.5 and kubelet.process is not None:
            self._kubelet_restarts()

    def _the_record_of_claims_suffers(self) -> None:
        lost = self.rng.random() < 0.5
        self._say(f"kubelet's record of claims is {'lost' if lost else 'damaged'}")
        self.kubelet.claims.record.suffer(lost=lost)
        if self.rng.random() < 0.5:
            self._kubelet_restarts()

    def _the_api_goes_or_comes(self) -> None:
        self.kubelet.api = not self.kubelet.api
        self._say(f"the API server is {'up' if self.kubelet.api else 'down'}")

    def _kubelet_forgets_a_pod_or_finds_it_again(self) -> None:
        """Kubelet's list lacks a pod that lives, for a while; its runtime has it still."""
        lost = self._some(lambda each: each.wanted and not each.listed and not each.over)
        if lost is not None:
            self._say(f"kubelet lists {lost} again")
            lost.listed = True
            return
        pod = self._some(lambda each: each.wanted and not each.over and self.runtime.lives(each))
        if pod is not None and any(each.running for each in pod.containers):
            self._say(f"kubelet does not list {pod}, which lives")
            pod.listed, pod.forgotten = False, True

    def _shims_die(self) -> None:
        # A pod that its kubelet forgot, and its runtime too, is nobody's as far as can be known.
        pod = self._some(lambda each: bool(each.shims) and not each.over and not each.forgotten)
        if pod is not None:
            self._say(f"the shims of {pod} die")
            self.runtime.lose_shims(pod)

    def _the_runtime_goes_or_comes(self) -> None:
        self.runtime.up = not self.runtime.up
        self._say(f"the runtime is {'up' if self.runtime.up else 'down'}")

    def _the_network_goes_or_comes(self) -> None:
        self.kubelet.network = not self.kubelet.network
        self._say(f"the network of pods is {'up' if self.kubelet.network else 'down'}")

    def _the_runtimes_files_cannot_be_read(self) -> None:
        self.runtime.readable = not self.runtime.readable
        self._say(f"the runtime's files can be read: {self.runtime.readable}")

    def _the_clock_is_set(self) -> None:
        seconds = self.rng.choice((2.0, 60.0, 3600.0, 90_000.0, -2.0, -3600.0, -90_000.0))
        self._say(f"the clock is set {seconds:g} s forward")
        self.clock.step_wall(seconds)

    def _the_scan_goes_blind_or_sees_again(self) -> None:
        self.kernel.blind = not self.kernel.blind
        self._say(f"the scan is complete: {not self.kernel.blind}")

    def _somebody_freezes_or_thaws_a_pod(self) -> None:
        """Somebody freezes a pod's cgroup for a while, and no daemon may let it go on."""
        kernel, chance = self.kernel, self.kernel.chance()
        if chance < 0.1:
            for path in [path for path, ours in kernel.frozen.items() if not ours]:
                kernel.say(f"{path} is thawed by whoever has frozen it")
                del kernel.frozen[path]
        elif chance < 0.13 and self.daemon.up and kernel.freezes_cgroups and kernel.cgroups:
            path = kernel.mishaps.choice([*kernel.cgroups])
            if path not in kernel.frozen:
                kernel.say(f"{path} is frozen by somebody")
                kernel.frozen[path] = False

    def _a_process_moves(self) -> None:
        """Somebody takes a process out of its pod, to keep it, or gives it to another pod."""
        found = [
            (container, process)
            for pod in self.runtime.pods
            for container in pod.containers
            for process in container.processes
            if self.kernel.lives(process)
        ]
        if found:
            container, process = self.rng.choice(found)
            container.processes.remove(process)  # what becomes of the container is not its concern
            other = self._some(lambda each: each.wanted and each.cgroup in self.kernel.cgroups)
            if other is not None and self.rng.random() < 0.5 and process.cgroup != other.cgroup:
                self._say(f"pid {process.id} moves to {other}")
                self.runtime.adopt(other, process)
                return
            self._say(f"pid {process.id} moves out of its pod")
            process.works = lambda: "somebody has moved it to keep it"
            self.kernel.move(process, "/user.slice")

    async def _a_claim_is_handed_on_too_early(self) -> None:
        """As the scheduler does once a pod is deleted by force: its successor comes at once."""
        for pod in self.kubelet.claims.users():
            self._delete_by_force(pod)
        await self._a_pod_comes()

    async def _the_daemon_dies_or_comes_back(self) -> None:
        if not self.daemon.up:
            await self._the_daemon_starts()
        elif self.rng.random() < 0.5:
            self.daemon.lane.calls_left = self.rng.randrange(60)
        else:
            self._say("the daemon is killed")
            await self.daemon.end()

    async def _the_daemon_starts(self) -> None:
        claims = self.kubelet.claims
        # What neither kubelet nor the ledger knows, nobody knows.
        known = all(claims.record.keeps(each.ref.uid) for each in claims.granted())
        known = known and not self.kernel.still_frozen()
        lost = known and self.rng.random() < 0.5
        self._say(f"the daemon starts{' without its ledger' if lost else ''}")
        if lost:
            self.daemon.lose_ledger()
        await self.daemon.start()


async def tell(seed: int, guards: Guards | None = None) -> Outcome:
    """Tell the story of *seed*, with what *guards* leave of the daemon's own."""
    place = Path(tempfile.mkdtemp(dir=_SHM if _SHM.is_dir() else None))
    try:
        return await Story(seed, place, guards or Guards()).tell()
    finally:
        shutil.rmtree(place)
