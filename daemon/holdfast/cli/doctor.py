"""The doctor command: checks a node and says what is wrong with it; it changes nothing."""

import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from errno import EACCES
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import example, settings_sources, with_output, with_settings
from holdfast.cli.tables import passing, show_report
from holdfast.errors import HoldfastError, SettingsError
from holdfast.model.text import some

if TYPE_CHECKING:  # no other command needs them
    from holdfast.doctor.finding import Check, Finding
    from holdfast.settings import Settings

_INDENT = " " * 8
_CORRECT = "correct the document, or the node's label; the daemon follows both"


def _folder(_context: click.Context, _option: click.Parameter, root: Path) -> Path:
    try:
        found = root.stat()
    except OSError as error:
        # /proc/1/root can be seen without these rights, but not entered.
        more = "; run as root with the capability SYS_PTRACE" if error.errno == EACCES else ""
        raise click.BadParameter(f"cannot read {root}: {error.strerror}{more}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise click.BadParameter(f"{root} is not a folder")
    return root.absolute()


@click.command(epilog=example("holdfast doctor --root /proc/1/root --all"))
@click.option(
    "--root",
    # Not resolved: /proc/1/root reads as a link to /, but leads to the host's root.
    type=click.Path(path_type=Path, readable=False),
    callback=_folder,
    default="/",
    help="The root folder of a copied or mounted node. Its programs and sockets are not used then.",
)
@click.option(
    "--runtime-handler",
    "handlers",
    multiple=True,
    metavar="NAME",
    help="A handler that a RuntimeClass of the cluster uses; the node must have it. Repeatable.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 also for a WARN.")
@click.option("--all", "every", is_flag=True, help="Also show what each check that is OK found.")
@with_settings
@with_output
def doctor(
    *,
    root: Path,
    handlers: tuple[str, ...],
    config: Path | None,
    changes: dict[str, str],
    output: str | None,
    strict: bool,
    every: bool,
) -> None:
    """Show what is wrong with this node, failures first, and what to do.

    Exits with 1 for a FAIL. Changes nothing on the node.
    """
    from msgspec import to_builtins  # noqa: PLC0415 - no other command needs these
    from msgspec.structs import replace  # noqa: PLC0415 - as above

    from holdfast.doctor.areas import examine  # noqa: PLC0415 - as above
    from holdfast.doctor.finding import Level, Node  # noqa: PLC0415 - as above
    from holdfast.doctor.programs import run  # noqa: PLC0415 - as above

    settings, first = _settings(config, changes, live=str(root) == "/")
    node = Node(settings=settings, root=root, runtime_handlers=handlers)
    if node.live:
        node = replace(node, ask=cache(run))  # several areas ask the same, and it may hang
    found = [replace(first, area="configuration"), *examine(node)]
    counts = Counter(finding.level for finding in found)
    report = {
        "root": str(root),
        "counts": {level.value: counts[level] for level in Level},
        "findings": to_builtins(found),
    }
    told = ", ".join(f"{counts[level]} {level.value}" for level in Level)
    where = "" if str(root) == "/" else f"; read only files below {root}"
    lines = _all_lines(found) if every or output else _lines(found)
    show_report(report, output, lambda: [told + where, *lines])
    if counts[Level.FAIL] or (strict and counts[Level.WARN]):
        raise click.exceptions.Exit(1)


def _settings(
    config: Path | None, changes: dict[str, str], *, live: bool
) -> tuple["Settings", "Finding"]:
    """Return the daemon's settings, or the defaults if they are invalid, with a finding.

    Where the node is *live*, a daemon that runs is asked whether it goes by them.
    """
    from holdfast.doctor.finding import Check  # noqa: PLC0415 - no other command needs it
    from holdfast.settings import Settings  # noqa: PLC0415 - --help does without
    from holdfast.settings.sources import for_start  # noqa: PLC0415 - as above

    check = Check("settings")
    try:
        found = for_start(lambda: settings_sources(config, changes))
    except SettingsError as error:
        return Settings(), check.fail(
            f"{error}; the checks below use the defaults",
            remedy="correct it: the daemon does not start with it; `holdfast config --schema` "
            "prints all settings that there are",
        )
    if told := "; ".join(filter(None, (found.refused, found.instead))):
        return found.settings, check.fail(told, remedy=_CORRECT)
    source = "no --config: defaults and environment" if config is None else str(config)
    by_daemon = _by_daemon(found.settings, check) if live else None
    return found.settings, by_daemon or check.ok(source)


def _by_daemon(ours: "Settings", check: "Check") -> "Finding | None":
    """Return how the running daemon goes by others than *ours*; None: it does not, or is down.

    It alone knows what the node's label says now.
    """
    from holdfast.control import ask  # noqa: PLC0415 - no other command needs it
    from holdfast.settings import convert  # noqa: PLC0415 - as above
    from holdfast.settings.reloading import changed  # noqa: PLC0415 - as above

    try:
        answer = ask(Path(ours.state_dir), "debug")
    except TimeoutError:
        return check.warn(
            "the daemon runs and does not answer: it is unknown whether it goes by them",
            remedy="see its log; if it does not answer for minutes, restart it",
        )
    except (OSError, HoldfastError):
        return None
    for each in answer["checks"]:
        if each["name"] == "configuration" and not each["passes"]:
            return check.fail(each["reason"], remedy=_CORRECT)
    with suppress(SettingsError):  # of another version
        if others := changed(convert(answer["settings"]), ours):
            return check.warn(
                f"the daemon has other values of {some(others)} than the checks below go by",
                remedy="give the doctor the daemon's --config, --set and environment; if they have "
                "changed since, `holdfast reload` says why they are not in use",
            )
    return None


def _lines(found: Iterable["Finding"]) -> list[str]:
    """Return what is wrong, failures first, then the names of the checks that are OK."""
    from holdfast.doctor.finding import Level  # noqa: PLC0415 - no other command needs it

    wrong = sorted(
        (each for each in found if each.level is not Level.OK),
        key=lambda each: each.level is not Level.FAIL,
    )
    well = [f"{each.area} {each.check}" for each in found if each.level is Level.OK]
    return [*_all_lines(wrong), "", *passing(dict.fromkeys(well))]


def _all_lines(found: Iterable["Finding"]) -> Iterator[str]:
    """Yield each of *found* below the heading of its area, with its remedy."""
    for area, findings in groupby(found, key=lambda finding: finding.area):
        yield ""
        yield area
        for finding in findings:
            yield f"  {finding.level.value:<4}  {finding.check}: {finding.reason}"
            if finding.remedy:
                yield _INDENT + finding.remedy
