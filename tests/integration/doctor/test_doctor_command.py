"""`holdfast doctor` as people run it: what it prints, its exit code, and that it never breaks."""

import json
import os
from pathlib import Path

import pytest

from holdfast.cli import main


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


def test_on_a_machine_with_nothing_of_all_this_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--root", str(tmp_path)]) == 0

    told = capsys.readouterr().out
    assert "configuration\n  OK    settings: " in told
    assert f" 0 FAIL; files below {tmp_path} alone were read\n" in told
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir()), "looking leaves nothing behind"


def test_on_this_very_machine_it_says_something_of_every_area(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--set", f"stateDir={tmp_path}", "--output", "json"])

    report = json.loads(capsys.readouterr().out)
    assert report["root"] == "/"
    assert "state" in {finding["area"] for finding in report["findings"]}
    for finding in report["findings"]:
        assert finding.keys() == {"area", "check", "level", "reason", "remedy"}
        assert (finding["level"] == "OK") == (finding["remedy"] == ""), finding
        assert finding["check"] != "doctor", finding
    assert sum(report["counts"].values()) == len(report["findings"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("gate: {wiat: 1s}", "did you mean gate.wait?"),
        ("gate: [", "cannot read "),
        (None, "No such file or directory"),
    ],
)
def test_a_configuration_that_cannot_be_used_fails_and_the_rest_is_checked_all_the_same(
    content: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_text(content)
    node = tmp_path / "node"
    node.mkdir()

    assert main(["doctor", "--root", str(node), "--config", str(file)]) == 1

    told = capsys.readouterr().out
    assert "  FAIL  settings: " in told
    assert complaint in told
    assert "\nstate\n" in told


def test_wrong_usage_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--root", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
