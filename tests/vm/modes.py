"""How the daemon can run in the guest: with which settings, which way, and what it lacks there.

A mode's name is that of the settings; `CHART` before it is the way of the chart: as the one container
of a pod whose manifest the chart makes for these settings, instead of as root with all there is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vm import topology

TPU = "google.com/tpu"
POOL = "example.com/edu"
NVME = "example.com/nvme"

OBSERVE, TERMINATE, BLIND = "observe", "terminate", "without-capabilities"
OWN_PIDS = "own-pid-namespace"
RESTART = "with-restart-of-leaked-sandboxes"
BY_NAME = "by-name"
RESET, READ_ONLY = "with-reset", "with-reset-on-a-read-only-sys"
OPENING = "with-every-device"
NO_PTRACE, NO_SEARCH, NO_KILL = "without-sys-ptrace", "without-dac-read-search", "without-kill"
MANIFEST = "as-shipped"
NO_CGROUPS, CHURN = "without-the-cgroup-tree", "in-64-mib"
CLAIMS, CLAIMS_TERMINATE = "claims", "claims-and-terminate"
CHART = "chart "
DRIVER, NODE = "holdfast.dev", "node-1"
SERVICE_ACCOUNT = "/run/holdfast/serviceaccount"

# Where a node waits for minutes, a case waits for seconds; the rescan must never be what helps.
_SETTINGS: Mapping[str, Any] = {
    "withholdAfter": "60s",
    "discovery": {"rescan": "1h"},
    "kubelet": {"question": {"minInterval": "200ms", "settle": "200ms", "idleInterval": "2s"}},
    "gate": {"wait": "1s"},
    "log": {"format": "json"},
    "pools": [
        {
            "resourceName": POOL,
            "devices": [topology.EDU],
            "addresses": [topology.MIXED_GROUP[0], "0000:03:*"],
        },
        {"resourceName": NVME, "devices": [topology.NVME]},
    ],
}
_RECLAIM: Mapping[str, Any] = {
    "letGoGrace": "1s",
    "orphanGrace": "1s",
    # An emulated machine takes seconds to look at a sandbox with a dozen processes.
    "evidenceAge": "15s",
    "sandboxGrace": "1s",
    "leakGrace": "1s",
    "termGrace": "1s",
    "killGrace": "10s",
    "unseenGrace": "2s",
    "retry": {"first": "1s", "last": "2s"},
}
_CLAIMS: Mapping[str, Any] = {
    "tpu": {"api": "dra"},
    "dra": {"nodeName": NODE, "serviceAccount": SERVICE_ACCOUNT, "unprepareWait": "2s"},
}
_RESETS: Mapping[str, Any] = {
    "reset": "afterForcedRelease",
    "resetTimeout": "3s",
    "rebind": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How the daemon runs. `reclaim` is reclaim.mode; `changes` are to the other settings.

    `limit` is what of guest/limits.py is taken from it where it runs as root. `lacks` is what the
    chart gives and is taken away: a capability, hostPID, or a mount by the beginning of its name.
    `values` are those of the chart besides `config`.
    """

    reclaim: str = "terminate"
    changes: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    limit: str = ""
    lacks: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    by_claims: bool = False
    """Whether TPU chips come by claims; all else comes by the device plugin in any case."""
    as_shipped: bool = False
    """Whether the pod is that of deploy/manifests, word for word, with no settings of ours."""

    @property
    def resources(self) -> Sequence[str]:
        """What kubelet is told of."""
        if self.as_shipped:
            return (TPU,)
        return (POOL, NVME) if self.by_claims else (TPU, POOL, NVME)

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration file, without what differs between the ways."""
        settings = {**_SETTINGS, "reclaim": {**_RECLAIM, "mode": self.reclaim}}
        for name, change in self.changes.items():
            before = settings.get(name, {})
            settings[name] = change if isinstance(change, str) else {**before, **change}
        return settings


# In the order in which their cases run, but for the first (see all_cases).
MODES: Mapping[str, Mode] = {
    OBSERVE: Mode(reclaim="observe"),
    TERMINATE: Mode(),
    CLAIMS: Mode(reclaim="observe", by_claims=True, changes=_CLAIMS),
    CLAIMS_TERMINATE: Mode(by_claims=True, changes=_CLAIMS),
    # A sandbox is ended only while a start of its pod waits for it: what a start may wait has to do
    # for two looks at the node, however slow the machine is; a third would be for the grace.
    RESTART: Mode(
        changes={
            "reclaim": {"leakedSandbox": "restart", "leakGrace": "0s"},
            "gate": {"wait": "25s"},
        }
    ),
    # Devices are handed over by CDI name. After a reboot no start may be refused, however slow the
    # machine is with its first look.
    BY_NAME: Mode(
        reclaim="observe", changes={"deviceListStrategy": "cdi", "gate": {"wait": "25s"}}
    ),
    # It would end orphans if it could see enough; without these it must not.
    BLIND: Mode(limit="without_capabilities", lacks=("SYS_PTRACE", "DAC_READ_SEARCH")),
    # As without hostPID: what runs elsewhere on the node is not there for it.
    OWN_PIDS: Mode(limit="own_pid_namespace", lacks=("hostPID",)),
    # The chart: a function is reset while its group is held open, which takes every device.
    RESET: Mode(changes={"reclaim": _RESETS}, values={"privileged": True}),
    READ_ONLY: Mode(changes={"reclaim": _RESETS}, limit="read_only_sys", lacks=("sys-",)),
    # The device cgroup of other containers forbids to open the node of a group.
    OPENING: Mode(values={"privileged": True}),
    MANIFEST: Mode(as_shipped=True),
    NO_PTRACE: Mode(lacks=("SYS_PTRACE",)),
    NO_SEARCH: Mode(lacks=("DAC_READ_SEARCH",)),
    NO_KILL: Mode(lacks=("KILL",)),
    NO_CGROUPS: Mode(lacks=("cgroup",)),
    CHURN: Mode(values={"resources": {"limits": {"memory": "64Mi"}}}),
}
"""The modes by name."""


def mode_of(name: str) -> Mode:
    """Return what *name* stands for, the way aside."""
    return MODES[name.removeprefix(CHART)]
