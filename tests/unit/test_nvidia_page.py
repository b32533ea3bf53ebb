"""The page on NVIDIA's plugin is true: tests it names exist, variables it calls the same are read."""

from pathlib import Path

from holdfast.settings import known_paths
from holdfast.settings.nvidia_plugin import CONFIG_FILE, KUBELET_SOCKET, OTHERS, VARIABLES


def _rows(repository: Path) -> list[str]:
    page = (repository / "docs" / "nvidia.md").read_text()
    return [line for line in page.splitlines() if line.startswith("| ")]


def test_whatever_the_page_calls_the_same_names_its_test(repository: Path) -> None:
    same = [row for row in _rows(repository) if "| same" in row]

    assert same
    assert [row for row in same if "`test_" not in row] == []


def test_every_variable_of_nvidias_that_is_read_is_on_the_page_with_its_key(
    repository: Path,
) -> None:
    rows = _rows(repository)

    for variable, path in VARIABLES.items():
        assert path in known_paths()
        assert any(f"`{variable}`" in row and f"`{path}`" in row for row in rows), variable


def test_every_other_option_of_nvidias_is_on_the_page(repository: Path) -> None:
    rows = "".join(_rows(repository))

    assert [
        name for name in (*OTHERS, CONFIG_FILE, KUBELET_SOCKET) if f"`{name}`" not in rows
    ] == []
