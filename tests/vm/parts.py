"""The parts of the test machine: what Debian's packages give, and what is built from native/."""

import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
_APT = Path(__file__).parents[2] / "build/apt.lock"

_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "depmod": "kmod",
    "gcc": "gcc",
    "make": "make",
}
_SBIN = ("/usr/sbin", "/sbin")
_MODULE = "faketpu"
_FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


class LackingError(Exception):
    """The machine cannot be built or booted here; the text says what is lacking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that a boot needs; `first_modules` are those that find the root file system."""

    release: str
    kernel: Path
    modules: Path
    first_modules: tuple[Path, ...]
    faketpu: Path
    hold_device: Path
    shim: Path
    busybox: Path


def gather(work: Path, *, tell: Callable[[str], None]) -> Parts:
    """Return the parts, built in *work* unless they are there from the same inputs.

    As root, packages that are missing are installed with apt; without root they must be there.
    Raises LackingError with the reason where this cannot be done.
    """
    install(_TOOLS, tell)
    release = _fetched_release(work) or _fetch_kernel(work, tell)
    kernel_tree = work / f"kernel-{release}"
    built = _build_native(work, kernel_tree, release, tell)
    modules = kernel_tree / "lib/modules" / release
    return Parts(
        release=release,
        kernel=kernel_tree / f"boot/vmlinuz-{release}",
        modules=modules,
        first_modules=_with_dependencies(kernel_tree, release, built, _FIRST_MODULES),
        faketpu=built / f"{_MODULE}.ko",
        hold_device=built / "hold_device",
        shim=built / "containerd-shim-runsc-v1",
        busybox=Path(_which("busybox") or "busybox"),
    )


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=os.pathsep.join((os.environ.get("PATH", ""), *_SBIN)))


def install(tools: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Have the *tools*, which are packages by program; as root, those missing are installed."""
    packages = sorted({package for tool, package in tools.items() if not _which(tool)})
    if not packages:
        return
    wanted = " ".join(packages)
    if not _which("apt-get"):
        raise LackingError(f"this is not Debian, and these packages are missing: {wanted}")
    if os.geteuid() != 0:
        raise LackingError(f"not root, and these packages are missing: {wanted}")
    tell(f"installing {wanted}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _one_apt():
        run(["apt-get", "update", "-q"], environment=environment)
        run(
            ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages],
            environment=environment,
        )


@contextmanager
def _one_apt() -> Iterator[None]:
    """Have apt to ourselves: it fails where another is at work, and tests run side by side."""
    _APT.parent.mkdir(exist_ok=True)
    with _APT.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetched_release(work: Path) -> str | None:
    # A tree that was moved is of no use: its headers name their own place.
    marks = work.glob("kernel-*/complete")
    trees = [mark.parent for mark in marks if mark.read_text() == str(mark.parent)]
    newest = max(trees, key=lambda tree: (tree / "complete").stat().st_mtime, default=None)
    return newest.name.removeprefix("kernel-") if newest else None


def _depends(package: str, pattern: str) -> list[str]:
    text = subprocess.run(
        ["apt-cache", "depends", package], check=False, capture_output=True, text=True
    ).stdout
    return re.findall(rf"Depends: {pattern}$", text, flags=re.MULTILINE)


def _fetch_kernel(work: Path, tell: Callable[[str], None]) -> str:
    """Unpack Debian's current kernel and its headers below *work*; return its release."""
    if not _which("apt-get"):
        raise LackingError("this is not Debian: there is no apt-get to fetch a kernel with")
    if os.geteuid() == 0:
        with _one_apt():
            run(["apt-get", "update", "-q"])
    found = _depends("linux-image-amd64", r"linux-image-(\d\S*)")
    if not found:
        raise LackingError("apt knows no package linux-image-amd64 (run apt-get update?)")
    release = found[0]
    tell(f"fetching the kernel {release}")
    tree = work / f"kernel-{release}"
    shutil.rmtree(tree, ignore_errors=True)
    debs = tree / "debs"
    debs.mkdir(parents=True)
    headers = f"linux-headers-{release}"
    packages = [
        f"linux-image-{release}",
        headers,
        *_depends(headers, r"(linux-headers-\S+-common|linux-kbuild-\S+)"),
    ]
    run(["apt-get", "download", "-q", *packages], folder=debs)
    for deb in sorted(debs.iterdir()):
        run(["dpkg-deb", "-x", str(deb), str(tree)])
    shutil.rmtree(debs)
    # The headers say where they would be installed; they stay here instead, which takes no root.
    makefile = tree / "usr/src" / headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src", f"{tree}/usr/src"))
    run(["depmod", "-b", str(tree), release])
    (tree / "complete").write_text(str(tree))
    return release


def _build_native(work: Path, tree: Path, release: str, tell: Callable[[str], None]) -> Path:
    """Compile what native/ holds into a folder named by what went in; return that folder."""
    digest = hashlib.sha256(release.encode())
    for source in sorted(NATIVE.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    built = work / f"native-{digest.hexdigest()[:12]}"
    if (built / "complete").exists():
        return built
    tell("building the test module and the holder program")
    shutil.rmtree(built, ignore_errors=True)
    for stale in work.glob("native-*"):
        shutil.rmtree(stale)
    shutil.copytree(NATIVE, built)
    headers = tree / f"usr/src/linux-headers-{release}"
    run(["make", "-s", "-C", str(headers), f"M={built}", "modules"])
    for source in sorted(NATIVE.glob("*.c")):
        if source.stem != _MODULE:
            program = str(built / source.stem)
            run(["gcc", "-static", "-O1", "-Wall", "-o", program, str(source), "-lpthread"])
    (built / "complete").touch()
    return built


def _with_dependencies(
    tree: Path, release: str, built: Path, names: Iterable[str]
) -> tuple[Path, ...]:
    """Return the files of the modules *names*, each after what it needs, uncompressed."""
    found: dict[str, Path] = {}
    for name in names:
        text = run(["modprobe", "-d", str(tree), "-S", release, "--show-depends", name])
        for path in re.findall(r"^insmod (\S+)", text, flags=re.MULTILINE):
            found.setdefault(Path(path).name, Path(path))
    return tuple(_uncompressed(path, built) for path in found.values())


def _uncompressed(module: Path, folder: Path) -> Path:
    if module.suffix != ".xz":
        return module
    plain = folder / module.stem
    plain.write_bytes(lzma.decompress(module.read_bytes()))
    return plain


def run(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """Run *command* to its end and return its output; LackingError with its last words if it fails."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *_SBIN))
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=folder,
            env={**(environment or os.environ), "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LackingError(f"cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        words = " / ".join(done.stdout.strip().splitlines()[-4:])
        raise LackingError(f"{' '.join(command[:3])} failed ({done.returncode}): {words}")
    return done.stdout
