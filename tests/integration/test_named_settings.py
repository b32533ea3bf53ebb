"""A node goes by the document that its label names, and follows label and document by itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import holdfast
from fakes.controlplane import NODE, control_plane
from fakes.namednode import Cluster
from fakes.stage import Stage, pod
from holdfast.names import CONFIG_LABEL


@pytest.fixture
def cluster(short_path: Path) -> Iterator[Cluster]:
    with control_plane(short_path) as plane:
        made = Cluster(plane, short_path / "named")
        made.document("default", tpu={"vbarUrl": "http://vbar"})
        made.document("slow", gate={"wait": "20s"})
        made.document("fast", version="v1", flags={"migStrategy": "none"})
        yield made


async def _goes_by(node: Stage, document: str) -> dict[str, Any]:
    await node.until_problem("configuration", f"document {document}")
    found: dict[str, Any] = (await node.asked("debug"))["settings"]
    return found


async def test_the_label_and_the_documents_are_followed_and_pods_keep_their_devices(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        assert "restarting" not in node.log, "it began with the right document"
        holder = await node.run(pod("holder"))
        locks = await node.locks()

        assert (await _goes_by(node, "slow"))["gate"]["wait"] == 20
        cluster.document("slow", gate={"wait": "15s"})
        await node.until(lambda: '"live": ["gate.wait"]' in node.log, "the document to be read")
        cluster.label(ours="nowhere", theirs="fast")
        await node.until_problem("configuration", "'nowhere', which the node's label names")
        await node.until(cluster.refusals, "an Event of it")
        assert "'nowhere', which the node's label names" in cluster.refusals()[0]
        cluster.label(theirs="fast")
        assert (await _goes_by(node, "fast"))["gate"]["wait"] == 0.5
        cluster.label()
        await node.until(
            lambda: node.log.count('"event": "started"') == 2, "the restart that it takes"
        )
        assert (await _goes_by(node, "default"))["tpu"]["vbarUrl"] == "http://vbar"

        assert await node.locks() == locks
        assert node.orphans(holder), "its program runs on"


async def test_without_the_right_to_read_the_node_it_goes_by_the_file_and_tells(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.plane.server.forbidden = {("get", "nodes")}
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        await node.until_problem("configuration", 'cannot get resource "nodes"')
        assert "document default" in await node.problem("configuration")
        assert (await node.asked("debug"))["settings"]["tpu"]["vbarUrl"] == "http://vbar"


async def test_a_start_without_the_api_server_goes_by_the_label_that_was_read_last(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        await _goes_by(node, "slow")
        cluster.plane.server.close()
        await node.kill_and_start()
        assert (await _goes_by(node, "slow"))["gate"]["wait"] == 20
        await node.until_problem("configuration", "cannot ask the API server")


async def test_where_it_may_read_the_node_and_not_watch_it_that_is_told_once(
    cluster: Cluster, short_path: Path
) -> None:
    server = cluster.plane.server
    server.forbidden = {("watch", "nodes")}
    cluster.label(ours="slow")

    def tries() -> int:
        return sum("watch=true" in each and f"name%3D{NODE}" in each for each in server.requests)

    async with cluster.daemon(short_path) as node:
        await node.until(lambda: tries() >= 4, "it to try again and again")
        assert node.log.count("cannot read the node's label") == 1
        assert "node label can be read again" not in node.log
        await node.until_problem("configuration", 'cannot watch resource "nodes"')

        server.forbidden = set()
        await node.until(lambda: "node label can be read again" in node.log, "the watch")
        cluster.label(ours="fast")
        await _goes_by(node, "fast")


async def test_a_label_that_names_nothing_prevents_no_start_and_is_followed_when_it_is_corrected(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        await _goes_by(node, "slow")
        holder = await node.run(pod("holder"))
        locks = await node.locks()
        cluster.label(ours="nowhere")
        await node.until_problem("configuration", "'nowhere', which the node's label names")
        assert "document slow" in await node.problem("configuration")

        await node.kill_and_start()
        await node.until_problem("configuration", "'nowhere', which the node's label names")
        assert (await node.asked("debug"))["settings"]["gate"]["wait"] == 20
        (told,) = await _doctor(node)
        assert told["level"] == "FAIL"
        assert "'nowhere', which the node's label names" in told["reason"]

        cluster.label(ours="fast")
        assert (await _goes_by(node, "fast"))["gate"]["wait"] == 0.5
        assert await node.locks() == locks
        assert node.orphans(holder), "its program runs on"
        assert [each["level"] for each in await _doctor(node)] == ["OK"]


async def _doctor(node: Stage) -> list[dict[str, Any]]:
    """Return what the doctor says of the configuration."""
    asked = await holdfast("doctor", "-o", "json", "--config", node.config)
    findings = json.loads(asked.stdout)["findings"]
    return [each for each in findings if each["area"] == "configuration"]


async def test_a_document_that_is_renamed_while_the_daemon_is_down_is_found(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        await _goes_by(node, "slow")
        await node.stop()
        (cluster.folder / "slow").rename(cluster.folder / "slower")
        cluster.label(ours="slower")

        await node.start_and_register()

        assert (await _goes_by(node, "slower"))["gate"]["wait"] == 20
        assert "configuration cannot be used" not in node.log


async def test_a_document_that_says_nonsense_prevents_no_start(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        await _goes_by(node, "slow")
        await node.stop()
        cluster.document("slow", gate={"wiat": "1s"})

        await node.start_and_register()

        await node.until_problem("configuration", "gate.wiat: there is no such key")
        await node.until_problem("configuration", "document slow is used, as it was when it worked")
        assert node.log.count('"event": "configuration cannot be used"') == 1
        assert (await node.asked("debug"))["settings"]["gate"]["wait"] == 20
        cluster.document("slow", gate={"wait": "10s"})
        await node.until(lambda: '"live": ["gate.wait"]' in node.log, "the document to be read")
        assert await node.problem("configuration") == "document slow"


async def test_a_first_start_beside_a_label_of_nvidias_plugin_follows_ours_when_it_is_set(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.label(theirs="tesla-t4")
    async with cluster.daemon(short_path) as node:
        await node.until_problem("configuration", "'tesla-t4', which the node's label names")
        assert node.healthy()

        cluster.label(ours="slow", theirs="tesla-t4")

        await node.until(
            lambda: node.log.count('"event": "started"') == 2, "the restart that it takes"
        )
        assert (await _goes_by(node, "slow"))["gate"]["wait"] == 20


async def test_a_label_that_cannot_be_read_on_disk_is_written_anew(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        await _goes_by(node, "slow")
        file = Path(node.settings["stateDir"]) / CONFIG_LABEL
        file.write_bytes(b"\xff")
        cluster.label(ours="fast")
        await _goes_by(node, "fast")


async def test_of_two_documents_that_say_the_same_the_one_that_is_meant_is_shown(
    cluster: Cluster, short_path: Path
) -> None:
    cluster.document("same", gate={"wait": "20s"})
    cluster.label(ours="slow")
    async with cluster.daemon(short_path) as node:
        await _goes_by(node, "slow")
        cluster.label(ours="same")
        await _goes_by(node, "same")
