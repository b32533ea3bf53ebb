"""The image, built on a base of Debian's packages: `make image` where no registry is asked.

All of it lies in build/image. As root, buildah and mmdebstrap are installed where they are missing.
"""

import ast
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from vm import packages, parts
from vm.parts import LackingError

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build/image"

_TOOLS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}
_NAME = "localhost/holdfast:tested"
_DRIVERS = ("overlay", "vfs")  # the second where build/ is on an overlay itself, as in a container
# As Debian's own small images have it. Done at the end: mmdebstrap takes long to leave files out.
_SLIM = """
cd "$1"
printf 'path-%s\\n' 'exclude=/usr/share/doc/*' 'include=/usr/share/doc/*/copyright' \\
    'exclude=/usr/share/locale/*' 'exclude=/usr/share/man/*' \\
    > etc/dpkg/dpkg.cfg.d/slim
find usr/share/doc usr/share/locale usr/share/man -type f ! -name copyright -delete
"""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# How pip reaches an index. What names a file or a folder of this machine means nothing in a build.
_REACHED = ("index-url", "extra-index-url", "find-links", "proxy", "retries", "timeout")
_TRUSTED = "trusted-host"


class Image(Struct, frozen=True):
    """The image, unpacked into `root`; `base` is the archive of what it was built on.

    `config` is what a container runtime reads, such as Entrypoint and Env.
    """

    root: Path
    base: Path
    sbom: Path
    config: Mapping[str, Any]


def made(*, tell: Callable[[str], None]) -> Image:
    """Return the image of this checkout, built unless that was done from the same files.

    Raises LackingError with the reason where it cannot be built.
    """
    if os.geteuid() != 0:
        raise LackingError("an image is built as root: not root")
    WORK.mkdir(parents=True, exist_ok=True)
    with _only_one():
        suite = _suite()
        image = Image(
            root=WORK / "root",
            base=WORK / f"base-{suite}.tar",
            sbom=WORK / "holdfast.cdx.json",
            config={},
        )
        complete, digest = WORK / "complete.json", _digest()
        if complete.exists():
            was = json.loads(complete.read_text())
            if was["digest"] == digest:
                return Image(image.root, image.base, image.sbom, was["config"])
            complete.unlink()
        parts.install(_TOOLS, tell)
        base = f"localhost/debian:{suite}"
        environment = _environment()
        if not _output(environment, "images", "--quiet", "--filter", f"reference={base}"):
            _make_base(image.base, suite, tell)
            _import(image.base, base, environment)
        tell(f"building the image on {base}")
        try:
            _make_image(base, environment)
        except LackingError:
            _unmount()
            raise
        _unpack(image.root, environment)
        inspected = _output(environment, "inspect", "--type", "image", _NAME)
        config = json.loads(inspected)["OCIv1"]["config"]
        complete.write_text(json.dumps({"digest": digest, "config": config}))
        return Image(image.root, image.base, image.sbom, config)


