"""Whatever files a running daemon took up, it ends as one that was started with the last."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fakes.stage import POOL, Stage, pod, stage

_POOL = {"pools": [{"resourceName": POOL, "devices": ["1ae0:0063"]}]}
_LIVE: list[dict[str, Any]] = [
    {"gate": {"wait": "2s"}},
    {"reclaim": {"mode": "observe"}},
    {"log": {"level": "debug"}},
    {"discovery": {"rescan": "1s"}, "readiness": {"requireDevices": True}},
    {"withholdAfter": "20s", "history": {"perDevice": 10}},
    {"allocate": {"commitTimeout": "1s", "pendingTimeout": "50s"}},
]
_RESTART: list[dict[str, Any]] = [
    _POOL,
    {"tpu": {"vbarUrl": "http://127.0.0.1:8353"}},
]
_REFUSED: list[dict[str, Any]] = [
    {"gate": {"wiat": "1s"}},
    {"stateDir": "/srv/elsewhere"},
    {"http": {"port": 65536}},
]

_files = st.lists(st.sampled_from([{}, *_LIVE, *_RESTART, *_REFUSED]), min_size=1, max_size=4)
_last = st.sampled_from([{}, *_LIVE, *_RESTART])


@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))
@example([_REFUSED[1], _LIVE[1]], _POOL)
@example([_POOL, _REFUSED[0]], {})
@given(_files, _last)
def test_any_sequence_of_files_ends_as_a_start_with_the_last_and_no_lock_is_lost(
    files: list[dict[str, Any]], last: dict[str, Any]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    try:
        asyncio.run(_story(folder, [*files, last]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _story(folder: Path, files: list[dict[str, Any]]) -> None:
    async with stage(folder, chips=2, own_process=True) as node:
        holder = await node.run(pod("holder"))
        locks = dict.fromkeys(node.ids(holder), "held")
        await node.until_locks(locks)
        base = dict(node.settings)
        for changes in files:
            node.settings = {**base, **changes}
            node.config.write_text(yaml.safe_dump(node.settings))
            await _settled(node)
            await node.until_locks(locks)
        reloaded = await _state(node)

        await node.kill_and_start()
        await node.until_locks(locks)
        assert await _state(node) == reloaded
        assert node.orphans(holder), "its program runs on"


async def _settled(node: Stage) -> None:
    """Return when the daemon goes by the file as it is now, or has refused it."""

    async def so() -> bool:
        answer = await node.asked("reload")
        return answer is not None and (not answer["changed"] or bool(answer["problem"]))

    await node.until(so, "the file to be taken up or refused")


async def _state(node: Stage) -> dict[str, Any]:
    """Return by what the daemon goes, and what kubelet and people see of it."""
    resources = {each["name"] for each in (await node.asked("status"))["resources"]}
    await node.until(
        lambda: all(node.healthy(each) for each in resources), "every resource to be offered"
    )
    return {
        "settings": (await node.asked("debug"))["settings"],
        "resources": {each: node.healthy(each) for each in resources},
        "locks": await node.owners(),
    }
