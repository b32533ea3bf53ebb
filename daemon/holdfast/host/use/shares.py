"""How long a look takes for the processes of each pod."""

import math
import time
from collections import defaultdict
from collections.abc import Collection

from holdfast.host.cgroup.cgroups import Cgroups
from holdfast.model.ids import PodUid

_ALL_ALIKE, _SHARE = 0.3, 0.15
"""For so many seconds each process is looked at. After that the processes of one pod that has none
of the devices are for so many seconds, and the rest of them is left out: others wait for the look.
"""


class PodShares:
    """How long the processes of each pod are looked at: of a pod with many, others see no end."""

    def __init__(self, cgroups: Cgroups, owners: Collection[PodUid]) -> None:
        """Those of *owners*, who have the devices that are looked for, may take any time."""
        self._cgroups = cgroups
        self._owners = owners
        self._from = time.monotonic() + _ALL_ALIKE
        self._used: dict[PodUid, float] = defaultdict(float)
        self._begun: dict[PodUid, dict[int, float]] = defaultdict(dict)
        self._listed: set[PodUid] = set()
        self.left_out: set[int] = set()
        """Who was in a pod when nothing was left for it: that tells most of them without a read."""

    def pod(self, pid: int) -> PodUid | None:
        """Return the pod of *pid*, to which its time counts; None: it does not count."""
        if time.monotonic() < self._from:
            return None
        pod = self._cgroups.pod_of_process(pid)
        return None if pod in self._owners else pod

    def left(self, pid: int) -> float:
        """Return how many seconds *pid* may still take by its pod."""
        pod = self.pod(pid)
        return math.inf if pod is None else self._left_of(pod)

    def _left_of(self, pod: PodUid) -> float:
        now, begun = time.monotonic(), tuple(self._begun[pod].values())
        return max(0.0, _SHARE - self._used[pod] - sum(now - each for each in begun))

    def are_used_up(self, pod: PodUid) -> bool:
        """Tell whether nothing is left for *pod*; a look that gives no answer uses it as well."""
        if self._left_of(pod):
            return False
        if pod not in self._listed:
            self._listed.add(pod)
            cgroup = self._cgroups.pod(pod)
            self.left_out.update(cgroup.pids if cgroup is not None else ())
        return True

    def begin(self, pod: PodUid, pid: int) -> None:
        """Note that *pid*, of *pod*, is looked at from now on."""
        self._begun[pod][pid] = time.monotonic()

    def end(self, pod: PodUid, pid: int) -> None:
        """Note that *pid* was looked at."""
        now = time.monotonic()
        # Where one look at it hangs, a second one may have ended meanwhile.
        self._used[pod] += now - self._begun[pod].pop(pid, now)
