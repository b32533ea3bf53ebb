"""The command line without a daemon: usage, settings, exit codes, tables."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

import holdfast
from fakes.settingsfiles import load
from holdfast.cli import main, program
from holdfast.cli.nvidia import NvidiaCommand, given, without_effect
from holdfast.cli.tables import Row, Rows, show_document, table
from holdfast.cli.views import status_lines
from holdfast.settings import Settings, convert, schema


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert holdfast.__version__ in capsys.readouterr().out


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    told = capsys.readouterr().out
    looking = (
        "status",
        "devices",
        "locks",
        "holders",
        "history",
        "debug",
        "config",
        "doctor",
        "reload",
        "why",
    )
    by_hand = ("quarantine", "unquarantine", "drain", "undrain", "release")
    for command in ("run", *looking, *by_hand):
        assert f"\n  {command} " in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["status", "--output", "xml"], "'xml' is not one of"),
        (["config", "--set", "gate.wait"], "'gate.wait' is not of the form KEY=VALUE"),
        (["history", "--limit", "0"], "0 is not in the range"),
        (["run", "--nonsense"], "No such option"),
        (["run", "--mig-strategy"], "requires an argument"),
        ([], "Usage: "),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    told = capsys.readouterr()
    assert complaint in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pass-device-specs", "--mig-strategy=both"], "gpu.migStrategy: Invalid enum value"),
        (
            ["--pass-device-specs=perhaps"],
            "cannot use --pass-device-specs with the value 'perhaps'",
        ),
        (["--kubelet-socket", "/srv/other.sock"], "--kubelet-socket with the value"),
        (["--config-file=/srv/gone.yaml"], "cannot read /srv/gone.yaml"),
        (["-mig-strategy=both"], "gpu.migStrategy: Invalid enum value"),
        (["-pass-device-specs", "-mig-strategy", "both"], "gpu.migStrategy: Invalid enum value"),
    ],
)
def test_the_daemon_takes_the_flags_of_nvidias_plugin_and_names_the_wrong_one(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 1
    assert complaint in capsys.readouterr().err


@click.command(cls=NvidiaCommand)
def _plugin() -> tuple[dict[str, str], list[str]]:
    """Return what the command line says."""
    return given(), without_effect()


@pytest.mark.parametrize(
    ("arguments", "flags", "idle"),
    [
        (
            ["--device-list-strategy=envvar", "-device-list-strategy", "cdi-cri"],
            {"device-list-strategy": "envvar,cdi-cri"},
            "",
        ),
        (["--mig-strategy=single", "--mig-strategy=mixed"], {"mig-strategy": "mixed"}, ""),
        (
            ["-gds-enabled", "start", "--mig-strategy=mixed"],
            {"gds-enabled": "true"},
            "start --mig-strategy=mixed has no effect, as with NVIDIA's plugin: start is no flag",
        ),
    ],
)
def test_arguments_of_nvidias_plugin_are_read_as_go_reads_them(
    arguments: list[str], flags: dict[str, str], idle: str
) -> None:
    found, told = _plugin.main(arguments, prog_name="nvidia-device-plugin", standalone_mode=False)
    assert found == flags
    assert told == ([f"{idle}; leave it out"] if idle else [])


def test_our_own_command_takes_no_argument_that_has_no_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "start"]) == 2
    assert "unexpected extra argument" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "config", "status"])
def test_a_setting_that_cannot_be_used_ends_with_1_and_no_traceback(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("gate: {wiat: 1s}")

    assert main([command, "--config", str(file)]) == 1
    assert capsys.readouterr().err == (
        "holdfast: cannot use the configuration: gate.wiat: there is no such key; did you mean "
        "gate.wait?\n"
    )


def test_config_prints_every_setting_as_a_file_that_is_taken_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "--set", "gate.wait=1s", "--set", "tpu.topology=2x4"]) == 0

    printed = yaml.safe_load(capsys.readouterr().out)
    assert convert(printed) == load(None, {}, {"gate.wait": "1s", "tpu.topology": "2x4"})
    assert printed.keys() == {"stateDir", "withholdAfter", "deviceListStrategy"} | {
        field for field in printed if isinstance(printed[field], (dict, list))
    }


def test_a_value_may_hold_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", "tpu.vbarUrl=http://a/?b=c"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["tpu"]["vbarUrl"] == "http://a/?b=c"


def test_config_prints_the_schema_for_charts_and_editors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_config_prints_the_settings_in_either_form(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "-o", form, "--set", "gate.wait=1s"]) == 0
    assert convert(yaml.safe_load(capsys.readouterr().out)) == load(None, {}, {"gate.wait": "1s"})


def test_config_takes_the_state_folder_as_the_other_commands_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "--state-dir", str(tmp_path)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["stateDir"] == str(tmp_path)


def test_all_commands_take_the_same_options() -> None:
    context = click.Context(program)
    found = {
        name: {option for each in command.params for option in each.opts}
        for name in program.list_commands(context)
        if (command := program.get_command(context, name)) is not None
    }
    assert found.keys() >= {"run", "release", "doctor", "config"}
    for name, options in found.items():
        assert options >= {"--config", "--set", "--state-dir"}, name
    for name in found.keys() - {"run", "quarantine", "unquarantine", "drain", "undrain", "release"}:
        assert found[name] >= {"-o", "--output"}, name


def test_every_help_ends_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", *program.list_commands(click.Context(program))):
        assert main([*name.split(), "--help"]) == 0
        *_, heading, line = capsys.readouterr().out.splitlines()
        assert heading.strip() == "Example:"
        assert line.strip().startswith(f"holdfast {name}")


def test_what_is_for_programs_is_not_drawn_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["locks", "--watch", "-o", "json"]) == 2
    assert "--watch is for people" in capsys.readouterr().err


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@hypothesis.given(_VALUES)
def test_json_and_yaml_say_the_same(value: object) -> None:
    read = []
    for form in ("json", "yaml"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            show_document(value, form)
        read.append(
            yaml.safe_load(printed.getvalue()) if form == "yaml" else json.loads(printed.getvalue())
        )
    assert read == [value, value]


def test_a_state_folder_can_be_named_by_a_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["locks", "--set", f"stateDir={tmp_path}"]) == 1
    assert f"cannot reach the daemon in {tmp_path}: " in capsys.readouterr().err


def test_the_file_can_be_named_by_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("gate: {wait: 1s}")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    monkeypatch.setenv("HOLDFAST_GATE_POLL", "1s")

    assert main(["config"]) == 0

    printed = convert(yaml.safe_load(capsys.readouterr().out))
    assert (printed.gate.wait, printed.gate.poll) == (1.0, 1.0)


@pytest.mark.parametrize("command", ["status", "devices", "locks", "holders", "history"])
def test_without_daemon_and_ledger_a_question_ends_with_1_and_names_the_folder(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([command, "--state-dir", str(tmp_path)]) == 1

    told = capsys.readouterr()
    assert told.out == ""
    assert f"cannot reach the daemon in {tmp_path}: No such file or directory" in told.err
    assert "state folder (--state-dir)" in told.err
    assert not list(tmp_path.iterdir()), "asking leaves nothing behind"


_DAEMONS = {
    *("grpc", "google", "sqlite3", "pyudev", "inotify_simple", "pynvml"),
    *("prometheus_client", "structlog", "asyncio"),
}
_SETTINGS = {"holdfast.settings", "msgspec", "yaml"}


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("--help", _DAEMONS | _SETTINGS | {"json", "socket"}),
        ("holders --help", _DAEMONS | _SETTINGS | {"json", "socket"}),
        ("holders --state-dir /nowhere", _DAEMONS | _SETTINGS),
        ("holders", _DAEMONS),
        ("config", _DAEMONS),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_need(command: str, unneeded: set[str]) -> None:
    code = (
        "import sys, holdfast.cli\n"
        "holdfast.cli.main(sys.argv[1:])\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=True
    )

    assert unneeded & set(done.stderr.split()) == set()


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True
    )

    assert holdfast.__version__ in done.stdout


def test_a_reader_that_leaves_early_is_no_error_worth_a_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m holdfast config --schema | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "Traceback" not in done.stderr


def test_a_table_is_aligned_and_shows_absence_truth_lists_and_times() -> None:
    rows: Rows = [
        {"id": "a", "pod": None, "offered": True, "access": ["fd", "map"], "since": 0.0},
        {"id": "longer", "pod": "p", "offered": False, "access": [], "since": 86400},
    ]

    assert table(rows) == [
        "ID      POD  OFFERED  ACCESS   SINCE",
        "a       -    yes      fd, map  1970-01-01 00:00:00Z",
        "longer  p    no       -        1970-01-02 00:00:00Z",
    ]


def test_what_a_process_calls_itself_cannot_move_the_readers_cursor() -> None:
    assert table([{"command": "a\x1b[2J\nb"}]) == ["COMMAND", "a\\x1b[2J\\nb"]


def test_the_defaults_are_what_config_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    assert convert(yaml.safe_load(capsys.readouterr().out)) == Settings()


def _check(name: str, *, passes: bool = True, reason: str = "") -> Row:
    return {"name": name, "passes": passes, "reason": reason, "forSeconds": 3.0}


def _report(*checks: Row, **more: object) -> Row:
    resource = {"name": "tpu", "devices": 4, "healthy": 3, "offered": 2, "locked": 1, "waiting": 1}
    rest: Row = {"byHand": [], "claims": [], "drift": [], "rules": [], "noDevices": False}
    rest["resources"] = [resource]
    return {"version": "1.0", "pid": 7, "checks": checks, **rest, **more}


def test_status_tells_what_is_wrong_first_and_fits_one_screen() -> None:
    names = [f"lane of device {number:02}" for number in range(40)]
    report = _report(
        *map(_check, names[:20]),
        _check("ledger", passes=False, reason="the disk is full"),
        *map(_check, names[20:]),
        byHand=[{"device": "tpu/1", "since": 0, "uid": 0, "pid": 9, "reason": "hot"}],
        drift=[{"kind": "k", "subject": "s", "one": "a", "other": "b", "advice": "do it"}],
    )

    lines = status_lines(report)

    assert lines[:2] == [
        "holdfast 1.0, pid 7: NOT READY, 1 of 41 checks fail",
        "FAILED ledger (for 3 s): the disk is full",
    ]
    assert lines[2].startswith("QUARANTINED tpu/1 by hand for ")
    assert lines[3] == "drift  k: s: a, but b; do it"
    assert lines[4:6] == [
        "NAME  DEVICES  HEALTHY  OFFERED  LOCKED  WAITING",
        "tpu   4        3        2        1       1",
    ]
    assert lines[6].startswith("ok     lane of device 00, lane of device 01, ")
    assert len(lines) < 24
    assert max(map(len, lines)) <= 100
    assert all(name in " ".join(line.strip() for line in lines) for name in names)


def test_status_lists_every_check_with_its_age_where_that_is_asked_for() -> None:
    lines = status_lines(_report(_check("ledger"), _check("up")), every=True)

    assert lines[0] == "holdfast 1.0, pid 7: ready, 2 checks"
    assert lines[-2:] == ["ok     ledger (for 3 s)", "ok     up (for 3 s)"]
