"""When a claim is over although kubelet never unprepared it."""

from enum import Enum

from msgspec import Struct


class OnServer(Enum):
    """What the API server has under the claim's name."""

    THERE = "there"
    GONE = "gone"
    ANOTHER = "another"
    UNKNOWN = "unknown"


class LostFacts(Struct, frozen=True, kw_only=True):
    """What decides whether a claim is over; `listed` and `server` as they were just read.

    `listed`: kubelet's record of claims has it, None where that cannot be read. `cgroups`: one of
    its pods has a cgroup, so that it may live.
    """

    listed: bool | None
    server: OnServer
    cgroups: bool


def why_over(facts: LostFacts) -> str | None:
    """Return why the claim is over, or None where it may not be.

    Each of the three can be wrong by itself: a server that was restored from a backup, a kubelet
    that lost its record, a pod whose cgroup is made only now.
    """
    if facts.listed is not False or facts.cgroups:
        return None
    if facts.server is OnServer.GONE:
        found = "the API server has no such claim"
    elif facts.server is OnServer.ANOTHER:
        found = "the API server has another claim of its name"
    else:
        return None
    return f"{found}, kubelet has no record of it, and none of its pods has a cgroup"
