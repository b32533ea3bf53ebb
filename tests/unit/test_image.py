"""The Dockerfile can be built from what is committed, and what it makes is no wider than needed."""

import fnmatch
import json
import re
from pathlib import Path

import pytest


@pytest.fixture
def steps(repository: Path) -> list[str]:
    """The Dockerfile's instructions, each on one line."""
    text = re.sub(r"^#.*\n", "", (repository / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line]


def _copied(steps: list[str]) -> list[str]:
    sources = []
    for step in steps:
        if step.startswith("COPY ") and "--from=" not in step:
            sources += step.split()[1:-1]
    return sources


def test_the_build_is_sent_every_file_that_is_copied_and_nothing_else(
    repository: Path, steps: list[str]
) -> None:
    ignored = (repository / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}

    assert "*" in ignored
    assert sent == set(_copied(steps))
    assert all((repository / name).exists() for name in sent)


def test_the_image_is_built_from_the_daemon_and_nothing_that_simulates_its_node(
    repository: Path, steps: list[str]
) -> None:
    assert "tests" not in _copied(steps)
    assert [each.name for each in (repository / "daemon").iterdir()] == ["holdfast"]
    assert not [*(repository / "daemon").rglob("*.c")]


def test_what_the_wheel_is_built_from_reaches_the_build(repository: Path, steps: list[str]) -> None:
    project = (repository / "pyproject.toml").read_text()
    named = re.findall(r'^(?:readme = |license-files = \[)"([^"]+)"', project, re.MULTILINE)

    assert named
    assert all(any(fnmatch.fnmatch(each, copied) for copied in _copied(steps)) for each in named)


def test_every_stage_stands_on_the_base_that_a_digest_can_pin(steps: list[str]) -> None:
    bases = [step.split()[1] for step in steps if step.startswith("FROM ")]

    assert bases == ["${BASE}", "python", "python"]


def test_nothing_is_installed_that_no_lock_names(steps: list[str]) -> None:
    installs = re.findall(r"pip install ([^&]*)", " ".join(steps))

    assert installs
    for options in installs:
        assert "--require-hashes" in options or "--no-index" in options


def test_probes_are_left_to_kubernetes_and_signals_reach_the_daemon(steps: list[str]) -> None:
    entry = next(step for step in steps if step.startswith("ENTRYPOINT "))

    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["tini", "-s", "--", "holdfast"]
    assert not any(step.startswith("HEALTHCHECK") for step in steps)
