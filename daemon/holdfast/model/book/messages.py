"""The sentences that kubelet, the cluster's events and `holdfast status` show of who waits.

A sentence says what is waited for, who has it, what happens next, and where to look. Long reasons
are for the log and for `holdfast locks -o json`. docs/messages.md has every one of these texts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct, field

from holdfast.model.book.book import Book, DeviceLock, LockState
from holdfast.model.ids import DeviceName, PodUid
from holdfast.model.text import printable
from holdfast.model.use.free import Freedom, Verdict
from holdfast.model.use.holders import Holder, Sandbox, held_by, leaking_pods

LONGEST = 249
"""Characters of a sentence: a list of events has a line for each, and kubelet adds words to it."""
_NAMES = range(LONGEST, 8, -8)
"""To how many characters each name is cut, until the sentence is short enough."""


class MessageText(Struct, frozen=True, kw_only=True):
    """A sentence but for its beginning, with the names of fields, and which reader the page is for.

    `says` is what keeps the device, `then` what happens next or what a person is to do, and `look`
    the command that tells more. None of them has an age or a countdown: kubelet merges events only
    while their text is the same, so a text must be equal at each try until something has changed.
    `until` is what has to happen before a locked device is free, as a narrow column of a table has
    it, which may be cut at its end.
    """

    says: str
    then: str = ""
    look: str = ""
    until: str = ""
    cause: str
    remedy: str = "none is needed"

    @property
    def template(self) -> str:
        """Return the whole of it."""
        return "; ".join(filter(None, (self.says, self.then))) + (self.look and f" ({self.look})")


class Message(Enum):
    """All of the sentences."""

    HELD = MessageText(
        says="{device} is held by {owner}",
        then="kubelet asks again until that has ended",
        look="holdfast locks",
        until="{owner} has ended",
        cause="another pod, or a claim, has the device and still runs",
    )
    HAS = MessageText(
        says="{device} is held by {owner}",
        until="{owner} has ended",
        cause="what is said of the device itself while its pod, or its claim, has it",
    )
    QUEUED = MessageText(
        says="{device} is for {owner}, which came first",
        then="kubelet asks again until that has had it",
        look="holdfast locks",
        cause="the device is free, and another pod or claim waits for it longer",
    )
    UNKNOWN_POD = MessageText(
        says="it is not known yet whose container this is, and {owner} waits for the same device",
        then="kubelet asks again",
        look="holdfast status",
        cause="kubelet's checkpoint cannot be read, so two containers could be meant",
        remedy="if it lasts, `holdfast doctor` says why the checkpoint cannot be read",
    )
    RELEASING = MessageText(
        says="{device} is not free of {owner} yet, which has ended",
        then="it is given on when the kernel shows nobody on it",
        look="holdfast locks",
        until="the kernel shows that nobody has it any more",
        cause="the pod has ended a moment ago, and who still uses the device is being looked up",
    )
    NOT_FREE = MessageText(
        says="{device} is not free of {owner} yet: {reason}",
        then="holdfast looks again by itself",
        look="holdfast locks",
        until="the kernel shows that nobody has it any more",
        cause="the pod has ended, and something other than a known process keeps the device",
        remedy="as the reason says; none is needed while it is that processes of the pod live",
    )
    LEFT_OPEN = MessageText(
        says="{device} is still open in {program} of {owner}, which has ended",
        then="holdfast ends it after {after} unless it is somebody's work",
        look="holdfast holders",
        until="{program} {ends}; after {after} holdfast ends it unless it is somebody's work",
        cause="a process outlived its pod and has the device open. The seconds are "
        "reclaim.letGoGrace and reclaim.orphanGrace together; of a sandbox at most "
        "reclaim.sandboxGrace. They begin when kubelet and the runtime are done with the pod",
        remedy="none is needed; `holdfast release` does it at once",
    )
    LEFT_OBSERVED = MessageText(
        says="{device} is still open in {program} of {owner}, which has ended",
        then="holdfast only observes here: use holdfast release",
        look="holdfast holders",
        until="{program} {ends}; holdfast only observes here",
        cause="a process outlived its pod, and reclaim.mode is observe for this device",
        remedy="end the process, or `holdfast release` the device",
    )
    ENDING = MessageText(
        says="{device} is still open in {program} of {owner}, which has ended",
        then="holdfast is ending it",
        look="holdfast holders",
        until="{program} {ends}; holdfast is ending it",
        cause="a process outlived its pod; it was sent SIGTERM, or SIGKILL after reclaim.termGrace",
    )
    STAYED = MessageText(
        says="{device} is still open in {program} of {owner}, which could not be ended",
        then="it is tried again, and now by holdfast unquarantine",
        look="holdfast holders",
        until="{program} {ends}; it is tried again, and at once by `holdfast unquarantine`",
        cause="SIGKILL did not end the process: it sleeps in the kernel, or a guard spares it",
        remedy="`holdfast history` says why; reboot the node if the kernel does not let it go",
    )
    QUARANTINED_LOCK = MessageText(
        says="{device} could not be freed of {owner}: {reason}",
        then="it is tried again, and now by holdfast unquarantine",
        look="holdfast locks",
        until="what {owner} left behind has ended; it is tried again, and at once by "
        "`holdfast unquarantine`",
        cause="a reclaim or a reset has failed, and no process is known that has the device",
        remedy="as the reason says, then `holdfast unquarantine`",
    )
    STRANGER = MessageText(
        says="{device} is open in {program} {owner}, which it was not given to",
        then="holdfast ends no such program: end it if nobody needs it",
        look="holdfast holders",
        until="{program} {ends}; holdfast ends no such program",
        cause="a program outside any pod, or of a pod without this device, has it open",
        remedy="end the program, or its pod, if nobody needs it",
    )
    FOREIGN = MessageText(
        says="{device} is used by a program that it was not given to",
        then="holdfast ends no such program: end it if nobody needs it",
        look="holdfast holders",
        until="that program has let go of it; holdfast ends no such program",
        cause="the same, and the program is not known at this moment",
        remedy="find it by `holdfast holders`; end it if nobody needs it",
    )
    MACHINE = MessageText(
        says="{device} is open in {program} {owner}",
        then="if that is this pod's own virtual machine, set Kata's sandbox_cgroup_only = true",
        look="holdfast holders",
        until="{program} {ends}",
        cause="a virtual machine that no cgroup shows to be a pod's has the device",
        remedy="set sandbox_cgroup_only = true in Kata's configuration; end any other machine",
    )
    OWN_OPEN = MessageText(
        says="{device} is still open in {program}, of this pod itself",
        then="it starts when that has closed it",
        look="holdfast holders",
        cause="a process of the pod's former container has not closed the device yet",
        remedy="none is needed; delete the pod if that process never ends",
    )
    LEAK = MessageText(
        says="{device} is kept by a file that this pod's gVisor sandbox leaked: {program}",
        then="delete the pod, or set reclaim.leakedSandbox: restart",
        look="holdfast holders",
        cause="runsc before release-20250326.0 keeps a VFIO device of a container that has ended",
        remedy="upgrade runsc, delete the pod, or set reclaim.leakedSandbox: restart",
    )
    IN_USE = MessageText(
        says="{device} is {reason}",
        then="it starts when the kernel shows it free",
        look="holdfast holders",
        cause="the kernel or the driver shows it in use, and no process is known to have it",
        remedy="as the reason says",
    )
    UNSEEN = MessageText(
        says="it is unknown whether {device} is free: {reason}",
        then="holdfast looks again by itself",
        look="holdfast status",
        cause="the driver does not say who uses the device",
        remedy="`holdfast doctor` says what keeps the driver from being asked",
    )
    BUSY = MessageText(
        says="{reason}",
        then="holdfast looks again by itself",
        look="holdfast locks",
        cause="the device is being reset, or who uses it could not be found out in time",
        remedy="none is needed; if it lasts, as the reason says",
    )
    QUARANTINED = MessageText(
        says="{device} is quarantined by hand: {reason}",
        then="it is given again after holdfast unquarantine",
        look="holdfast status",
        cause="a person keeps the device from new pods by `holdfast quarantine`",
        remedy="`holdfast unquarantine` when the device is well",
    )
    DRAINING = MessageText(
        says="holdfast is draining: {reason}",
        then="pods start again after holdfast undrain",
        look="holdfast status",
        cause="a person keeps all devices of the node from new pods by `holdfast drain`",
        remedy="`holdfast undrain` when the node is ready for pods",
    )
    LEDGER = MessageText(
        says="{reason}",
        then="kubelet asks again until it can be",
        look="holdfast status",
        cause="the ledger cannot record the start: its disk is full, or does not answer",
        remedy="make room on the disk of the ledger, or see what keeps it from answering",
    )
    HARDWARE = MessageText(
        says="{reason}",
        then="kubelet asks again until the device is well",
        look="holdfast devices",
        cause="the device is gone, was not seen yet, or reports an error",
        remedy="as the reason says; delete the pod if the device does not come back",
    )
    SPEC = MessageText(
        says="{reason}",
        then="kubelet asks again",
        look="holdfast status",
        cause="the CDI spec file that names the device's nodes is not written, or not the only one",
        remedy="as the reason says",
    )
    STARTING = MessageText(
        says="{reason}",
        then="kubelet asks again",
        look="holdfast status",
        cause="holdfast has just started, or kubelet's checkpoint cannot be read yet",
    )
    OTHER = MessageText(
        says="{reason}",
        then="kubelet asks again",
        look="holdfast status",
        cause="kubelet, its checkpoint, the API server or the disk did not answer in time",
        remedy="if it lasts, `holdfast doctor` says which, and why",
    )
    NO_SHARE = MessageText(
        says="no share of {share} is left: {reason}",
        then="kubelet asks again until one is",
        look="holdfast locks",
        cause="the scheduler gave a claim a share of a card, and others still have all of them",
    )
    SEVERAL_PODS = MessageText(
        says="kubelet has given the same devices to {count} pods: {owner}",
        then="delete one of them",
        cause="kubelet's checkpoint names the same devices for more than one pod",
        remedy="delete one of the pods",
    )
    GONE = MessageText(
        says="kubelet no longer has the devices for {owner}, whose container this is",
        cause="kubelet gave the devices up while the container waited: its pod is being deleted",
    )
    PROMISE = MessageText(
        says="{reason}",
        cause="after a reboot kubelet replays an old answer, and the device has another node now",
        remedy="delete the pod; its controller makes a new one",
    )
    REFUSED = MessageText(
        says="cannot {deed}: {reason}",
        cause="what kubelet asked for can never work: the device is gone or broken, is for no new "
        "pod any more, or the claim was allocated what this node does not have",
        remedy="as the reason says; delete the pod",
    )
    MISSING = MessageText(
        says="{device} is not there any more",
        cause="the hardware is gone",
        remedy="look into the kernel's log; delete the pod",
    )
    MISSING_HELD = MessageText(
        says="{device} is not there any more, and {owner} has it",
        cause="the hardware is gone, and its pod or claim still has it",
        remedy="look into the kernel's log; delete the pod",
    )
    FAULT = MessageText(
        says="{device}: {reason}",
        look="holdfast devices",
        cause="the device reports an error",
        remedy="as the reason says",
    )


class FilledMessage(Struct, frozen=True, kw_only=True):
    """One message, with what stands in its fields."""

    message: Message
    device: DeviceName | None = None
    names: Mapping[str, str] = field(default_factory=dict)


class BlockReason(Struct, frozen=True, kw_only=True):
    """What was last seen to keep a device from its next pod: its holders, or another reason.

    `brief` is the reason in few words, without figures that change by themselves; empty: as it is.
    `ends_after` are the seconds after which holdfast ends what an ended pod left: at the least, and
    of a sandbox at the most. None: it ends nothing here.
    """

    device: DeviceName
    holders: tuple[Holder, ...] = ()
    reason: str = ""
    brief: str = ""
    ends_after: tuple[float, float] | None = None

    def __str__(self) -> str:
        """Return all of it, for the log and for `-o json`."""
        if self.holders:
            return f"{self.device} is {held_by(self.holders)}"
        return f"{self.device} is not free: {self.reason}"


class Demand(Struct, frozen=True, kw_only=True):
    """What somebody wants: `devices`, once they are known, else `what` in words.

    `kept` is how many of them are kept from it, 0 where that is not the question. `final`: no wait
    changes that.
    """

    what: str
    devices: tuple[DeviceName, ...] = ()
    kept: int = 0
    final: bool = False

    @property
    def resource(self) -> str:
        """Return the one resource that all devices are of; empty: they are of several, or none."""
        found = {each.resource for each in self.devices}
        return next(iter(found)) if len(found) == 1 else ""

    def beginning(self, most: int) -> str:
        """Return how the sentence begins, with each name cut to *most* characters."""
        verb = "cannot start on" if self.final else "waiting for"
        if not self.devices:
            return f"{verb} {_cut(self.what, most)}: "
        count = len(self.devices)
        what = _cut(self.resource, most) or "devices"
        if count == 1:
            return f"{verb} {what}: "
        some = f"{self.kept} of " if 0 < self.kept < count and not self.final else ""
        return f"{verb} {some}{count} {what}: "


def sentence(said: FilledMessage, asked: Demand | None = None) -> str:
    """Return what is *said*, to who *asked* for it; without, of the device itself.

    It has at most `LONGEST` characters, whatever the names in it are.
    """
    return _fitting(lambda most: _sentence(said, asked, most))


def ending(said: FilledMessage, owner: str) -> str:
    """Return what has to happen before a device is free of which *said* is told.

    *owner* names who has its lock.
    """
    return said.message.value.until.format_map({**said.names, "owner": owner})


def together(texts: Iterable[str]) -> str:
    """Return the first of *texts*, and how many more there are, as one text of `LONGEST`."""
    found = list(dict.fromkeys(filter(None, texts)))
    more = f"; and {len(found) - 1} more" if found[1:] else ""
    return _cut("".join(found[:1]), LONGEST - len(more)) + more


def refusal(deed: str, reason: str) -> str:
    """Return ``cannot DEED: REASON``, for good; what is to be done stands at a reason's end."""
    said = FilledMessage(message=Message.REFUSED, names={"deed": deed, "reason": reason})
    return sentence(said)


