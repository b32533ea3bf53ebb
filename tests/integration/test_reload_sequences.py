"""Whatever a running daemon took up, it ends as one that was started with what there is last."""

import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fakes.controlplane import control_plane
from fakes.namednode import Cluster
from fakes.stage import POOL, Stage, pod

_POOL = {"pools": [{"resourceName": POOL, "devices": ["1ae0:0063"]}]}
_LIVE: list[dict[str, Any]] = [
    {"gate": {"wait": "2s", "exclusiveOpen": False}},
    {"reclaim": {"mode": "observe", "foreignScan": "30s"}},
    {"log": {"level": "debug"}},
    {"discovery": {"rescan": "1s"}, "readiness": {"requireDevices": True}},
    {"withholdAfter": "20s", "history": {"perDevice": 10}, "liveness": {"loopStall": "20s"}},
    {"allocate": {"commitTimeout": "1s", "pendingTimeout": "50s"}},
    {"gpu": {"look": "1s", "monitors": ["agent"], "disableHealthChecks": "79"}},
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
_DOCUMENTS = ("default", "other")
_GOOD = [{}, *_LIVE, *_RESTART]

_Step = tuple[str, Any]
"""``file`` and its keys, the name of a document and its keys, or ``label`` and the document."""


def _texts(contents: list[dict[str, Any]]) -> st.SearchStrategy[_Step]:
    return st.tuples(st.sampled_from(["file", *_DOCUMENTS]), st.sampled_from(contents))


_steps = st.lists(
    st.one_of(
        _texts([*_GOOD, *_REFUSED]),
        st.tuples(st.just("label"), st.sampled_from([*_DOCUMENTS, "nowhere"])),
    ),
    min_size=1,
    max_size=5,
)
_last = st.fixed_dictionaries(
    {
        "file": st.sampled_from(_GOOD),
        "label": st.sampled_from(_DOCUMENTS),
        **{name: st.sampled_from(_GOOD) for name in _DOCUMENTS},
    }
)


@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))
@example(
    [("file", _REFUSED[1]), ("file", _LIVE[1])],
    {"file": _POOL, "label": "default", "default": {}, "other": {}},
)
@example(
    [("other", _REFUSED[0]), ("label", "other"), ("label", "nowhere"), ("file", _LIVE[0])],
    {"file": {}, "label": "other", "default": _RESTART[1], "other": _POOL},
)
@given(_steps, _last)
def test_any_sequence_ends_as_a_start_with_what_there_is_last_and_no_lock_is_lost(
    steps: list[_Step], last: dict[str, Any]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    try:
        asyncio.run(_story(folder, [*steps, *last.items()]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _story(folder: Path, steps: list[_Step]) -> None:
    with control_plane(folder) as plane:
        cluster = Cluster(plane, folder / "named")
        for name in _DOCUMENTS:
            cluster.document(name)
        cluster.label(ours="default")
        async with cluster.daemon(folder, chips=2) as node:
            holder = await node.run(pod("holder"))
            locks = dict.fromkeys(node.ids(holder), "held")
            await node.until_locks(locks)
            base = dict(node.settings)
            for what, content in steps:
                await _change(node, cluster, base, what, content)
                await _settled(node)
                await node.until_locks(locks)
            reloaded = await _state(node)

            await node.kill_and_start()
            await node.until_locks(locks)
            assert await _state(node) == reloaded
            assert node.orphans(holder), "its program runs on"


async def _change(
    node: Stage, cluster: Cluster, base: dict[str, Any], what: str, content: Any
) -> None:
    if what == "file":
        node.settings = {**base, **content}
        node.config.write_text(yaml.safe_dump(node.settings))
    elif what == "label":
        cluster.label(ours=content)
        await node.until(lambda: _label_told(node) == content, "the label")
    else:
        cluster.document(what, **content)


def _label_told(node: Stage) -> str:
    """Return the label that the daemon read last."""
    told = [line for line in node.log.splitlines() if '"node label changed"' in line]
    return json.loads(told[-1])["value"] if told else "default"


async def _settled(node: Stage) -> None:
    """Return when the daemon goes by what there is now, or has refused it."""

    async def so() -> bool:
        answer = await node.asked("reload")
        if answer is None or "times within an hour" in answer["problem"]:
            return False
        return not answer["changed"] or bool(answer["problem"])

    await node.until(so, "the change to be taken up or refused")


async def _state(node: Stage) -> dict[str, Any]:
    """Return by what the daemon goes, and what kubelet and people see of it."""
    resources = {each["name"] for each in (await node.asked("status"))["resources"]}
    await node.until(
        lambda: all(node.healthy(each) for each in resources), "every resource to be offered"
    )
    return {
        "settings": (await node.asked("debug"))["settings"],
        "document": await node.problem("configuration"),
        "resources": {each: node.healthy(each) for each in resources},
        "locks": await node.owners(),
    }
