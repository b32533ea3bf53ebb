"""The container starts at the gate: what is known of each, how it ends, and why it has to wait."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from holdfast.model.devices import Device, DeviceKind
from holdfast.model.gate.waiting import Waiting
from holdfast.model.ids import DeviceId, DeviceName, PodUid, ResourceName
from holdfast.model.reclaim.leak import HeldUp
from holdfast.model.use.free import Verdict, asking_whose, but_for_own_machine
from holdfast.runtime.watched import Watched


class StartOutcome(Enum):
    """How a start at the gate ended; metrics show it."""

    PASSED = "passed"
    UNVERIFIED = "unverified"
    HELD = "held"
    IN_USE = "in-use"
    SEVERAL_PODS = "several-pods"
    GONE = "gone"
    HARDWARE = "hardware"
    PROMISE = "promise"
    SPEC = "spec"
    LEDGER = "ledger"
    STARTING = "starting"
    WITHHELD = "withheld"


PASSES = frozenset({StartOutcome.PASSED, StartOutcome.UNVERIFIED})
"""The outcomes that are no refusal."""
_FINAL = frozenset({StartOutcome.SEVERAL_PODS, StartOutcome.GONE, StartOutcome.PROMISE})
"""The outcomes that waiting does not change."""


class Wait(Exception):  # noqa: N818 - not an error: the way in which one try ends
    """Why a start has to wait; `transient`: that is soon over, and says nothing of its devices."""

    def __init__(
        self,
        outcome: StartOutcome,
        reason: str,
        held_up: frozenset[HeldUp] = frozenset(),
        *,
        transient: bool = False,
    ) -> None:
        """Wait for *reason*; *held_up* is what only its own pod's processes hold up."""
        super().__init__(reason)
        self.outcome = outcome
        self.held_up = held_up
        self.transient = transient

    @property
    def final(self) -> bool:
        """Tell whether waiting does not change it."""
        return self.outcome in _FINAL

    def text(self, what: str) -> str:
        """Return what kubelet is answered to a start on *what*.

        It is the same for as long as the reason is: kubelet merges events by their text.
        """
        if self.final:
            return f"cannot start on {what}: {self}"
        return f"cannot start on {what} yet: {self} (kubelet will ask again)"


@dataclass(slots=True, kw_only=True, eq=False)
class Start:
    """One start: the ids of *resource* that kubelet asked for, and what is known of it so far.

    `since` is when it began to wait, and `stirred` when something changed that it may wait for,
    both in monotonic seconds. `pod` is whose it is, once that was seen; `doing` is what a try
    waits for, as the reason if that does not end; `questions` is how often kubelet was asked for
    this start.
    """

    resource: ResourceName
    asked: frozenset[DeviceId]
    since: float
    stirred: float
    pod: PodUid | None = None
    doing: str = ""
    questions: int = 0

    @property
    def what(self) -> str:
        """Return the devices as logs and refusals name them."""
        return f"{self.resource} {', '.join(sorted(self.asked))}"


class Starts:
    """Knows what each start waits for; publishes what only the starts' own pods hold up."""

    def __init__(self) -> None:
        """Begin with none."""
        self._each: dict[Start, Wait] = {}
        self.held_up: Watched[frozenset[HeldUp]] = Watched(frozenset())

    @property
    def count(self) -> int:
        """Return how many starts wait."""
        return len(self._each)

    def waiting(self, now: float) -> Iterator[Waiting]:
        """Yield each start of a known pod that waits at *now*, in monotonic seconds."""
        for start, wait in self._each.items():
            if start.pod is not None and not wait.transient:
                yield Waiting(
                    pods=frozenset({start.pod}),
                    what=start.what,
                    why=str(wait),
                    seconds=now - start.since,
                )

    def waits(self, start: Start, wait: Wait) -> None:
        """Note why *start* has to wait."""
        self._each[start] = wait
        self._publish()

    def leaves(self, start: Start) -> None:
        """Note that *start* is over."""
        self._each.pop(start, None)
        self._publish()

    def _publish(self) -> None:
        every = frozenset[HeldUp]().union(*(wait.held_up for wait in self._each.values()))
        if every != self.held_up.value:
            self.held_up.set(every)


class OwnMachines:
    """Remembers which pods started on a device before their virtual machine had it.

    So a machine that had the device from the start can be told from one that has not yet released
    it. After a restart of the daemon that is not known, and a pod's own machine does not stop its
    start: a start that fails is tried again, one that is always refused is not.
    """

    def __init__(self) -> None:
        self._had_none: set[tuple[PodUid, DeviceName]] = set()

    def judge(self, verdict: Verdict, pod: PodUid | None, device: Device) -> Verdict:
        """Return whether *device* is free for *pod*, of which *verdict* tells who has it."""
        if device.kind is not DeviceKind.VFIO:
            return verdict
        had_none = pod is not None and (pod, device.name) in self._had_none
        return asking_whose(but_for_own_machine(verdict, pod, had_none=had_none))

    def started(
        self, pod: PodUid | None, free: Collection[DeviceName], *, pods: Collection[PodUid]
    ) -> None:
        """Note that *pod* starts on devices, of which nobody had those in *free*.

        *pods* are all that have anything; what is known of others is dropped.
        """
        self._had_none = {each for each in self._had_none if each[0] in pods}
        if pod is not None:
            self._had_none |= {(pod, device) for device in free}
