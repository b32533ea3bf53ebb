"""The whole of it: a daemon on a node, scraped by a real Prometheus with our rules and queries."""

import asyncio
import contextlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from alerts.queries import REPOSITORY
from fakes.opener import opener
from fakes.stage import CHIPS, TPU, pod, stage
from fetched import program
from ports import free_port

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


_CALM = {
    ("Device faults", "A"): "no device has a fault",
    ("Waiting starts by node", "A"): "no start waits",
    ("Reclaim steps", "A"): "nothing is reclaimed",
    ("Reclaim results", "A"): "nothing is reclaimed",
    ("Hardware events", "A"): "chips report none",
    ("Least headroom", "A"): "no holder has a limit of memory",
    ("Share of the limit", "A"): "no holder has a limit of memory",
    ("Registrations", "A"): "kubelet was not restarted",
    ("Failed calls", "A"): "no call has failed",
    ("Failing checks by node", "A"): "all checks pass",
    ("Lanes past their deadline", "A"): "none is",
}
"""Queries of which a node that is well has no data; all others have some."""
_MEASURED = {
    ("Time in each state", "A"),
    ("Wait of container starts, p99", "A"),
    ("Kubelet calls, p99", "A"),
    ("Ledger commits", "A"),
    ("Ledger commits", "B"),
}
"""Queries that have a number after two pods."""
_FIRING = 'ALERTS{{alertname="{}",alertstate="firing"}}'
_RULES = REPOSITORY / "deploy/alerts/holdfast.yaml"


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

    async def values(self, query: str) -> list[str]:
        """Return the values that *query* has now."""
        data = await self.ask("query", query=query)
        return [each["value"][1] for each in data["result"]]

    async def until(self, query: str, *values: str) -> None:
        """Return when *query* has exactly *values*."""
        seen: object = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                while seen != [*values]:
                    with contextlib.suppress(OSError, AssertionError):  # not up, or not ready yet
                        seen = await self.values(query)
                    await asyncio.sleep(0.2)
        assert seen == [*values], query

    async def fires(self, alert: str, summary: str) -> None:
        """Return when *alert* fires, which says *summary*."""
        await self.until(_FIRING.format(alert), "1")
        alerts = (await self.ask("alerts"))["alerts"]
        told = [each for each in alerts if each["labels"]["alertname"] == alert]
        assert [each["annotations"]["summary"] for each in told] == [summary]

    async def resolves(self, alert: str) -> None:
        """Return when *alert* no longer fires."""
        await self.until(_FIRING.format(alert))


@contextlib.asynccontextmanager
async def _prometheus(
    folder: Path, scraped: int, rules: Path = _RULES
) -> AsyncIterator[_Prometheus]:
    binary, port = program("prometheus", package="prometheus"), free_port()
    config = folder / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rules)],
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
    port = free_port()
    async with (
        _prometheus(short_path, port) as prometheus,
        stage(short_path, http={"port": port}) as node,
    ):
        await prometheus.until("min(holdfast_ready)", "1")
        for name in ("first", "second"):  # a series has no rate until something adds to it
            await node.end(await node.run(pod(name)))
            await node.until_free()
            await prometheus.until('count(holdfast_lock_state_seconds_count{state="held"})', "1")
            await prometheus.until(
                'count(holdfast_kubelet_call_seconds_count{call="Allocate"})', "1"
            )
        # Or the last scrape could be of the second pod, and pass for that of what comes now.
        await prometheus.until('sum(holdfast_devices{state="held"})', "0")
        node.kubelet.count(TPU, CHIPS[0])
        await node.allocate(CHIPS[0])
        await prometheus.until('sum(holdfast_devices{state="held"})', "1")
        await prometheus.until('holdfast_kubelet_streams{node="here"}', "1")
        shown = await _shown(prometheus)
        groups = (await prometheus.ask("rules"))["groups"]
        alerts = (await prometheus.ask("alerts"))["alerts"]

    assert {title: shown[title, "A"] for title in _ALWAYS} == {
        title: [value] for title, value in _ALWAYS.items()
    }
    assert shown["Failing checks", "A"] == ["0"]
    assert shown.keys() >= _CALM.keys() | _MEASURED
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [each for each in alerts if each["state"] == "firing"] == []


async def _shown(prometheus: _Prometheus) -> dict[tuple[str, str], list[str]]:
    """Return the values of each query of the dashboard, once all that should have some do."""
    shown: dict[tuple[str, str], list[str]] = {}
    lacking: object = ()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not shown or lacking:
                for panel in _BOARD["panels"]:
                    for each in panel.get("targets", ()):
                        query = each["expr"].replace("$__rate_interval", "5m")
                        query = re.sub(r'"\$\w+"', '".*"', query)
                        shown[panel["title"], each["refId"]] = await prometheus.values(query)
                lacking = {
                    name
                    for name, values in shown.items()
                    if (not values and name not in _CALM)
                    or (name in _MEASURED and set(values) <= {"NaN"})
                }
                await asyncio.sleep(0.2)
    assert not lacking, "no data"
    return shown


async def test_alerts_fire_on_a_real_node_and_resolve_when_it_is_well_again(
    short_path: Path,
) -> None:
    port = free_port()
    async with (
        _prometheus(short_path, port, _impatient(short_path / "rules.yaml")) as prometheus,
        stage(short_path, http={"port": port}) as node,
    ):
        await prometheus.until("min(holdfast_ready)", "1")
        for alert in ("HoldfastAbsent", "HoldfastDeviceUnhealthy", "HoldfastDeviceForeign"):
            await prometheus.resolves(alert)

        node.node.tree.unbind(CHIPS[0])
        unhealthy = "1 of google.com/tpu on here cannot be used."
        await prometheus.fires("HoldfastDeviceUnhealthy", unhealthy)
        node.node.tree.bind(CHIPS[0], "vfio-pci")
        await prometheus.resolves("HoldfastDeviceUnhealthy")

        with opener(node.node.node("/dev/vfio/10")) as stranger:
            node.node.add_process(stranger.pid, "/system.slice/agent.service")
            await prometheus.fires(
                "HoldfastDeviceForeign",
                "1 of google.com/tpu on here are in use by a process that they were not granted to.",
            )
            stranger.close_one()
            await prometheus.resolves("HoldfastDeviceForeign")

        await node.stop()
        await prometheus.fires("HoldfastDown", "holdfast on here does not answer Prometheus.")
        await node.start_and_register()
        await prometheus.resolves("HoldfastDown")


def _impatient(copy: Path) -> Path:
    """Return *copy*, which has the rules with every wait cut to a second."""
    copy.write_text(
        re.sub(r"^( +for:) .+$", r"\1 1s", _RULES.read_text("utf-8"), flags=re.MULTILINE)
    )
    return copy
