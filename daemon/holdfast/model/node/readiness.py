"""Readiness: each check is made of plain facts, with its reason and the time of its fact."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import Registration


class Check(Struct, frozen=True, kw_only=True):
    """One readiness check; `reason` says what is wrong, or what was seen.

    `public` is the part of the reason that the HTTP port may show to anybody: fixed texts and
    numbers. The rest can name processes, pods and paths. `seen` is when the fact was last learned
    (monotonic seconds), None for a fact that is always current.
    """

    name: str
    passes: bool
    reason: str = ""
    public: str = ""
    seen: float | None = None


class Known(Struct, frozen=True, kw_only=True):
    """The latest result of a part that repeats a scan: its `problem`, empty for none.

    `at` is when it last had a result (monotonic seconds), None before the first. A result older
    than `patience` seconds means that the part has stopped.
    """

    at: float | None
    patience: float
    problem: str = ""


class ReadinessFacts(Struct, frozen=True, kw_only=True):
    """What the checks are made of, at the moment `now` (monotonic seconds).

    `resources` are all that kubelet is or was offered; `sockets` are the daemon's own, by what they
    serve; `lanes` says since when each is stuck; `sight` is what the last scan of all processes
    could not see. `lacks` names each permission or mount that the settings need and that is
    missing, with the feature that is lost. `idle_rules` are the rules for single devices that do
    nothing, with the reason. `vendors` are the checks of the vendors' adapters, `dra` those of
    Dynamic Resource Allocation, none without it.
    `configuration` says why the configuration as it is now is not the one in use, `document` which
    named document it is of, `node_label` why the node's label that names it cannot be read: the
    value that was read last then counts.
    `checkpoint_missing`: there is none, as on a node that never ran a pod with a device.
    `labels` says why the node labels may be old; None where none are wanted.
    """

    now: float
    resources: Sequence[ResourceName]
    kubelet: Mapping[ResourceName, Registration]
    sockets: Mapping[str, Known]
    checkpoint_readable: bool
    checkpoint_missing: bool
    checkpoint_problem: str
    ledger: Known
    ledger_failing_since: float | None
    lanes: Mapping[str, float | None]
    resets: str
    hardware: Known
    devices: int
    require_devices: bool
    specs: str
    configuration: str
    document: str
    node_label: str
    looked: bool
    watch: Known
    sight: Sequence[str] = ()
    sighted: float | None = None
    lacks: Sequence[str] = ()
    labels: str | None = None
    idle_rules: Sequence[str] = ()
    vendors: Sequence[Check] = ()
    dra: Sequence[Check] = ()


Rule = Callable[[ReadinessFacts], Iterable[Check]]


def registrations(facts: ReadinessFacts) -> Iterator[Check]:
    """Kubelet has accepted each resource, and the registration still holds."""
    for resource in facts.resources:
        state = facts.kubelet.get(resource, Registration())
        yield Check(
            name=f"registered {resource}",
            passes=state.registered,
            reason="" if state.registered else state.problem,
        )


def streams(facts: ReadinessFacts) -> Iterator[Check]:
    """Kubelet has a ListAndWatch stream open; without one it counts no device as usable."""
    for resource in facts.resources:
        is_open = facts.kubelet.get(resource, Registration()).streams > 0
        reason = "" if is_open else "kubelet has no ListAndWatch stream open"
        yield _open(f"stream {resource}", passes=is_open, reason=reason)


def dra(facts: ReadinessFacts) -> Iterator[Check]:
    """Kubelet has the DRA driver registered, and the scheduler has its devices."""
    yield from facts.dra


def sockets(facts: ReadinessFacts) -> Iterator[Check]:
    """The daemon's own sockets answered when it last dialled them, and that was recently."""
    for name, known in facts.sockets.items():
        yield _known(f"socket {name}", known, facts.now)


def checkpoint(facts: ReadinessFacts) -> Iterator[Check]:
    """Kubelet's checkpoint can be read, or there is none because no pod ever had a device."""
    passes = facts.checkpoint_readable or facts.checkpoint_missing
    yield Check(name="kubelet checkpoint", passes=passes, reason=facts.checkpoint_problem)


def ledger(facts: ReadinessFacts) -> Iterator[Check]:
    """The last test write to the ledger succeeded, and it was recent."""
    since = facts.ledger_failing_since
    if since is None:
        yield _known("ledger", facts.ledger, facts.now)
    else:
        told = f"no write has succeeded for {facts.now - since:.0f} s"
        reason = f"{told}: {facts.ledger.problem}" if facts.ledger.problem else told
        yield Check(name="ledger", passes=False, reason=reason, public=told, seen=facts.ledger.at)