@contextmanager
def _only_one() -> Iterator[None]:
    with (WORK / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _suite() -> str:
    """Return the suite of Debian that the Dockerfile's own base is of."""
    found = re.search(
        r"^ARG BASE=debian:(\w+)", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1]


def _digest() -> str:
    """Return what stands for everything that the image is built from."""
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    sent = [REPOSITORY / line.removeprefix("!") for line in ignored if line.startswith("!")]
    files = [REPOSITORY / "Dockerfile", REPOSITORY / "requirements-sbom.lock", Path(__file__)]
    for path in sent:
        files += [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.parent.name != "__pycache__":
            digest.update(f"{file} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _environment() -> Mapping[str, str]:
    """Return the environment of a buildah that has its storage in WORK and needs no runtime."""
    settings, temporary = WORK / "storage.conf", WORK / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {
        "BUILDAH_ISOLATION": "chroot",
        "BUILDAH_LAYERS": "true",
        "CONTAINERS_STORAGE_CONF": str(settings),
        "TMPDIR": str(temporary),
    }
    reasons = []
    for driver in _DRIVERS:
        settings.write_text(
            f'[storage]\ndriver = "{driver}"\n'
            f'graphroot = "{WORK}/storage-{driver}"\nrunroot = "{WORK}/run"\n'
        )
        try:
            _output(environment, "info")
        except LackingError as error:
            reasons.append(str(error))
        else:
            return environment
    raise LackingError("; ".join(reasons))


def _output(environment: Mapping[str, str], *arguments: str) -> str:
    return parts.run(["buildah", *arguments], environment=dict(environment)).strip()


def _make_base(target: Path, suite: str, tell: Callable[[str], None]) -> None:
    """Make an archive of what Debian's own small image has, by the machine's source of packages."""
    reasons = []
    for name, source in packages.own_sources_of(suite):
        tell(f"making a base of Debian {suite}, from where {name} points")
        given = WORK / name
        given.write_text(source)
        options = [f"--aptopt={line}" for line in packages.ways_to_the_archive()]
        options += ['--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io"]
        options.append(f"--customize-hook={_SLIM}")
        try:
            parts.run(
                [
                    *("mmdebstrap", "--quiet", "--variant=minbase", "--skip=output/dev", *options),
                    *(suite, str(target), str(given)),
                ]
            )
        except LackingError as error:
            reasons.append(str(error))
        else:
            return
    raise LackingError("; ".join(reasons) or f"no source of this machine gives Debian {suite}")


def _import(archive: Path, name: str, environment: Mapping[str, str]) -> None:
    container = _output(environment, "from", "scratch")
    _output(environment, "add", "--quiet", container, str(archive), "/")
    _output(environment, "commit", "--quiet", "--rm", container, name)


def _make_image(base: str, environment: Mapping[str, str]) -> None:
    settings = WORK / "pip.conf"
    settings.write_text(_pip_settings())
    options = f"--network host --secret id=pip.conf,src={settings}"
    certificates = _certificates()
    if certificates is not None:
        options += f" --secret id=certificates,src={certificates}"
    parts.run(
        [
            *("make", "image", "BUILDER=buildah", f"BASE={base}", f"IMAGE={_NAME}"),
            *(f"BUILD_OPTIONS={options}", f"PYTHON={sys.executable}"),
        ],
        folder=REPOSITORY,
        environment=dict(environment),
    )


def _unmount() -> None:
    """Undo the mounts that a build leaves that fails: with them build/ cannot be removed."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    for place in reversed([line.split()[4] for line in lines]):
        if place.startswith(f"{WORK}/storage-"):
            parts.run(["umount", place])


def _pip_settings() -> str:
    """Return a pip.conf by which pip reaches an index as it does here, whatever says so here."""
    lines = parts.run([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    found = {}
    for line in lines:
        matched = re.fullmatch(r"[^.]+\.([\w-]+)=('.*'|\".*\")", line)
        if matched and matched[1] in {*_REACHED, _TRUSTED}:
            words = str(ast.literal_eval(matched[2])).split()
            kept = [word for word in words if not word.startswith(("/", "file:"))]
            if kept:
                found[matched[1]] = "\n    ".join(kept)
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())


def _certificates() -> Path | None:
    """Return the certificates that pip trusts here, or None where it has but its own."""
    listed = parts.run([sys.executable, "-m", "pip", "config", "list"])
    by_pip = re.findall(r"\.cert=['\"](.*)['\"]$", listed, re.MULTILINE)
    named = [os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")]
    for each in (*by_pip, *named, str(_CERTIFICATES)):
        if each and Path(each).is_file():
            return Path(each)
    return None


def _unpack(root: Path, environment: Mapping[str, str]) -> None:
    """Write the image's files below *root*, as a runtime would."""
    shutil.rmtree(root, ignore_errors=True)
    container = _output(environment, "from", "--pull-never", _NAME)
    try:
        mounted = _output(environment, "mount", container)
        parts.run(["cp", "--archive", mounted, str(root)])
    finally:
        _output(environment, "rm", container)


def files_of(base: Path) -> Mapping[str, tarfile.TarInfo]:
    """Return what the archive *base* has, by its path from the root."""
    with tarfile.open(base) as archive:
        return {member.name.removeprefix("./"): member for member in archive}
