"""May the DRA driver be taken off the node? Kubelet fails pods whose claims it cannot unprepare."""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.model.kubelet import ClaimEntry


class LeavingFacts(Struct, frozen=True, kw_only=True):
    """What kubelet and the API server say at one moment.

    `entries` are kubelet's record of claims, and `unread` why that cannot be read; empty: it can,
    or there is none. `offered` are the devices that the scheduler may still give to a claim, None
    where it is not known what the API server has.
    """

    driver: str
    entries: Sequence[ClaimEntry] = ()
    unread: str = ""
    offered: Sequence[str] | None = ()


def why_driver_stays(facts: LeavingFacts) -> tuple[str, ...]:
    """Return what still needs the driver, which has to leave the node last.

    Without it kubelet cannot unprepare a claim, and its pods stay Terminating without limit.
    """
    found = [
        f"kubelet has claim {each.claim} prepared by {facts.driver}: delete its pods"
        for each in facts.entries
        if facts.driver in each.devices
    ]
    if facts.unread:
        found.append(f"it is unknown which claims kubelet has prepared: {facts.unread}")
    if facts.offered is None:
        found.append("it is unknown which devices the scheduler may still give to claims")
    found += [f"the scheduler may still give {name} to a claim" for name in facts.offered or ()]
    return tuple(found)
