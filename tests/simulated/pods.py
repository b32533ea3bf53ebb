"""What pods are asked to be, and what becomes of them, in the words of kubelet."""

import asyncio
from collections.abc import Mapping
from enum import Enum
from uuid import uuid4

from msgspec import Struct, field


class Phase(Enum):
    """Where a pod stands, as its status says."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def terminal(self) -> bool:
        """Tell whether the pod never runs again."""
        return self in {Phase.SUCCEEDED, Phase.FAILED}


class Workload(Struct, frozen=True, kw_only=True):
    """What a container's program does with the nodes it is given.

    `opens`: it opens them all. `runs_for`: it ends by itself after so many seconds. `orphan`: a
    process it forked keeps the first `orphan` nodes open after it ended, and ignores SIGTERM;
    -1: the process lives on with no node open.
    """

    opens: bool = True
    runs_for: float | None = None
    orphan: int = 0
    ignores_term: bool = False


class Container(Struct, frozen=True, kw_only=True):
    """One container of a pod: how many of which resource, and what it does."""

    name: str = "main"
    limits: Mapping[str, int] = field(default_factory=dict)
    extended: frozenset[str] = frozenset()
    """Resources that it asks for and has by a claim that the scheduler made."""
    claims: tuple[tuple[str, str], ...] = ()
    """The pod's claims that it uses, each with a request of it, or "" for all."""
    workload: Workload = field(default_factory=Workload)
    restartable: bool = False
    """For an init container: it is a sidecar, which runs beside the main ones."""


class PodSpec(Struct, frozen=True, kw_only=True):
    """A pod as it is submitted. `restart` is its restartPolicy: Always or Never.

    `claims` are the ResourceClaims, by the pod's own names for them.
    """

    name: str
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    claims: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid4()))
    restart: str = "Never"
    pull: float = 0.0
    """How many seconds its images take to be pulled."""


class Pod(Struct, kw_only=True):
    """A pod and its status; kubelet changes it, everybody may read it."""

    spec: PodSpec
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    exits: dict[str, int] = field(default_factory=dict)
    """The exit codes of containers that do not start again, by their names."""
    waiting: str = ""
    """Why a container of it does not start yet, as `kubectl describe` shows it."""
    refusals: int = 0
    """How often PreStartContainer or NodePrepareResources was answered with an error."""
    starts: int = 0
    deleting: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the pod's object has changed: kubelet then does not wait out its pause."""
    sync: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Kubelet does one thing at a time for a pod, and ends none of them early."""
    stopped: bool = False
    """The runtime said that all its containers are stopped."""
    gone: bool = False
    """Nothing is left of it, and kubelet lets its object go."""
    pulled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def uid(self) -> str:
        """Return its UID."""
        return self.spec.uid
