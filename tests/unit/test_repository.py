"""The repository keeps the promises that its layout makes."""

import re
import tomllib
from pathlib import Path

import pytest

import holdfast

LOCKS = ["requirements.lock", "requirements-dev.lock", "requirements-build.lock"]


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