def lanes(facts: ReadinessFacts) -> Iterator[Check]:
    """No blocking call is past its deadline."""
    for name, since in facts.lanes.items():
        reason = "" if since is None else f"a call has hung for {facts.now - since:.0f} s"
        yield _open(f"lane {name}", passes=since is None, reason=reason)


def resets(facts: ReadinessFacts) -> Iterator[Check]:
    """No device reset or check hangs."""
    yield Check(name="device resets", passes=not facts.resets, reason=facts.resets)


def hardware(facts: ReadinessFacts) -> Iterator[Check]:
    """The last hardware scan succeeded, and it was recent."""
    yield _known("hardware", facts.hardware, facts.now)


def devices(facts: ReadinessFacts) -> Iterator[Check]:
    """The node has devices. Without any it is ready all the same, unless settings require one.

    A rule for single devices that does nothing is told, and is no reason to be unready.
    """
    passes = facts.devices > 0 or not facts.require_devices
    idle = facts.idle_rules
    if facts.devices and idle:
        public = f"rules that do nothing: {len(idle)}"
        yield Check(name="devices", passes=passes, reason="; ".join(idle), public=public)
    else:
        reason = "no devices on this node" if not facts.devices else ""
        yield _open("devices", passes=passes, reason=reason)


def vendors(facts: ReadinessFacts) -> Iterator[Check]:
    """The adapters' own checks pass, such as that a driver answers."""
    yield from facts.vendors


def specs(facts: ReadinessFacts) -> Iterator[Check]:
    """The CDI specs are written; without them new containers get device nodes by path."""
    yield Check(name="CDI specs", passes=not facts.specs, reason=facts.specs)


def configuration(facts: ReadinessFacts) -> Iterator[Check]:
    """The configuration as it is now is the one in use; otherwise the former one is."""
    problem = facts.configuration
    notes = [f"document {facts.document}"] if facts.document else []
    notes += [facts.node_label] if facts.node_label else []
    told = "the changed configuration cannot be used; the former one stays in use"
    yield Check(
        name="configuration",
        passes=not problem,
        reason=problem or "; ".join(notes),
        public=told if problem else "",
    )


def labels(facts: ReadinessFacts) -> Iterator[Check]:
    """The node labels are written, where they are wanted."""
    if facts.labels is not None:
        yield Check(name="node labels", passes=not facts.labels, reason=facts.labels)


def first_look(facts: ReadinessFacts) -> Iterator[Check]:
    """All processes were scanned once since the start; no container passes the gate before."""
    reason = "" if facts.looked else "the first scan of all processes has not finished"
    yield _open("first process scan", passes=facts.looked, reason=reason)


def watch(facts: ReadinessFacts) -> Iterator[Check]:
    """Locks were compared with the node recently; nothing becomes free without that."""
    yield _known("lock reconciliation", facts.watch, facts.now)


def sight(facts: ReadinessFacts) -> Iterator[Check]:
    """The last scan could see every process; otherwise less can be proven."""
    name, gaps = "process visibility", facts.sight
    yield Check(
        name=name,
        passes=not gaps,
        reason=gaps[0] if gaps else "",
        public=f"the last scan had gaps: {len(gaps)}" if gaps else "",
        seen=facts.sighted,
    )


def privileges(facts: ReadinessFacts) -> Iterator[Check]:
    """No permission or mount that the settings need is missing."""
    yield _open("privileges", passes=not facts.lacks, reason="; ".join(facts.lacks))


RULES: tuple[Rule, ...] = (
    registrations,
    streams,
    dra,
    sockets,
    checkpoint,
    ledger,
    lanes,
    resets,
    hardware,
    devices,
    specs,
    labels,
    vendors,
    first_look,
    watch,
    sight,
    privileges,
    configuration,
)
"""Every check, in the order in which they are listed."""


def judge_readiness(facts: ReadinessFacts, rules: Sequence[Rule] = RULES) -> tuple[Check, ...]:
    """Return the checks of *facts*; the daemon is ready when all pass."""
    return tuple(check for rule in rules for check in rule(facts))


def _open(name: str, *, passes: bool, reason: str, seen: float | None = None) -> Check:
    """Return a check whose whole reason is public."""
    return Check(name=name, passes=passes, reason=reason, public=reason, seen=seen)


def _known(name: str, known: Known, now: float) -> Check:
    if known.problem:
        return Check(name=name, passes=False, reason=known.problem, seen=known.at)
    reason = ""
    if known.at is None:
        reason = "no result yet"
    elif now - known.at > known.patience:
        reason = f"the last result is {now - known.at:.0f} s old, which is too old"
    return _open(name, passes=not reason, reason=reason, seen=known.at)
