"""What runs in a pod's sandbox, by what its container runtime keeps on disk."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.ids import PodUid


class RuntimeTask(Struct, frozen=True, kw_only=True):
    """One container as a file of the runtime's has it.

    `sandbox` is the id of its sandbox, and `pod` its pod, each None where the file does not tell.
    `unreadable` says why the file tells nothing.
    """

    id: str
    sandbox: str | None = None
    pod: PodUid | None = None
    pause: bool = False
    """It is the container that does nothing but keep the sandbox."""
    ended: bool = False
    unreadable: str = ""


class RuntimeState(Struct, frozen=True, kw_only=True):
    """What the runtime's files say of one pod; `problem` is why they say nothing, or is empty."""

    containers: tuple[str, ...] = ()
    """The ids of the containers that run in its sandbox, or are about to; pause is left out."""
    problem: str = ""

    @property
    def only_pause(self) -> bool:
        """Tell whether it is certain that no container but pause runs."""
        return not self.problem and not self.containers


def state_of(pod: PodUid, tasks: Iterable[RuntimeTask]) -> RuntimeState:
    """Return what *tasks*, all that the runtime has, say of *pod*.

    That nothing is found proves something only where the pod's own sandbox is found: the runtime
    may keep its files elsewhere. What runs is believed even where another file cannot be read.
    """
    every = tuple(tasks)
    sandboxes = {task.sandbox for task in every if task.pod == pod and task.sandbox is not None}
    mine = [task for task in every if task.pod == pod or task.sandbox in sandboxes]
    known = [task for task in mine if not task.unreadable]
    running = {task.id for task in known if not task.pause and not task.ended}
    unclear = [
        task.unreadable
        for task in every
        if task.unreadable and (task.sandbox is None or task.sandbox in sandboxes)
    ]
    problem = ""
    if unclear:
        problem = unclear[0]
    elif not any(task.pause for task in known):
        problem = "its files do not have the pod's sandbox"
    return RuntimeState(containers=tuple(sorted(running)), problem=problem)
