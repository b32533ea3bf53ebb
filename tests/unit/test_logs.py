"""What the daemon logs, as a program and as a person on a terminal would read it."""

import json
import os
import pty
import subprocess
import sys

import pytest

_SAY = """
import asyncio, logging, sys, warnings
from pathlib import Path
import structlog
from holdfast.telemetry.logs import set_up_logs
set_up_logs(sys.argv[1], sys.argv[2])
log = structlog.get_logger("a")
log.debug("too fine")
log.info("device locked", device="tpu/1", path=Path("/dev/vfio/3"))
secret = "hunter2"
try:
    raise RuntimeError("broken")
except RuntimeError:
    log.exception("call failed")
logging.getLogger("asyncio").error("task %s was never awaited", "x")
logging.getLogger("asyncio").info("using selector")
warnings.warn("old ways")
"""


def _said(level: str, form: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _SAY, level, form], capture_output=True, text=True, check=True
    )
    assert done.stdout == "", "standard output belongs to what a command answers"
    return done.stderr


def test_where_no_terminal_is_every_line_is_json_also_those_of_libraries() -> None:
    lines = [json.loads(line) for line in _said("info", "auto").splitlines()]

    events = [line["event"] for line in lines]
    assert events[:3] == ["device locked", "call failed", "task x was never awaited"]
    assert "old ways" in events[3]
    assert lines[0]["device"] == "tpu/1"
    assert lines[0]["level"] == "info"
    assert lines[0]["timestamp"].endswith("Z")
    assert "RuntimeError: broken" in lines[1]["exception"]


def test_text_that_goes_to_a_file_has_no_colours_and_no_values_of_variables() -> None:
    text = _said("info", "text")

    assert "device locked" in text
    assert "RuntimeError: broken" in text
    assert "\x1b" not in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("level", "first"), [("debug", "too fine"), ("info", "device locked"), ("error", "call failed")]
)
def test_nothing_below_the_level_is_said(level: str, first: str) -> None:
    assert json.loads(_said(level, "json").splitlines()[0])["event"] == first


def test_on_a_terminal_lines_are_for_people() -> None:
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", _SAY, "info", "auto"], stderr=theirs, check=True)
        text = os.read(ours, 65536).decode()
    finally:
        os.close(theirs)
        os.close(ours)

    assert "device locked" in text
    assert not text.startswith("{")
