"""The dashboard: every query names what exists, Prometheus takes it, and Grafana can lay it out."""

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.queries import REPOSITORY, exposed, problems, selectors
from fetched import program

_BOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy/dashboards/holdfast.json").read_text())
_PANELS: list[dict[str, Any]] = _BOARD["panels"]
_SHOWING = [panel for panel in _PANELS if panel["type"] != "row"]
_QUERIES = [(panel["title"], each["expr"]) for panel in _SHOWING for each in panel["targets"]]
_VARIABLES = {each["name"]: each for each in _BOARD["templating"]["list"]}
_WIDTH = 24


@pytest.mark.parametrize(("title", "query"), _QUERIES)
def test_each_query_names_metrics_and_labels_that_the_daemon_has(title: str, query: str) -> None:
    assert problems(query) == []
    assert "holdfast_" in query


@pytest.mark.parametrize(("title", "query"), _QUERIES)
def test_each_query_is_about_the_nodes_that_were_chosen(title: str, query: str) -> None:
    found = [*selectors(query)]
    assert found
    assert all(("node", "=~", "$node") in each.matchers for each in found)


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {each.metric for _, query in _QUERIES for each in selectors(query)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed()}

    queried = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert families == queried, "deploy/dashboards/holdfast.json needs a query for each metric"


def test_every_variable_that_is_used_is_there_and_asks_for_what_exists() -> None:
    text = json.dumps(_BOARD)
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}

    assert used == set(_VARIABLES)
    for each in _VARIABLES.values():
        if each["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"]["query"])
            assert asked is not None
            assert asked[2] in exposed()[asked[1]] | {"node"}


@pytest.mark.parametrize("panel", _SHOWING, ids=lambda panel: str(panel["title"]))
def test_each_panel_says_what_it_shows_in_which_unit_from_the_data_source_that_was_chosen(
    panel: dict[str, Any],
) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    sources = [panel["datasource"], *(each["datasource"] for each in panel["targets"])]
    assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in sources)
    names = [each["refId"] for each in panel["targets"]]
    assert len(set(names)) == len(names)


def test_panels_have_their_own_ids_and_places() -> None:
    ids = [panel["id"] for panel in _PANELS]
    assert len(set(ids)) == len(ids)
    for panel in _PANELS:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= _WIDTH
    for one, other in itertools.combinations([panel["gridPos"] for panel in _PANELS], 2):
        apart_across = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_down = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_across or apart_down


def test_prometheus_itself_takes_every_query(tmp_path: Path) -> None:
    rules = [
        {
            "record": f"panel:{number}",
            "expr": query.replace("$__rate_interval", "5m").replace('"$', '"'),
        }
        for number, (_, query) in enumerate(_QUERIES)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    ended = subprocess.run(
        [program("promtool", package="prometheus"), "check", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(rules)} rules found" in ended.stdout
