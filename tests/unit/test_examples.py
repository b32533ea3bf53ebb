"""What deploy/ and the README show must be what the daemon takes."""

import re
from pathlib import Path

import yaml

from holdfast.settings import convert, load


def test_the_example_configuration_is_a_valid_one(repository: Path) -> None:
    settings = load(repository / "deploy/examples/config.yaml", {})

    assert settings.pools[0].resource_name == "example.com/nvme"
    assert settings.reclaim.mode == "terminate"


def test_every_configuration_in_the_readme_is_a_valid_one(repository: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)

    assert blocks
    for block in blocks:
        convert(yaml.safe_load(block))
