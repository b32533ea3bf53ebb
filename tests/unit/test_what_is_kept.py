"""What the daemon keeps in memory is of pods that are in its book: thousands come and go."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from holdfast.model.book.claims import REMEMBERED
from kills.daemon import Guards
from kills.story import Story

_PODS = 40


def _kept(thing: object, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Yield every collection that *thing*, or a part of holdfast below it, has, with its name."""
    if id(thing) in seen or not type(thing).__module__.startswith("holdfast.reclaim"):
        return
    seen.add(id(thing))
    for name, value in getattr(thing, "__dict__", {}).items():
        if isinstance(value, Mapping | AbstractSet | Sequence) and not isinstance(value, str):
            yield f"{type(thing).__name__}.{name}", value
        else:
            yield from _kept(value, seen)


class _Churn(Story):
    """Pods that come and go, and a daemon that never dies."""

    async def run(self) -> tuple[set[str], dict[str, set[str]]]:
        """Return every pod that there was, and what is kept of those that are over, by place."""
        await self.daemon.start()
        pods: set[str] = set()
        for number in range(_PODS):
            await self._a_pod_comes()
            await self._time_passes(2.0)
            pods |= {str(uid) for uid in self.daemon._ledger.book.value.pods}  # type: ignore[union-attr]
            (self._a_pod_finishes, self._a_pod_is_deleted, self._a_pod_is_deleted_by_force)[
                number % 3
            ]()
            await self._time_passes(12.0)
        for pod in [each for each in self.kubelet.pods if not each.over]:
            self.kubelet.end_pod(pod, leaks=False)
        await self._calm()
        # Claims that are over are remembered for ten minutes, and a lost one is over a little later.
        for _ in range(14):
            await self._time_passes(REMEMBERED / 10)
        book = {str(uid) for uid in self.daemon._ledger.book.value.pods}  # type: ignore[union-attr]
        kept: dict[str, set[str]] = {}
        for name, value in _kept(self.daemon._watcher, set()):
            text = repr(value)
            kept[name] = {pod for pod in pods - book if pod in text}
        await self.daemon.end()
        return pods, kept


@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(120)
async def test_of_a_pod_that_is_over_nothing_is_kept(tmp_path: Path) -> None:
    pods, kept = await _Churn(7, tmp_path, Guards()).run()

    assert len(pods) > _PODS // 4, "without pods that had devices nothing is proved"
    assert len(kept) > 5, "the collections are to be found"
    assert {name: left for name, left in kept.items() if left} == {}
