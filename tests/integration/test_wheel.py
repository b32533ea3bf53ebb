"""The wheel, installed into an empty folder, runs without the checkout: packaging errors show."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import holdfast
from pictures import recording

_PATIENCE = 300.0


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed and nothing else."""
    wheels = tmp_path_factory.mktemp("wheels")
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, repository],
        check=True,
        timeout=_PATIENCE,
    )
    (wheel,) = wheels.iterdir()
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", folder, wheel],
        check=True,
        timeout=_PATIENCE,
    )
    return folder


def _only(*folders: Path) -> dict[str, str]:
    """Return an environment in which Python finds what is in *folders*, and the libraries."""
    path = (*map(str, folders), sysconfig.get_path("purelib"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _run(
    installed: Path, *arguments: str, where: Path, command: str = "holdfast"
) -> subprocess.CompletedProcess[str]:
    """Run the installed command. `-S` keeps the checkout away, which a .pth file would bring."""
    return subprocess.run(
        [sys.executable, "-S", installed / "bin" / command, *arguments],
        env=_only(installed),
        cwd=where,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )


def test_the_installed_command_is_the_wheels_and_tells_its_version(
    installed: Path, tmp_path: Path
) -> None:
    done = _run(installed, "--version", where=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == holdfast.__version__
    assert (installed / "holdfast/cli/__init__.py").is_file()


def test_the_command_of_nvidias_chart_is_there_and_takes_its_flags(
    installed: Path, tmp_path: Path
) -> None:
    done = _run(installed, "--mig-strategy=both", where=tmp_path, command="nvidia-device-plugin")

    assert done.returncode == 1
    assert "gpu.migStrategy" in done.stderr
    told = _run(installed, "-version", where=tmp_path, command="nvidia-device-plugin")
    assert told.stdout.split()[-1] == holdfast.__version__, told.stderr


def test_the_wheel_has_the_daemon_alone(installed: Path) -> None:
    packages = {each.name for each in installed.iterdir() if each.suffix != ".dist-info"}
    files = {each for each in (installed / "holdfast").rglob("*") if each.is_file()}

    assert packages == {"holdfast", "bin"}
    assert {each.suffix for each in files} == {".py", ".pyi", ".pyc", ".sql", ".typed"}
    # Only kubelet serves PodResources, so what does is a simulated one.
    serving = {each for each in files if "PodResourcesListerServicer" in each.read_text("latin-1")}
    assert {each.relative_to(installed).parts[1] for each in serving} == {"_pb"}


@pytest.mark.parametrize(
    "options",
    [(), ("--gpus",), ("--dra",), ("--sharing",)],
    ids=["chips", "gpus", "claims", "sharing"],
)
def test_the_daemon_of_the_installed_wheel_plays_in_the_demo(
    repository: Path, installed: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "simulated", *options],
        env=_only(installed, repository / "tests"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every step happened" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 100] == []
    if not options:
        kept = (repository / "docs/pictures/demo.cast").read_text("utf-8")
        recorded = [line.text for line in recording.load(kept).lines]
        assert _steps(recorded) == _steps(done.stdout.splitlines()), (
            "run `make pictures ARGS=--record`"
        )


def _steps(lines: list[str]) -> list[str]:
    """Return what happened, without what is another on each run: times, devices, pids, answers."""
    # A line that is too long goes on in rows further to the right.
    rows = re.sub(r"\n {12}(?=\S)", " ", "\n".join(lines)).splitlines()
    told = [row.partition(" is told: ")[0] for row in rows if re.match(r" *\d+\.\d+ s ", row)]
    return [re.sub(r"[0-9a-f]{4}:[0-9a-f:.]+|[\d.]+", "N", line).strip() for line in told]


def test_the_doctor_looks_at_a_bare_folder_from_the_installed_wheel(
    installed: Path, tmp_path: Path
) -> None:
    done = _run(installed, "doctor", "--root", str(tmp_path), where=tmp_path)

    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()
