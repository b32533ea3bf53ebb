"""A node that is in order, for each test to break in one way."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nodetree import NodeTree


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[NodeTree]:
    tree = NodeTree(tmp_path / "node", capsys)
    try:
        yield tree
    finally:
        tree.close()
