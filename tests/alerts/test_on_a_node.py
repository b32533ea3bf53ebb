"""The whole of it: a daemon on a node, scraped by a real Prometheus with our rules and queries."""

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from alerts.queries import REPOSITORY
from fakes.stage import CHIPS, stage
from fetched import program

_BOARD = json.loads((REPOSITORY / "deploy/dashboards/holdfast.json").read_text())
_ALWAYS = {
    "Daemons": "1",
    "Devices": "4",
    "Held": "1",
    "Not released": "0",
    "Unhealthy": "0",
    "Waiting starts": "0",
    "Nodes without devices": "0",
}
"""What panels show of a node with four chips, one of them held."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer; raise AssertionError with Prometheus' own words."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"

        def get() -> Any:
            try:
                with urllib.request.urlopen(url, timeout=20) as answer:
                    return json.loads(answer.read())["data"]
            except urllib.error.HTTPError as error:
                with error:
                    raise AssertionError(f"{query}: {error.read().decode()}") from None

        return await asyncio.to_thread(get)

    async def until(self, query: str, value: str) -> None:
        """Return when *query* has *value*."""
        seen: object = None
        async with asyncio.timeout(60):
            while seen != [value]:
                with contextlib.suppress(OSError, AssertionError):  # not up, or not ready yet
                    data = await self.ask("query", query=query)
                    seen = [each["value"][1] for each in data["result"]]
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def _prometheus(folder: Path, scraped: int) -> AsyncIterator[_Prometheus]:
    binary, port = program("prometheus", package="prometheus"), _free_port()
    config = folder / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(REPOSITORY / "deploy/alerts/holdfast.yaml")],
                "scrape_configs": [
                    {
                        "job_name": "holdfast",
                        "static_configs": [
                            {"targets": [f"127.0.0.1:{scraped}"], "labels": {"node": "here"}}
                        ],
                    }
                ],
            }
        )
    )
    process = await asyncio.create_subprocess_exec(
        str(binary),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield _Prometheus(port)
    finally:
        process.terminate()
        await process.wait()


async def test_a_real_prometheus_scrapes_judges_and_answers_every_panel(short_path: Path) -> None:
    port = _free_port()
    async with (
        _prometheus(short_path, port) as prometheus,
        stage(short_path, http={"port": port}) as node,
    ):
        await node.allocate(CHIPS[0])
        await prometheus.until('sum(holdfast_devices{state="held"})', "1")
        await prometheus.until("min(holdfast_ready)", "1")
        await prometheus.until('holdfast_kubelet_streams{node="here"}', "1")
        shown = {}
        for panel in _BOARD["panels"]:
            for each in panel.get("targets", []):
                query = each["expr"].replace("$__rate_interval", "10s").replace('"$node"', '".*"')
                data = await prometheus.ask("query", query=query.replace('"$resource"', '".*"'))
                shown[panel["title"]] = [found["value"][1] for found in data["result"]]
        groups = (await prometheus.ask("rules"))["groups"]
        alerts = (await prometheus.ask("alerts"))["alerts"]

    assert {title: shown[title] for title in _ALWAYS} == {
        title: [value] for title, value in _ALWAYS.items()
    }
    assert shown["Failing checks"] == ["0"]
    for title in ("Registered", "Lanes", "Holders", "Memory", "Starts and versions"):
        assert shown[title], title
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [each for each in alerts if each["state"] == "firing"] == []
