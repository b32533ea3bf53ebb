"""The sentences that kubelet, the cluster's events and `holdfast status` show of who waits.

A sentence says what is waited for, who has it, what happens next, and where to look. Long reasons
are for the log and for `holdfast locks -o json`. docs/messages.md has every one of these texts,
with its cause and what to do.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """A sentence but for its beginning, with the names of fields.

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
    )
    HAS = MessageText(
        says="{device} is held by {owner}",
        until="{owner} has ended",
    )
    QUEUED = MessageText(
        says="{device} is for {owner}, which came first",
        then="kubelet asks again until that has had it",
        look="holdfast locks",
    )
    UNKNOWN_POD = MessageText(
        says="it is not known yet whose container this is, and {owner} waits for the same device",
        then="kubelet asks again",
        look="holdfast status",
    )
    RELEASING = MessageText(
        says="{device} is not free of {owner} yet, which has ended",
        then="it is given on when the kernel shows nobody on it",
        look="holdfast locks",
        until="the kernel shows that nobody has it any more",
    )
    NOT_FREE = MessageText(
        says="{device} is not free of {owner} yet: {reason}",
        then="holdfast looks again by itself",
        look="holdfast locks",
        until="the kernel shows that nobody has it any more",
    )
    LEFT_OPEN = MessageText(
        says="{device} is still open in {program} of {owner}, which has ended",
        then="holdfast ends it after {after} unless it is somebody's work",
        look="holdfast holders",
        until="{program} {ends}; after {after} holdfast ends it unless it is somebody's work",
    )
    LEFT_OBSERVED = MessageText(
        says="{device} is still open in {program} of {owner}, which has ended",
        then="holdfast only observes here: use holdfast release",
        look="holdfast holders",
        until="{program} {ends}; holdfast only observes here",
    )
    ENDING = MessageText(
        says="{device} is still open in {program} of {owner}, which has ended",
        then="holdfast is ending it",
        look="holdfast holders",
        until="{program} {ends}; holdfast is ending it",
    )
    STAYED = MessageText(
        says="{device} is still open in {program} of {owner}, which could not be ended",
        then="it is tried again; holdfast unquarantine tries now",
        look="holdfast holders",
        until="{program} {ends}; it is tried again, and at once by `holdfast unquarantine`",
    )
    QUARANTINED_LOCK = MessageText(
        says="{device} could not be freed of {owner}: {reason}",
        then="it is tried again; holdfast unquarantine tries now",
        look="holdfast locks",
        until="what {owner} left behind has ended; it is tried again, and at once by "
        "`holdfast unquarantine`",
    )
    STRANGER = MessageText(
        says="{device} is open in {program} {owner}, which it was not given to",
        then="holdfast ends no such program: end it if nobody needs it",
        look="holdfast holders",
        until="{program} {ends}; holdfast ends no such program",
    )
    FOREIGN = MessageText(
        says="{device} is used by a program that it was not given to",
        then="holdfast ends no such program: end it if nobody needs it",
        look="holdfast holders",
        until="that program has let go of it; holdfast ends no such program",
    )
    MACHINE = MessageText(
        says="{device} is open in {program} {owner}",
        then="if that is this pod's own virtual machine, set Kata's sandbox_cgroup_only = true",
        look="holdfast holders",
        until="{program} {ends}",
    )
    OWN_OPEN = MessageText(
        says="{device} is still open in {program}, of this pod itself",
        then="it starts when that has closed it",
        look="holdfast holders",
    )
    LEAK = MessageText(
        says="{device} is kept by a file that this pod's gVisor sandbox leaked: {program}",
        then="delete the pod, or set reclaim.leakedSandbox: restart",
        look="holdfast holders",
    )
    IN_USE = MessageText(
        says="{device} is {reason}",
        then="it starts when the kernel shows it free",
        look="holdfast holders",
    )
    UNSEEN = MessageText(
        says="it is unknown whether {device} is free: {reason}",
        then="holdfast looks again by itself",
        look="holdfast status",
    )
    BUSY = MessageText(
        says="{reason}",
        then="holdfast looks again by itself",
        look="holdfast locks",
    )
    QUARANTINED = MessageText(
        says="{device} is quarantined by hand: {reason}",
        then="it is given again after holdfast unquarantine",
        look="holdfast status",
    )
    DRAINING = MessageText(
        says="holdfast is draining: {reason}",
        then="pods start again after holdfast undrain",
        look="holdfast status",
    )
    LEDGER = MessageText(
        says="{reason}",
        then="kubelet asks again until it can be",
        look="holdfast status",
    )
    HARDWARE = MessageText(
        says="{reason}",
        then="kubelet asks again until the device is well",
        look="holdfast devices",
    )
    OTHER = MessageText(
        says="{reason}",
        then="kubelet asks again",
        look="holdfast status",
    )
    NO_SHARE = MessageText(
        says="no share of {share} is left: {reason}",
        then="kubelet asks again until one is",
        look="holdfast locks",
    )
    SEVERAL_PODS = MessageText(
        says="kubelet has given the same devices to {count} pods: {owner}",
        then="delete one of them",
    )
    GONE = MessageText(
        says="kubelet no longer has the devices for {owner}, whose container this is",
    )
    PROMISE = MessageText(
        says="{reason}",
    )
    REFUSED = MessageText(
        says="cannot {deed}: {reason}",
    )
    MISSING = MessageText(
        says="{device} is not there any more",
    )
    MISSING_HELD = MessageText(
        says="{device} is not there any more, and {owner} has it",
    )
    FAULT = MessageText(
        says="{device}: {reason}",
        look="holdfast devices",
    )

    def filled(self, device: DeviceName | None = None, **names: str) -> "FilledMessage":
        """Return it with *device* and *names* in its fields."""
        return FilledMessage(message=self, device=device, names=names)


