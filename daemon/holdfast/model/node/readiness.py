"""Whether the daemon is ready: each check from plain facts, with what it saw and when."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from holdfast.model.ids import ResourceName


class Check(Struct, frozen=True, kw_only=True):
    """One readiness check; `reason` says what is wrong, or what was seen.

    `public` is as much of the reason as anybody who reaches the HTTP port may read: our own words
    and numbers. What other programs or the node's files say may name processes, pods and paths.
    `seen` is when its fact was last learned (monotonic seconds), None for what is always at hand.
    """

    name: str
    passes: bool
    reason: str = ""
    public: str = ""
    seen: float | None = None


class Known(Struct, frozen=True, kw_only=True):
    """What a part that looks again and again knows: its `problem`, empty for none.

    `at` is when it last looked with an answer (monotonic seconds), None before the first time;
    `patience` is how old that may become before the part counts as one that looks no more.
    """

    at: float | None
    patience: float
    problem: str = ""


class Standing(Struct, frozen=True, kw_only=True):
    """Where one resource stands with kubelet."""

    registered: bool = False
    streams: int = 0
    problem: str = "not registered yet"


class ReadinessFacts(Struct, frozen=True, kw_only=True):
    """What the checks are made of, at the moment `now` (monotonic seconds).

    `resources` are all that kubelet is or was offered; `sockets` our own, by what they serve;
    `lanes` since when each is stuck; `sight` what the last look at all processes could not see.
    `lacks` is what the daemon may not do though its settings ask for it, with the feature lost.
    `driver` is None on a node whose kernel never had NVIDIA's, else whether it is ready and why
    not. `books_missing`: kubelet has no checkpoint, as on a node that never had such a pod.
    """

    now: float
    resources: Sequence[ResourceName]
    kubelet: Mapping[ResourceName, Standing]
    sockets: Mapping[str, Known]
    books_readable: bool
    books_missing: bool
    books_problem: str
    ledger: Known
    ledger_failing_since: float | None
    lanes: Mapping[str, float | None]
    resets: str
    hardware: Known
    devices: int
    require_devices: bool
    specs: str
    looked: bool
    watch: Known
    gpu_specs: str = ""
    sight: Sequence[str] = ()
    sighted: float | None = None
    lacks: Sequence[str] = ()
    driver: tuple[bool, str] | None = None


Rule = Callable[[ReadinessFacts], Iterable[Check]]


def registrations(facts: ReadinessFacts) -> Iterator[Check]:
    """Kubelet has accepted each resource, and nothing has ended that since."""
    for resource in facts.resources:
        state = facts.kubelet.get(resource, Standing())
        yield Check(
            name=f"registered {resource}",
            passes=state.registered,
            reason="" if state.registered else state.problem,
        )


def streams(facts: ReadinessFacts) -> Iterator[Check]:
    """Kubelet listens to each resource's list; without that it counts no device as usable."""
    for resource in facts.resources:
        is_open = facts.kubelet.get(resource, Standing()).streams > 0
        reason = "" if is_open else "kubelet has no stream of devices open"
        yield _open(f"stream {resource}", passes=is_open, reason=reason)


def sockets(facts: ReadinessFacts) -> Iterator[Check]:
    """Our own sockets answered when they were last dialled, which was not long ago."""
    for name, known in facts.sockets.items():
        yield _known(f"socket {name}", known, facts.now)


def books(facts: ReadinessFacts) -> Iterator[Check]:
    """Kubelet's checkpoint can be read, or there is none yet: no pod ever had a device."""
    reason = "" if facts.books_readable and not facts.books_problem else facts.books_problem
    passes = facts.books_readable or facts.books_missing
    yield Check(name="kubelet's checkpoint", passes=passes, reason=reason)


def ledger(facts: ReadinessFacts) -> Iterator[Check]:
    """The ledger was proven by a durable write a short while ago, and none has failed since."""
    since = facts.ledger_failing_since
    if since is None:
        yield _known("ledger", facts.ledger, facts.now)
    else:
        told = f"no commit for {facts.now - since:.0f} s"
        reason = f"{told}: {facts.ledger.problem}" if facts.ledger.problem else told
        yield Check(name="ledger", passes=False, reason=reason, public=told, seen=facts.ledger.at)


