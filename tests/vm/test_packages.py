"""Where a package of a newer suite is sought: where the machine's own source of packages points."""

from pathlib import Path

import pytest

from vm.packages import sources_of, unpacked
from vm.parts import LackingError

STANZA = """\
# mirrored
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 key
"""
NEWER = """\
Types: deb
URIs: http://mirror.example/debian
Suites: trixie
Components: main
Signed-By: -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 key
"""


def _etc(folder: Path, **files: str) -> Path:
    (folder / "sources.list.d").mkdir()
    for name, text in files.items():
        (folder / "sources.list.d" / name.replace("_", ".")).write_text(text)
    return folder


def test_a_stanza_keeps_all_but_its_suite(tmp_path: Path) -> None:
    security = STANZA.replace("bookworm bookworm-updates", "bookworm-security")
    etc = _etc(tmp_path, debian_sources=f"{STANZA}\n{security}")
    assert list(sources_of(etc, "bookworm", "trixie")) == [("debian.sources", NEWER)]


@pytest.mark.parametrize(
    ("line", "newer"),
    [
        ("deb http://a.example/debian bookworm main", "deb http://a.example/debian trixie main\n"),
        (
            "deb [signed-by=/k.gpg trusted=yes]  mirror+file:/m  stable  contrib main",
            "deb [signed-by=/k.gpg trusted=yes]  mirror+file:/m trixie main\n",
        ),
        ("deb http://a.example/debian bookworm-updates main", None),
        ("deb http://a.example/docker bookworm stable", None),
        ("deb-src http://a.example/debian bookworm main", None),
        ("# deb http://a.example/debian bookworm main", None),
    ],
)
def test_a_line_counts_if_it_gives_main_of_the_machines_suite(
    tmp_path: Path, line: str, newer: str | None
) -> None:
    etc = _etc(tmp_path)
    (etc / "sources.list").write_text(f"{line}\n")
    expected = [("sources.list", newer)] if newer else []
    assert list(sources_of(etc, "bookworm", "trixie")) == expected


def test_a_disabled_stanza_does_not_count(tmp_path: Path) -> None:
    etc = _etc(tmp_path, debian_sources=f"Enabled: no\n{STANZA}")
    assert list(sources_of(etc, "bookworm", "trixie")) == []


def test_a_machine_without_such_a_source_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(LackingError, match="cannot fetch runsc of trixie: "):
        unpacked(tmp_path / "work", "runsc", "trixie", etc=_etc(tmp_path), tell=lambda _: None)
