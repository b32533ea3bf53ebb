"""The image as `make image` builds it: what is in it, how much, and that the daemon finds all it needs."""

import ast
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import holdfast
from image.building import Image, files_of, made
from vm.parts import LackingError

_MB = 1_000_000
_BUILDING = 1800
_PYTHON = "/opt/holdfast/bin/python"
_IMPORTS = """
import importlib, sys
for name in sys.stdin.read().split():
    importlib.import_module(name)
"""

pytestmark = pytest.mark.timeout(_BUILDING)


@pytest.fixture(scope="module")
def image() -> Image:
    try:
        return made(tell=print)
    except LackingError as error:
        # On CI a machine has all it takes: a skip would hide a failure.
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(str(error))
        pytest.skip(str(error))


def _files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            yield str(path.relative_to(root)), path.lstat()


def _within(image: Image, *command: str, words: str = "") -> str:
    """Run a command on the image's files, which it cannot change: as in its pod."""
    root, config = str(image.root), image.config
    script = (
        'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec chroot "$0" "$@"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, root, root, *command],
        env=dict(variable.split("=", 1) for variable in config["Env"]),
        input=words,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_adds_fifty_megabytes_to_its_base_at_most(image: Image) -> None:
    base = sum(member.size for member in files_of(image.base).values() if member.isfile())
    found = {status.st_ino: status.st_size for _, status in _files(image.root)}

    assert sum(found.values()) - base <= 50 * _MB


def test_nothing_that_is_added_has_rights_of_its_own_or_can_be_written(image: Image) -> None:
    base = files_of(image.base)
    added = {
        name: stat.S_IMODE(status.st_mode)
        for name, status in _files(image.root)
        if name not in base and not stat.S_ISLNK(status.st_mode)
    }
    ours = {name: mode for name, mode in added.items() if name.startswith("opt/holdfast/")}

    assert ours
    assert [name for name, mode in added.items() if mode & 0o6022] == []
    assert [name for name, mode in ours.items() if mode & 0o222] == []


@pytest.mark.parametrize(
    "unwanted",
    [
        r"(^|/)(pip|setuptools|hatchling|ensurepip|lib2to3|idlelib|unittest)(/|$)",
        r"^var/(lib/apt/lists|cache|log)/.",
        r"(^|/)(gcc|cc|ld|as|make)$",
        r"^opt/holdfast/.*\.(pyi|pyx|pxd|c|cc|h|pem)$",
        r"^usr/lib/python3.*\.py$",
        r"^(source|wheels|build|pip\.whl|run/secrets)(/|$)",
    ],
)
def test_what_only_a_build_needs_stays_behind(image: Image, unwanted: str) -> None:
    assert [name for name, _ in _files(image.root) if re.search(unwanted, name)] == []


def test_the_commands_of_the_image_run_and_tell_its_version(image: Image) -> None:
    *_, command = image.config["Entrypoint"]

    assert image.config["Cmd"] == ["run"]
    assert _within(image, command, "--version").split()[-1] == holdfast.__version__
    told = _within(image, "nvidia-device-plugin", "-version")
    assert told.split()[-1] == holdfast.__version__
    assert image.config["Labels"]["org.opencontainers.image.version"] == holdfast.__version__


def test_every_module_that_the_daemon_names_is_there(image: Image) -> None:
    (daemon,) = image.root.glob("opt/holdfast/lib/*/site-packages/holdfast")
    names = set()
    for file in daemon.rglob("*.py"):
        parts = file.relative_to(daemon.parent).with_suffix("").parts
        if parts[-1] != "__main__":
            names.add(".".join(parts).removesuffix(".__init__"))
        names |= _named(file)

    assert {"holdfast.doctor", "ssl", "pynvml"} <= names
    # What names are looked up by, and what times are read by, is not named anywhere.
    _within(
        image, _PYTHON, "-c", _IMPORTS, words="\n".join([*names, "_strptime", "encodings.idna"])
    )


def _named(file: Path) -> set[str]:
    """Return the modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def test_the_list_of_contents_has_every_package_with_its_version(
    image: Image, repository: Path
) -> None:
    listed = _versions(json.loads(image.sbom.read_text()))
    status = (image.root / "var/lib/dpkg/status").read_text()
    debian = re.findall(
        r"^Package: (.+)\nStatus: install ok installed\n(?:.+\n)*?Version: (.+)$",
        status,
        re.MULTILINE,
    )
    python = re.findall(
        r"^([\w.-]+)==(\S+)", (repository / "requirements.lock").read_text(), re.MULTILINE
    )

    assert {"tini", "libssl3"} <= {name for name, _ in debian}
    assert set(debian) <= listed
    assert {*python, ("holdfast", holdfast.__version__)} <= listed


def _versions(sbom: Mapping[str, Any]) -> set[tuple[str, str]]:
    assert sbom["bomFormat"] == "CycloneDX"
    return {(each["name"], each.get("version", "")) for each in sbom["components"]}


def test_what_no_longer_lies_in_the_image_is_not_said_to_be_installed(image: Image) -> None:
    status = (image.root / "var/lib/dpkg/status").read_text()
    installed = re.findall(r"^Package: (.+)\nStatus: install ok installed$", status, re.MULTILINE)
    libraries = [
        name for name in installed if name.startswith(("libkrb5", "libreadline", "libtirpc"))
    ]

    assert libraries == []
