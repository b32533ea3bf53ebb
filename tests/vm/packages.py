"""Packages of a newer Debian than the machine's own: fetched and unpacked, never installed."""

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vm.parts import LackingError, run

RUNSC = "RUNSC"

PROGRAMS: Mapping[str, tuple[str, str, str]] = {
    # This one is of 2024, older than the cure of what it is wanted for.
    RUNSC: ("runsc", "trixie", "usr/bin/runsc"),
}
"""What the cases can need, by its variable in the guest: package, suite, path in the package."""

_ETC = Path("/etc/apt")
_PLAIN = re.compile(r"deb\s+(?P<options>\[[^]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s(?P<parts>.*)")
_MOVING = frozenset({"oldstable", "stable", "testing", "unstable", "sid"})
# How the archive is reached from here, such as proxies. What the machine does after an update, and
# what it has pinned, is its own business.
_TAKEN_OVER = re.compile(r'Acquire::(?!IndexTargets)\S*[^:\s] ".+";')


def program(work: Path, name: str, *, tell: Callable[[str], None]) -> Path:
    """Return where the program *name* of PROGRAMS is below *work*, fetched if it is not there."""
    package, suite, path = PROGRAMS[name]
    return unpacked(work, package, suite, tell=tell) / path


def unpacked(
    work: Path, package: str, suite: str, *, etc: Path = _ETC, tell: Callable[[str], None]
) -> Path:
    """Return the folder in *work* that holds what *package* of *suite* installs, fetched once.

    The archive is the one that the machine's own source of packages names, in apt's folder *etc*.
    Raises LackingError with the reasons where none of its sources gives the package.
    """
    tree = work / f"{package}-{suite}"
    if (tree / "complete").exists():
        return tree
    if not shutil.which("apt-get"):
        raise LackingError(f"this is not Debian: there is no apt-get to fetch {package} with")
    codename = _codename()
    reasons = []
    for number, (name, source) in enumerate(sources_of(etc, codename, suite)):
        tell(f"fetching {package} of {suite}, from where {name} points")
        # By package: another one can be fetched at the same time.
        apt = work / f"apt-{package}-{suite}-{number}"
        try:
            _fetch(apt, name, source, package, tree)
        except LackingError as error:
            reasons.append(f"{name}: {error}")
            continue
        finally:
            shutil.rmtree(apt, ignore_errors=True)
        (tree / "complete").touch()
        return tree
    reason = "; ".join(reasons) or f"no source in {etc} names main of {codename or 'this Debian'}"
    raise LackingError(f"cannot fetch {package} of {suite}: {reason}")


def own_sources_of(suite: str) -> Iterator[tuple[str, str]]:
    """Yield the sources of this machine, as sources_of does."""
    return sources_of(_ETC, _codename(), suite)


def ways_to_the_archive() -> list[str]:
    """Return apt's settings for how the archive is reached from here, each as a line."""
    return [line for line in run(["apt-config", "dump"]).splitlines() if _TAKEN_OVER.match(line)]


def _codename() -> str:
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def sources_of(etc: Path, codename: str, suite: str) -> Iterator[tuple[str, str]]:
    """Yield the sources in *etc* that give the machine's own suite, made to give *suite* instead.

    Each comes with the name of a file that apt takes it from; its options and keys stay as they are.
    """
    own = _MOVING | {codename}
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if path.suffix == ".list" and path.exists():
            for line in path.read_text().splitlines():
                match = _PLAIN.fullmatch(line.strip())
                if match and match["suite"] in own and "main" in match["parts"].split():
                    yield (path.name, f"deb {match['options'] or ''}{match['uri']} {suite} main\n")
        elif path.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", path.read_text()):
                changed = _changed_stanza(stanza, own, suite)
                if changed:
                    yield (path.name, changed)


def _changed_stanza(stanza: str, own: frozenset[str], suite: str) -> str | None:
    """Return a stanza of a .sources file for *suite*, or None if it does not give main of *own*."""
    lines = [line for line in stanza.splitlines() if not line.startswith("#")]
    # A field goes on in the lines after it that begin with a space: a key can stand in one.
    fields = dict(re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", "\n".join(lines), re.MULTILINE))
    words = {name.lower(): text.split() for name, text in fields.items()}
    if own.isdisjoint(words.get("suites", ())) or "main" not in words.get("components", ()):
        return None
    if words.get("enabled") == ["no"] or "deb" not in words.get("types", ()):
        return None
    instead = {"types": "deb", "suites": suite, "components": "main"}
    changed = {name: instead.get(name.lower(), text.strip()) for name, text in fields.items()}
    return "".join(f"{name}: {text}\n" for name, text in changed.items())


def _fetch(apt: Path, name: str, source: str, package: str, tree: Path) -> None:
    """Unpack *package* of *source* into *tree*, with lists and settings of its own in *apt*."""
    shutil.rmtree(apt, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial", "deb", "none"):
        (apt / folder).mkdir(parents=True)
    # Not taken for a list of another form: apt tells them apart by how their names end.
    (apt / name).write_text(source)
    ours = {
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": apt / "none",
        "Dir::Etc::sourcelist": apt / name,
        "Dir::Etc::sourceparts": apt / "none",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": apt / "none",
        "Dir::State": apt,
        "Dir::State::status": "/dev/null",
        "Dir::Cache": apt / "cache",
        "Acquire::Languages": "none",
        # This folder need not be open to apt's own user.
        "APT::Sandbox::User": "root",
    }
    settings = apt / "apt.conf"
    settings.write_text(
        "\n".join([*ways_to_the_archive(), *(f'{key} "{value}";' for key, value in ours.items())])
    )
    environment = {**os.environ, "APT_CONFIG": str(settings)}
    run(["apt-get", "update", "-q"], environment=environment)
    run(["apt-get", "download", "-q", package], folder=apt / "deb", environment=environment)
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    for deb in (apt / "deb").iterdir():
        run(["dpkg-deb", "-x", str(deb), str(tree)])