def of_reason(message: Message, reason: str, device: DeviceName | None = None) -> FilledMessage:
    """Return *message* with a *reason* in words."""
    return FilledMessage(message=message, device=device, names={"reason": reason})


def of_lock(
    device: DeviceName, lock: DeviceLock, blocked: BlockReason | None, book: Book
) -> FilledMessage:
    """Return why *lock* keeps others from *device*, as they call it.

    *blocked* is what was last seen on it.
    """
    owner = book.owner(lock)
    # The same hardware may be locked by another name.
    whose = owner if lock.device == device else f"{owner} as {lock.device}"
    names = {"owner": whose}
    holders, ends_after = ((), None) if blocked is None else (blocked.holders, blocked.ends_after)
    if lock.state is LockState.HELD:
        return FilledMessage(message=Message.HELD, device=device, names=names)
    pods = book.pods_of(lock)
    left = tuple(each for each in holders if each.pod in pods)
    if lock.state is LockState.FOREIGN or (holders and not left):
        return _of_strangers(device, holders, book)
    reason = "" if blocked is None else blocked.brief or blocked.reason
    if left:
        names |= _program(left)
        message = _ENDED[lock.state]
        if ends_after is not None:
            names["after"] = _seconds(ends_after, left)
        elif message is Message.LEFT_OPEN:
            message = Message.LEFT_OBSERVED
    elif lock.state is LockState.QUARANTINED:
        names["reason"] = reason or "what it left behind has not ended"
        message = Message.QUARANTINED_LOCK
    else:
        names["reason"] = reason
        message = Message.NOT_FREE if reason else Message.RELEASING
    return FilledMessage(message=message, device=device, names=names)