def lanes(facts: ReadinessFacts) -> Iterator[Check]:
    """No call that can block is past its deadline."""
    for name, since in facts.lanes.items():
        reason = "" if since is None else f"stuck for {facts.now - since:.0f} s"
        yield _open(f"lane {name}", passes=since is None, reason=reason)


def resets(facts: ReadinessFacts) -> Iterator[Check]:
    """No reset or check of a device hangs."""
    yield Check(name="resets of devices", passes=not facts.resets, reason=facts.resets)


def hardware(facts: ReadinessFacts) -> Iterator[Check]:
    """The hardware has been looked at, and is looked at again and again."""
    yield _known("hardware", facts.hardware, facts.now)


def devices(facts: ReadinessFacts) -> Iterator[Check]:
    """There are devices, or none are asked for: then it says so, and is ready all the same."""
    passes = facts.devices > 0 or not facts.require_devices
    reason = "no devices on this node" if not facts.devices else ""
    yield _open("devices", passes=passes, reason=reason)


def driver(facts: ReadinessFacts) -> Iterator[Check]:
    """NVIDIA's driver answers, on a node whose kernel has it or ever had."""
    if facts.driver is not None:
        passes, reason = facts.driver
        yield Check(name="nvidia driver", passes=passes, reason=reason)


def gpu_specs(facts: ReadinessFacts) -> Iterator[Check]:
    """Names of GPUs lead somewhere; a GPU whose name does not is given to nobody by it."""
    if facts.driver is not None:
        yield Check(name="CDI specs of GPUs", passes=not facts.gpu_specs, reason=facts.gpu_specs)


def specs(facts: ReadinessFacts) -> Iterator[Check]:
    """Names lead somewhere; without them new containers get their nodes by path."""
    yield Check(name="CDI specs", passes=not facts.specs, reason=facts.specs)


def first_look(facts: ReadinessFacts) -> Iterator[Check]:
    """The node has been looked at once as a whole; before that nobody passes the gate."""
    reason = "" if facts.looked else "no full look at the node yet"
    yield _open("first look", passes=facts.looked, reason=reason)


def watch(facts: ReadinessFacts) -> Iterator[Check]:
    """Locks are compared with the node, again and again; nothing is freed without that."""
    yield _known("watch over locks", facts.watch, facts.now)


def sight(facts: ReadinessFacts) -> Iterator[Check]:
    """Nothing was hidden from the last look; less is proven where something was."""
    name, gaps = "every holder can be seen", facts.sight
    yield Check(
        name=name,
        passes=not gaps,
        reason=gaps[0] if gaps else "",
        public=f"the last look had gaps: {len(gaps)}" if gaps else "",
        seen=facts.sighted,
    )


def privileges(facts: ReadinessFacts) -> Iterator[Check]:
    """The daemon may do what its settings ask for; else each feature that is lost is named."""
    yield _open("privileges", passes=not facts.lacks, reason="; ".join(facts.lacks))


RULES: tuple[Rule, ...] = (
    registrations,
    streams,
    sockets,
    books,
    ledger,
    lanes,
    resets,
    hardware,
    devices,
    driver,
    specs,
    gpu_specs,
    first_look,
    watch,
    sight,
    privileges,
)
"""Every check, in the order in which they are told."""


def judge_readiness(facts: ReadinessFacts, rules: Sequence[Rule] = RULES) -> tuple[Check, ...]:
    """Return every check that *rules* make of *facts*; the daemon is ready when all pass."""
    return tuple(check for rule in rules for check in rule(facts))


def _open(name: str, *, passes: bool, reason: str, seen: float | None = None) -> Check:
    """Return a check whose whole reason is public."""
    return Check(name=name, passes=passes, reason=reason, public=reason, seen=seen)


def _known(name: str, known: Known, now: float) -> Check:
    if known.problem:
        return Check(name=name, passes=False, reason=known.problem, seen=known.at)
    reason = ""
    if known.at is None:
        reason = "not known yet"
    elif now - known.at > known.patience:
        reason = f"last known {now - known.at:.0f} s ago, which is too long"
    return _open(name, passes=not reason, reason=reason, seen=known.at)
