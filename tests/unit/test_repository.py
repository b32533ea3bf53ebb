"""The repository keeps the promises that its layout makes."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast

LOCKS = [
    "requirements.lock",
    "requirements-dev.lock",
    "requirements-build.lock",
    "requirements-site.lock",
]


def _pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))


def test_daemon_is_a_source_root_and_no_package(repository: Path) -> None:
    assert not (repository / "daemon/__init__.py").exists()
    assert Path(holdfast.__file__).parent == repository / "daemon/holdfast"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_records_no_download_address(repository: Path, name: str) -> None:
    text = (repository / name).read_text()

    assert not re.search(r"[a-z]+://|--(extra-)?index-url|--find-links|--trusted-host", text)
    assert not re.search(r"(^|[\s=@])(/|~|file:)", text), "nor a path of the machine that made it"


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_of_a_lock_file_has_hashes(repository: Path, name: str) -> None:
    text = (repository / name).read_text()
    entries = re.findall(r"^[a-z0-9].*(?:\n    --hash.*)*", text, flags=re.MULTILINE)

    assert entries
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-build.lock"])
def test_what_runs_and_what_builds_it_is_what_was_tested(repository: Path, name: str) -> None:
    used, tested = (_pins((repository / each).read_text()) for each in (name, LOCKS[1]))

    assert used.items() <= tested.items()


def test_the_locks_hold_every_direct_dependency(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[<>=]", item)[0].lower().replace("_", "-") for item in project["dependencies"]
    }

    assert wanted <= _pins((repository / "requirements.lock").read_text()).keys()


def _workflows(repository: Path) -> dict[str, dict[str, Any]]:
    folder = repository / ".github/workflows"
    return {file.name: yaml.safe_load(file.read_text()) for file in sorted(folder.glob("*.yaml"))}


def test_workflows_run_targets_of_the_makefile_and_little_else(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    allowed = ("apt-get update ", "git diff --exit-code")
    called: set[str] = set()
    for name, workflow in _workflows(repository).items():
        for job in workflow["jobs"].values():
            for command in (step["run"] for step in job["steps"] if "run" in step):
                made = re.match(r"make ([a-z]+)", command)
                assert made or command.startswith(allowed), f"{name}: {command}"
                called.update(made.groups() if made else ())
    assert called <= targets
    assert {"quick", "test", "chart"} <= called


def test_workflows_may_only_read_the_repository(repository: Path) -> None:
    for workflow in _workflows(repository).values():
        assert workflow["permissions"]["contents"] == "read"


def test_what_contributors_are_told_to_run_exists(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in ("CONTRIBUTING.md", "README.md", ".pre-commit-config.yaml"):
        named = set(
            re.findall(r"(?:`|^    )make ([a-z-]+)", (repository / page).read_text(), re.MULTILINE)
        )
        assert named <= targets, page
    assert all(f"make {target} " in makefile for target in targets - {"help"}), (
        "make help lists each"
    )


def test_the_contributors_pages_name_files_that_exist(repository: Path) -> None:
    roots = [repository, repository / "daemon/holdfast", repository / "deploy/helm/holdfast"]
    # Files of one room or one folder of tests are named alone once that was named.
    folders = (
        "daemon/holdfast/settings",
        "tests/integration/doctor",
        "deploy/kubectl-holdfast/kubectl_holdfast",
    )
    roots += [repository / folder for folder in folders]
    for page in ("CONTRIBUTING.md", "STYLE.md", "docs/add-a-vendor.md"):
        named = re.findall(
            r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:md|py|tpl|toml|json|ya?ml)))`",
            (repository / page).read_text(),
        )
        assert named
        for path in named:
            there = any((root / path).exists() for root in roots)
            assert there or "acme" in path, f"{page} names {path}"


def test_every_test_that_a_page_names_exists(repository: Path) -> None:
    tests = "\n".join(file.read_text() for file in (repository / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\b", tests))
    pages = {"decisions/hostile-review": 100, "decisions/unread-checkpoint": 1, "nvidia": 1}
    for page, least in pages.items():
        text = (repository / f"docs/{page}.md").read_text()
        named = set(re.findall(r"`(test_\w+)`", text))
        assert len(named) > least, page
        assert named <= there, named - there
