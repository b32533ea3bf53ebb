"""That containerd 1.x makes of its files what we say it makes: asked with `containerd config dump`."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from fetched import program
from holdfast.doctor.containerd.facts import NEW, OLD, cri_config, read_configuration, table
from holdfast.doctor.finding import Node
from holdfast.settings import Settings

V2 = "version = 2\n"


def runtime(plugin: str, name: str) -> str:
    return f'[plugins."{plugin}".containerd.runtimes.{name}]\nruntime_type = "x"\n'


@pytest.fixture(scope="module")
def containerd() -> Path:
    found = program("containerd", package="containerd")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    if " 1." not in said.stdout and " v1." not in said.stdout:
        pytest.skip(f"this containerd is not 1.x: {said.stdout.strip()}")
    return found


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"": V2 + runtime(OLD, "a")}, id="its own version"),
        pytest.param({"": V2 + runtime(NEW, "a")}, id="the new table"),
        pytest.param({"": runtime("cri", "a")}, id="no version"),
        pytest.param({"": runtime(OLD, "a")}, id="no version, and the table of version 2"),
        pytest.param({"": "version = 3\n" + runtime(NEW, "a")}, id="version 3"),
        pytest.param({"": V2 + runtime(OLD, "a"), "1": V2 + runtime(OLD, "b")}, id="a drop-in"),
        pytest.param({"": V2 + runtime(OLD, "a"), "1": V2}, id="a drop-in of something else"),
        pytest.param({"": V2 + runtime(OLD, "a"), "1": runtime(OLD, "b")}, id="without version"),
        pytest.param(
            {"": V2, "9": V2 + runtime(OLD, "b"), "10": V2 + runtime(OLD, "a")}, id="the order"
        ),
        pytest.param({"": V2, ".hidden": V2 + runtime(OLD, "a")}, id="a hidden drop-in"),
        pytest.param({"": V2, "beside/1": V2 + runtime(OLD, "a")}, id="a folder that is not asked"),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_it_reads_the_same_runtimes(
    files: dict[str, str], beside: bool, containerd: Path, tmp_path: Path
) -> None:
    """*beside*: the pattern has no folder of its own, and containerd looks somewhere else."""
    main = tmp_path / "config.toml"
    folder = "conf.d" if beside else str(tmp_path / "conf.d")
    for name, text in files.items():
        path = tmp_path / f"conf.d/{name}.toml" if name else main
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name else f'imports = ["{folder}/*.toml"]\n{text}')
    command = [str(containerd), "--config", str(main), "config", "dump"]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    plugin = table(table(tomllib.loads(dumped.stdout), "plugins"), OLD)
    theirs = set(table(table(plugin, "containerd"), "runtimes"))

    read = read_configuration(Node(settings=Settings()), str(main), major=1)
    ours = {each.name for each in cri_config(read.files, major=1).runtimes}
    # Without any, its own default.
    assert (ours or {"runc"}) == theirs
