"""The stub of NVML, processes that load it in their turn, and what other contracts share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fakes.children import Start, children
from fakes.nvml import build
from fakes.onegpu import opened_nvml
from forked import Template
from holdfast.host.nvidia.nvml import Nvml
from holdfast.runtime.lane import Lane
from simulated.proctree import ProcTree


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def nvml(library: Path) -> Iterator[Nvml]:
    """What all tests that ask NVML in this process have open: it knows one library."""
    with opened_nvml(library) as opened:
        yield opened


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """A process that has loaded all but the library."""
    with closing(Template.of("fakes.gpu_health", "holdfast.host.nvidia.nvml")) as made:
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts children that run some Python."""
    with children() as made:
        yield made


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    """A /proc of plain files in which this process is."""
    made = ProcTree(tmp_path)
    made.myself()
    return made


@pytest.fixture
def lane() -> Iterator[Lane]:
    """The lane of looks at pods."""
    with closing(Lane("pods", deadline=30.0)) as made:
        yield made