_ENDED = {
    LockState.RELEASING: Message.LEFT_OPEN,
    LockState.RECLAIMING: Message.ENDING,
    LockState.QUARANTINED: Message.STAYED,
}


def of_verdict(
    device: DeviceName, verdict: Verdict, pods: Collection[PodUid], book: Book
) -> FilledMessage:
    """Return what the kernel shows on *device*, which *pods* have by the book."""
    holders = verdict.holders
    if verdict.freedom is not Freedom.IN_USE:
        return of_reason(Message.UNSEEN, verdict.brief or verdict.reason, device)
    if not holders:
        return of_reason(Message.IN_USE, verdict.brief or verdict.reason, device)
    return _of_holders(device, holders, pods, book)


def _of_holders(
    device: DeviceName, holders: Sequence[Holder], pods: Collection[PodUid], book: Book
) -> FilledMessage:
    own = tuple(each for each in holders if each.pod in pods)
    if len(own) < len(holders):
        return _of_strangers(device, [each for each in holders if each.pod not in pods], book)
    leaks = leaking_pods(holders) & {each.pod for each in own}
    message = Message.LEAK if leaks else Message.OWN_OPEN
    return FilledMessage(message=message, device=device, names=_program(own))


def of_blocked(blocked: BlockReason, pods: Collection[PodUid], book: Book) -> FilledMessage:
    """Return who was last seen on a device that *pods* are to have."""
    lock = book.locks.get(blocked.device)
    if lock is not None and lock.state is not LockState.HELD:
        return of_lock(blocked.device, lock, blocked, book)
    return _of_holders(blocked.device, blocked.holders, pods, book)


