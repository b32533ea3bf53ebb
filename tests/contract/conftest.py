"""What the tests of NVML share: the stub of its library, and processes that load it in their turn."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fakes.nvml import build
from forked import Template


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """A process that has loaded all but the library."""
    with closing(Template.of("fakes.gpu_health", "holdfast.host.nvidia.nvml")) as made:
        yield made
