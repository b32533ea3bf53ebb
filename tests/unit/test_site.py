"""The site of `make site` has every page, and only pages that are there."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def _pages(navigation: list[dict[str, Any]]) -> Iterator[str]:
    for entry in navigation:
        for below in entry.values():
            yield from [below] if isinstance(below, str) else _pages(below)


def _site(repository: Path) -> dict[str, Any]:
    site: dict[str, Any] = yaml.safe_load((repository / "mkdocs.yml").read_text("utf-8"))
    return site


def test_every_page_is_in_the_navigation_of_the_site_once(repository: Path) -> None:
    listed = list(_pages(_site(repository)["nav"]))
    pages = [*repository.glob("*.md"), *(repository / "docs").rglob("*.md")]

    assert {str(page.relative_to(repository)) for page in pages} <= set(listed)
    assert [page for page in listed if not (repository / page).is_file()] == []
    assert len(listed) == len(set(listed))


def test_a_broken_link_fails_the_build_of_the_site(repository: Path) -> None:
    checked = _site(repository)["validation"]
    makefile = (repository / "Makefile").read_text("utf-8")
    (build,) = re.findall(r"^\t.*/mkdocs build (.*)$", makefile, re.MULTILINE)

    assert set(checked.values()) == {"warn"}
    assert build == "--strict", "--quiet drops the warnings before they are counted"


def test_what_builds_the_site_is_in_no_other_environment(repository: Path) -> None:
    groups = tomllib.loads((repository / "pyproject.toml").read_text())["dependency-groups"]
    (pinned,) = groups["site"]

    assert f"\n{pinned} " in (repository / "requirements-site.lock").read_text()
    for other in ("requirements.lock", "requirements-dev.lock", "requirements-build.lock"):
        assert "\nmkdocs==" not in (repository / other).read_text()


def test_the_readme_is_short_and_so_are_the_pages_that_say_what_to_do(repository: Path) -> None:
    def length(page: str) -> int:
        return len((repository / page).read_text("utf-8").splitlines())

    assert length("README.md") < 150
    assert all(
        length(f"docs/{page}.md") <= 40 for page in ("try", "install", "on-call", "waiting-pod")
    )
