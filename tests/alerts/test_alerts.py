"""The alert rules: each names metrics that exist, has its entry in the runbook, and fires when it should."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from alerts.queries import REPOSITORY, problems
from fetched import program

_FILE = REPOSITORY / "deploy/alerts/holdfast.yaml"
_STORIES = REPOSITORY / "tests/alerts/stories.yaml"
_RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(_FILE.read_text())["groups"] for rule in group["rules"]
]
_RUNBOOK = (REPOSITORY / "docs/operations.md").read_text("utf-8")
_ENTRIES = dict(
    re.findall(r"^### (Holdfast\w+)\n\n(.*?)(?=^#|\Z)", _RUNBOOK, re.MULTILINE | re.DOTALL)
)
_SEVERITIES = {"critical", "warning", "info"}


def _name(rule: dict[str, Any]) -> str:
    return str(rule["alert"])


@pytest.mark.parametrize("rule", _RULES, ids=_name)
def test_each_rule_names_metrics_and_labels_that_the_daemon_has(rule: dict[str, Any]) -> None:
    assert problems(rule["expr"]) == []
    # A daemon that does not answer has no metric of its own: that it is down, Prometheus says.
    assert re.search(r"\bholdfast_|^up\{.*holdfast", rule["expr"])


@pytest.mark.parametrize("rule", _RULES, ids=_name)
def test_each_rule_says_how_bad_it_is_what_it_is_about_and_where_to_read_on(
    rule: dict[str, Any],
) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in _SEVERITIES
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_the_runbook_has_an_entry_for_each_alert_and_no_other() -> None:
    assert list(_ENTRIES) == [rule["alert"] for rule in _RULES], (
        "docs/operations.md needs an entry for each, in the order of the rules"
    )


@pytest.mark.parametrize("rule", _RULES, ids=_name)
def test_each_entry_says_how_bad_it_is_what_it_means_where_to_look_and_what_to_do(
    rule: dict[str, Any],
) -> None:
    entry = _ENTRIES[rule["alert"]]

    assert entry.startswith(f"{rule['labels']['severity'].capitalize()}. ")
    assert "\n\nLook: " in entry
    assert "\n\nDo: " in entry


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("holdfast_nonsense > 0", ["no metric holdfast_nonsense"]),
        ("holdfast_kubelet_call_seconds > 0", ["no metric holdfast_kubelet_call_seconds"]),
        ('holdfast_devices{stat="free"}', ["holdfast_devices has no label stat"]),
        ('holdfast_devices{state="freed"}', ["holdfast_devices has no state freed"]),
        ("sum by (colour) (holdfast_devices)", ["nothing has a label colour"]),
    ],
)
def test_the_check_of_names_finds_what_is_wrong(expression: str, told: list[str]) -> None:
    assert problems(expression) == told


def _run(*arguments: object) -> None:
    ended = subprocess.run(
        [program("promtool", package="prometheus"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=_STORIES.parent,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prometheus_itself_takes_the_rules() -> None:
    _run("check", "rules", _FILE)


def test_each_alert_fires_in_its_story_when_it_should_and_at_no_other_time() -> None:
    stories = yaml.safe_load(_STORIES.read_text())["tests"]
    told = [each for story in stories for each in story.get("alert_rule_test", ())]

    assert {each["alertname"] for each in told if each["exp_alerts"]} == set(map(_name, _RULES)), (
        "tests/alerts/stories.yaml needs a story in which each fires"
    )
    _run("test", "rules", _STORIES)
