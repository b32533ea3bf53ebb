"""What a person withholds by hand goes to no new pod, through all changes, until it is taken back."""

import random

from matrix.oracle import ViolationError
from matrix.world import EVERYTHING, World, promised
from simulated.pods import Pod


async def _do(made: World, *arguments: str) -> None:
    done = await made.command(*arguments)
    if done.returncode:
        said = done.stderr.strip()
        raise ViolationError(
            f"by hand: {arguments}: {said!r} (a person can withhold, and give back)"
        )


async def withhold(made: World, names: dict[str, str], chance: random.Random) -> str:
    """Withhold the node, or a piece of hardware of *names*, by its id; return what was said."""
    id_ = chance.choice((EVERYTHING, *sorted(names)))
    if id_ == EVERYTHING:
        await _do(made, "drain")
    else:
        await _do(made, "quarantine", names[id_], "--reason", "it is drawn")
    made.marked, made.exempt = id_, frozenset(made.kubelet.pods)
    return f"withheld {id_}"


async def release(made: World, name: str, pod: Pod) -> None:
    """End what *pod* left on the device *name*; refused while the daemon has not looked yet."""
    said = ""

    async def over() -> bool:
        nonlocal said
        if made.orphans(pod):
            said = (await made.command("release", name, "--yes")).stderr
        return not made.orphans(pod)

    wait = made.until(over, lambda: f"the end of what is left; release says {said!r}")
    await promised(made, wait, "by hand: release ends what a pod left")


async def give_back(made: World) -> None:
    """Take back what is withheld, which the daemon still has to know."""
    marks = (await made.asked("status"))["byHand"]
    if len(marks) != 1:
        raise ViolationError(f"by hand: status has {marks} (a mark lasts until it is taken back)")
    made.marked = ""
    for each in marks:
        await _do(made, *(("unquarantine", each["device"]) if each["device"] else ("undrain",)))
