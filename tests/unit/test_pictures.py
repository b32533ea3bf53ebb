"""The pictures of docs/pictures are what their sources draw, and stand in the documents."""

import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pictures import recording, terminal
from pictures.all import FOLDER, LOOKS, PICTURES
from pictures.recording import Line, NotRecordedError, Recording

_STORY = (
    # What the README says that the demo tells, and the words by which the demo tells it.
    ("a pod ends", "Pod A is over for kubelet"),
    ("a process it left behind still holds a chip", "still holds a chip"),
    ("the daemon is killed and comes back", "The daemon is killed with SIGKILL"),
    (
        "the next pod waits and is told which process holds the chip",
        "is still open in python",
    ),
    ("the orphan is ended by the rules", "the orphan is ended"),
    ("and the pod starts", "Pod B starts"),
)


def _recorded(command: str, folder: Path) -> Recording:
    return recording.record(command, columns=80, environment=dict(os.environ), folder=folder)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_source_draws(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text("utf-8")

    assert drawn == PICTURES[name](), "run `make pictures`"


def test_no_picture_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_asks_for_nothing_from_elsewhere(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text("utf-8")
    without_namespace = drawn.replace('xmlns="http://www.w3.org/2000/svg"', "", 1)

    assert len(drawn) < 100_000
    assert not re.search(r"://|url\((?!#)|<script|<image|@import|@font-face", without_namespace)
    assert ET.fromstring(drawn).find("{*}title") is not None


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_stands_in_a_document(repository: Path, name: str) -> None:
    pages = [repository / "README.md", *(repository / "docs").glob("*.md")]
    shown = re.compile(rf"!\[[^\]]+\]\((docs/)?pictures/{name}\.svg\)")

    assert [page for page in pages if shown.search(page.read_text("utf-8"))]


def test_the_readme_opens_with_the_demo_and_the_recording_tells_its_story(repository: Path) -> None:
    readme = (repository / "README.md").read_text("utf-8")
    told = " ".join(readme.split())
    lines = " ".join(" ".join(line.text for line in _demo().lines).split())
    places = [lines.find(words) for _, words in _STORY]

    assert "](docs/pictures/demo.svg)" in readme.partition("\n## ")[0]
    assert all(step in told for step, _ in _STORY)
    assert -1 not in places
    assert places == sorted(places)
    assert lines.endswith("The end. Every step happened.")


def test_the_terminal_shows_every_word_of_the_recording() -> None:
    drawn = ET.fromstring(PICTURES["demo"]())
    shown = " ".join("".join(text.itertext()) for text in drawn.iterfind(".//{*}text"))

    assert _letters("".join(line.text for line in _demo().lines)) in _letters(shown)


def test_the_history_shows_that_pod_b_waited_for_what_pod_a_left_behind() -> None:
    drawn = ET.fromstring(PICTURES["history"]())
    titles = [title.text or "" for title in drawn.iterfind(".//{*}path/{*}title")]
    told = [re.sub(r" \d\d-\d\d .*", "", title) for title in titles]

    assert {
        *("default/pod-a held", "default/pod-a reclaiming", "default/pod-b held"),
        "default/pod-b waits to start",
    } <= set(told)
    assert len({row[0].text for row in drawn.iterfind("{*}g")}) == 4


def test_a_line_appears_when_it_was_written() -> None:
    told = Recording("tell", 80, ((0.5, "one\r\ntw"), (1.25, "o\r\n")))

    assert told.lines == (Line(0.5, "one"), Line(0.5, "two"))
    assert terminal.svg(told, title="").count("animation-delay:0.50s") == len(told.lines)


def test_a_recording_is_what_a_command_wrote_and_is_kept_as_it_was(tmp_path: Path) -> None:
    told = _recorded("echo één; test -t 1 && echo on a terminal", tmp_path)

    assert [line.text for line in told.lines] == ["één", "on a terminal"]
    assert recording.load(recording.dump(told)) == told


@pytest.mark.parametrize("command", ["echo broken; exit 3", r"printf '\033[1mbold'"])
def test_what_fails_or_cannot_be_drawn_is_not_recorded(tmp_path: Path, command: str) -> None:
    with pytest.raises(NotRecordedError, match="cannot record "):
        _recorded(command, tmp_path)


def _demo() -> Recording:
    return recording.load((FOLDER / "demo.cast").read_text("utf-8"))


def _letters(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_the_looks_are_at_the_commands_of_the_readme_and_fit_the_terminal(repository: Path) -> None:
    recorded = recording.load((FOLDER / "look.cast").read_text("utf-8"))
    typed = [recorded.command, *(line.text[2:] for line in recorded.lines if line.text[:2] == "$ ")]
    readme = (repository / "README.md").read_text("utf-8")

    assert tuple(typed) == LOOKS
    assert all(f"| `{look.split()[0]} {look.split()[1]}" in readme for look in LOOKS)
    assert max(len(line.text) for line in recorded.lines) <= recorded.columns
