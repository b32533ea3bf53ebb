"""What deploy/ and docs/operations.md show must be what the daemon takes."""

import re
from pathlib import Path

import yaml

from fakes.settingsfiles import load
from holdfast.settings import convert


def test_the_example_configuration_is_a_valid_one(repository: Path) -> None:
    settings = load(repository / "deploy/examples/config.yaml", {})

    assert settings.pools[0].resource_name == "example.com/nvme"
    assert settings.reclaim.mode == "terminate"


def test_every_configuration_in_the_operations_page_is_a_valid_one(repository: Path) -> None:
    page = (repository / "docs/operations.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)

    assert len(blocks) > 1
    for block in blocks:
        convert(yaml.safe_load(block))