def _of_strangers(device: DeviceName, holders: Sequence[Holder], book: Book) -> FilledMessage:
    if not holders:
        return FilledMessage(message=Message.FOREIGN, device=device)
    first = _first(holders)
    where = f"of {book.pod_name(first.pod)}" if first.pod is not None else "outside any pod"
    machine = first.sandbox is Sandbox.MACHINE and first.pod is None
    message = Message.MACHINE if machine else Message.STRANGER
    names = {**_program(holders), "owner": where}
    return FilledMessage(message=message, device=device, names=names)


def _first(holders: Sequence[Holder]) -> Holder:
    """Return the same one of *holders* in whatever order they were found."""
    return min(holders, key=lambda each: each.process)


def _program(holders: Sequence[Holder]) -> dict[str, str]:
    """Return what the names `program` and `ends`, its verb, stand for."""
    first = _first(holders)
    more = f" and {len(holders) - 1} more" if holders[1:] else ""
    leaks = ", gvisor#11545" if first.pod in leaking_pods(holders) else ""
    program = f"{_cut(first.command, _COMMAND)} (pid {first.process}{leaks}){more}"
    return {"program": program, "ends": "end" if more else "ends"}


def _seconds(after: tuple[float, float], holders: Sequence[Holder]) -> str:
    least, most = after
    boxed = most > least and any(each.sandbox is not None for each in holders)
    return f"{least:g} to {most:g} s" if boxed else f"{least:g} s"


