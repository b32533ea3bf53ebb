"""May a device be released by hand? When it may, when `--force` is needed, and why not."""

from msgspec import Struct

from holdfast.model.book.book import ClaimRecord, DeviceLock, LockState, PodRecord
from holdfast.model.ids import DeviceName
from holdfast.model.reclaim.ending import Grounds


class HandFacts(Struct, frozen=True, kw_only=True):
    """What decides whether a lock may be released by hand.

    `lock` is the one on the device's hardware, None when it is free. `shown` is the fence of what
    the person saw before they agreed. `counted` is None where kubelet gave no answer. `at_work`
    says how a container of the lock's pod is known to run, None where none does. `typed` is the
    name that came with ``--force``, None without it. `claim` is the one that has the lock, None for
    a pod of the device plugin; `holder` names who has it.
    """

    device: DeviceName
    lock: DeviceLock | None
    pod: PodRecord | None = None
    shown: int | None = None
    counted: bool | None = False
    at_work: str | None = None
    typed: str | None = None
    claim: ClaimRecord | None = None
    holder: str = ""


class HandVerdict(Struct, frozen=True, kw_only=True):
    """On which grounds something may be ended; None where not, and `refusal` tells why.

    `forced`: ``--force`` would change that. `ends_claim`: the claim that has it is over by that.
    """

    grounds: Grounds | None = None
    refusal: str = ""
    forced: bool = False
    ends_claim: bool = False


def judge_by_hand(facts: HandFacts) -> HandVerdict:
    """Return what may be ended because a person asked for it.

    The request replaces the waiting and the mode, and no guard on who a process is. Nothing is
    ended of a pod that lives, or that may live, unless the person names that very pod.
    """
    device, lock = facts.device, facts.lock
    if lock is None:
        return HandVerdict(refusal=f"{device} is free")
    if lock.state is LockState.FOREIGN:
        return HandVerdict(
            refusal=f"{device} is in use by something that holdfast did not grant it to: "
            f"{lock.evidence}; end that yourself"
        )
    claim = facts.claim
    lives = claim is not None and claim.over_at is None and not claim.had_before(lock)
    forgotten = claim is not None and lives and claim.forgotten
    if lives and not forgotten:
        return HandVerdict(
            refusal=f"{device} is held by {facts.holder}: delete the pods that use the claim, and "
            "kubelet unprepares it; where kubelet has lost the claim, delete the claim too"
        )
    if lock.pod is None or facts.pod is None:
        return HandVerdict(refusal=_nobodys(device, lock))
    if facts.shown is not None and facts.shown != lock.fence:
        return HandVerdict(
            refusal=f"the lock of {device} has changed since it was shown (now {lock.state.value}, "
            f"{lock.evidence}); look again"
        )
    alive = _alive(facts, lock, facts.pod)
    if forgotten:
        alive = f"{device} is held by {facts.holder}, and kubelet has no record of the claim"
    if alive is None:
        return HandVerdict(grounds=Grounds.RELEASE)
    if facts.typed is None:
        return HandVerdict(refusal=alive, forced=True)
    if facts.typed not in names_of(facts.pod):
        return HandVerdict(
            refusal=f"{device} belongs to pod {facts.pod}, not to "
            f"{facts.typed or 'a pod without a name'}",
            forced=True,
        )
    return HandVerdict(grounds=Grounds.FORCE, ends_claim=forgotten)


def _nobodys(device: DeviceName, lock: DeviceLock) -> str:
    if lock.pod is None and lock.state is not LockState.HELD:
        return (
            f"it is not known whose {device} was; it becomes free by itself when every "
            "process of the node can be seen and none has it: `holdfast doctor` says what hides "
            "them"
        )
    return (
        f"it is not known whose {device} is; it becomes free by itself when kubelet's "
        "checkpoint names its pod, gives it to another pod, or has had no pod with it for 10 "
        "minutes"
    )


def names_of(pod: PodRecord) -> tuple[str, ...]:
    """Return what a person may type for the pod; its UID where its name was never learned."""
    return (pod.name, f"{pod.namespace}/{pod.name}") if pod.name else (pod.uid,)


def _alive(facts: HandFacts, lock: DeviceLock, pod: PodRecord) -> str | None:
    if facts.counted is None:
        return f"kubelet gave no answer, so pod {pod} may live"
    if facts.counted:
        return f"kubelet counts pod {pod}, which has {facts.device}: delete the pod"
    if lock.state is LockState.HELD:
        return f"pod {pod} has {facts.device}"
    if facts.at_work is not None:
        return f"pod {pod} is still running: {facts.at_work}"
    return None
