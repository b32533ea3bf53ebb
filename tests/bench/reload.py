"""How soon a running daemon goes by a file that has changed."""

import itertools
import time
from typing import Any

import yaml

from bench.figures import Figure
from bench.rig import Place, Rig, rig
from holdfast.model.node.restarts import FREE

_WAITS = itertools.cycle(("9s", "10s"))
_URLS = itertools.cycle(("http://a", "http://b"))
"""Of what takes a restart and changes no device."""


async def reload(place: Place, *, n: int = 20) -> list[Figure]:
    """Measure from a renewed file to its being in use: at once, and by a restart in the process."""
    async with rig(place) as made:
        live = [await _taken_up(made, n) for n in range(1, n + 1)]
    restarts: list[float] = []
    while len(restarts) < n // 2:
        async with rig(place) as made:  # of which the next restart would wait
            restarts += [await _restarted(made) for _ in range(FREE)]
    return [
        Figure(
            name="reload_applied",
            samples=live,
            reach=200.0,
            note=(
                "from a renewed file, as kubelet renews a ConfigMap, to its being in use, with 50 ms in "
                "which it must stand still"
            ),
        ),
        Figure(
            name="reload_restart",
            samples=restarts,
            reach=600.0,
            note=(
                "the same where it takes a restart in the same process, to eight healthy devices that "
                "kubelet would grant"
            ),
        ),
    ]


async def _taken_up(made: Rig, number: int) -> float:
    began = _renew(made, gate={"wait": next(_WAITS)})
    taken_up = await made.until(
        lambda: made.log.count("configuration reloaded") == number, "the file to be in use"
    )
    return (taken_up - began) * 1000


async def _restarted(made: Rig) -> float:
    made.forget_registration()
    began = _renew(made, tpu={"vbarUrl": next(_URLS)})
    return (await made.until(made.registered, "eight healthy devices") - began) * 1000


def _renew(made: Rig, **changes: Any) -> float:
    made.settings |= changes
    draft = made.config.with_suffix(".new")
    draft.write_text(yaml.safe_dump(made.settings))
    began = time.perf_counter()
    draft.rename(made.config)
    return began