class FilledMessage(Struct, frozen=True, kw_only=True):
    """One message, with what stands in its fields."""

    message: Message
    device: DeviceName | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return what it says, with each name in full, for the log and for `-o json`."""
        return self.message.value.says.format_map({**self.names, "device": self.device})


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
    text = _sentence(said, asked, LONGEST)
    for most in _NAMES:
        if len(text) <= LONGEST:
            break
        text = _sentence(said, asked, most)
    return _cut(text, LONGEST)


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
    return sentence(Message.REFUSED.filled(deed=deed, reason=reason))


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
    seen = blocked or BlockReason(device=device)
    if lock.state is LockState.HELD:
        return Message.HELD.filled(device, **names)
    pods = book.pods_of(lock)
    left = tuple(each for each in seen.holders if each.pod in pods)
    if lock.state is LockState.FOREIGN or (seen.holders and not left):
        return _of_strangers(device, seen.holders, book)
    reason = seen.brief or seen.reason
    if left:
        names |= _program(left)
        message = _ENDED[lock.state]
        if seen.ends_after is not None:
            names["after"] = _seconds(seen.ends_after, left)
        elif message is Message.LEFT_OPEN:
            message = Message.LEFT_OBSERVED
    elif lock.state is LockState.QUARANTINED:
        names["reason"] = reason or "what it left behind has not ended"
        message = Message.QUARANTINED_LOCK
    else:
        names["reason"] = reason
        message = Message.NOT_FREE if reason else Message.RELEASING
    return message.filled(device, **names)


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
        return Message.UNSEEN.filled(device, reason=verdict.brief or verdict.reason)
    if not holders:
        return Message.IN_USE.filled(device, reason=verdict.brief or verdict.reason)
    return _of_holders(device, holders, pods, book)


def _of_holders(
    device: DeviceName, holders: Sequence[Holder], pods: Collection[PodUid], book: Book
) -> FilledMessage:
    own = tuple(each for each in holders if each.pod in pods)
    if len(own) < len(holders):
        return _of_strangers(device, [each for each in holders if each.pod not in pods], book)
    leaks = leaking_pods(holders) & {each.pod for each in own}
    message = Message.LEAK if leaks else Message.OWN_OPEN
    return message.filled(device, **_program(own))


def of_blocked(blocked: BlockReason, pods: Collection[PodUid], book: Book) -> FilledMessage:
    """Return who was last seen on a device that *pods* are to have."""
    lock = book.locks.get(blocked.device)
    if lock is not None and lock.state is not LockState.HELD:
        return of_lock(blocked.device, lock, blocked, book)
    return _of_holders(blocked.device, blocked.holders, pods, book)


def _of_strangers(device: DeviceName, holders: Sequence[Holder], book: Book) -> FilledMessage:
    if not holders:
        return Message.FOREIGN.filled(device)
    first = _first(holders)
    where = f"of {book.pod_name(first.pod)}" if first.pod is not None else "outside any pod"
    machine = first.sandbox is Sandbox.MACHINE and first.pod is None
    message = Message.MACHINE if machine else Message.STRANGER
    return message.filled(device, **_program(holders), owner=where)


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


def _sentence(said: FilledMessage, asked: Demand | None, most: int) -> str:
    """Return the whole of it, with each name cut to *most* characters."""
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
