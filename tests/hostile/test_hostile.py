"""A few attacks on the real daemon; `make hostile` runs all."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from hostile.__main__ import close
from hostile.attack import MEMORY, Attack, Place, Result
from hostile.scene import CgroupNode, Witness
from hostile.table import ATTACKS, SHORT

_CANNOT_RUN = 77


@pytest.mark.slow
def test_no_device_is_handed_out_while_the_kernel_says_that_it_is_in_use(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hostile", "--short"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{repository / 'daemon'}:{repository / 'tests'}"},
    )

    if done.returncode == _CANNOT_RUN:
        pytest.skip(done.stdout.strip())
    assert done.stdout.splitlines()[-1] == (
        f"hostile: attacks={len(SHORT)} handed-out=0 held-up=0 over-memory=0"
    ), done.stdout
    assert done.returncode == 0


def test_every_attack_is_in_the_document_with_what_it_is_on(repository: Path) -> None:
    text = (repository / "docs/hostile.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \| (.*?) \|", text, flags=re.MULTILINE)

    assert rows == [
        (each.name, each.on, "yes" if each.place is Place.FORMER else "no") for each in ATTACKS
    ]


def test_the_witness_tells_an_open_node_and_a_populated_cgroup_of_a_former_pod(
    short_path: Path,
) -> None:
    (short_path / "cgroup").mkdir()
    node = CgroupNode(
        short_path / "node", short_path / "cgroup", short_path / "share", chips=1, mappable=False
    )
    witness = Witness(node, short_path / "cdi")
    path = "/dev/accel0"
    events = node.container("former", "main").parent / "cgroup.events"
    witness.owners(path).update({"former", "next"})

    assert not witness.in_use(path)
    events.write_text("populated 1\nfrozen 0\n")
    assert witness.in_use(path, by_others_than="next") == "populated 1"
    assert not witness.in_use(path, by_others_than="former")
    events.write_text("populated 0\nfrozen 0\n")
    opened = os.open(node.node(path), os.O_RDWR | os.O_NOCTTY)
    assert witness.in_use(path) == "open"
    os.close(opened)
    assert not witness.in_use(path)
    node.close()


def test_attacks_have_names_of_their_own() -> None:
    names = [each.name for each in ATTACKS]

    assert len(set(names)) == len(names)
    assert set(SHORT) < set(names)


def test_a_row_says_which_promise_was_broken() -> None:
    attack = Attack(name="one", on="a promise", run=("holds", "plain", "0"))
    held = Result(attack=attack, held_up=["another pod's start took 9.0 s"])

    assert "HANDED OUT" in Result(attack=attack, handed_out="/dev/accel0: open").row()
    assert "HELD UP: another pod's start took 9.0 s" in held.row()
    assert "OVER MEMORY" in Result(attack=attack, memory=MEMORY + 1).row()
    assert "kept" in Result(attack=attack).row()
    assert "NOT RUN: no FUSE" in Result(attack=attack, skipped="no FUSE").row()


def test_a_win_that_is_known_is_told_and_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    attack = Attack(name="one", on="a promise", run=("holds", "plain", "0"), wins=True)
    won = Result(attack=attack, handed_out="/dev/accel0: open")

    assert "HANDED OUT, as is known" in won.row()
    assert close([won], failed=False) == 0
    assert "handed-out=0" in capsys.readouterr().out
    assert close([Result(attack=replace(attack, wins=False), handed_out="x")], failed=False) == 1