_CUT = "..."
_COMMAND = 24
"""Characters of a command: the kernel has 15, and those that do not print become escapes."""
_WHOLE = frozenset({"program", "after", "count"})
"""Names that are short, and worth nothing without their pid or number."""


def _fitting(make: Callable[[int], str]) -> str:
    """Return what *make* makes of names of so many characters, as many as there is room for."""
    text = make(LONGEST)
    for most in _NAMES:
        if len(text) <= LONGEST:
            break
        text = make(most)
    return _cut(text, LONGEST)


def _sentence(said: FilledMessage, asked: Demand | None, most: int) -> str:
    beginning = "" if asked is None else asked.beginning(most)
    names = {**said.names}
    if said.device is not None:
        alike = asked is not None and said.device.resource == asked.resource
        names["device"] = said.device.id if alike else str(said.device)
    shown = {name: text if name in _WHOLE else _cut(text, most) for name, text in names.items()}
    return beginning + said.message.value.template.format_map(shown)


def _cut(text: str, most: int) -> str:
    """Return *text* in at most *most* characters, without its middle: names differ at their ends.

    What does not print has escapes by then, which are longer.
    """
    shown = printable(text)
    if len(shown) <= most:
        return shown
    tail = (most - len(_CUT)) // 2
    return shown[: most - len(_CUT) - tail] + _CUT + shown[len(shown) - tail :]
