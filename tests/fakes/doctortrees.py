"""The broken nodes of tests/doctor-trees, and how their programs are run as if they were live."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from holdfast.doctor.finding import Finding, Level, Node, ProgramOutput
from holdfast.doctor.programs import run
from holdfast.settings import Settings, convert

TREES = Path(__file__).parents[1] / "doctor-trees"


def tree(name: str, changes: Mapping[str, object] | None = None, **rest: object) -> Node:
    """Return one node, with settings that differ from the defaults by *changes*."""
    settings = convert(changes or {}) if changes else Settings()
    handlers = rest.get("runtime_handlers", ())
    assert isinstance(handlers, tuple)
    return Node(settings=settings, root=TREES / name, runtime_handlers=handlers)


def with_programs(node: Node) -> Node:
    """Return *node* with its programs: small scripts that answer as the real ones do."""

    def ask(command: Sequence[str]) -> ProgramOutput:
        return run((str(node.path(command[0])), *command[1:]), patience=60.0)

    return replace(node, ask=ask)


def bad(findings: Sequence[Finding]) -> dict[str, Level]:
    """Return the checks that found something, with their levels."""
    return {each.check: each.level for each in findings if each.level is not Level.OK}


def worst(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return the worst finding of each check."""
    order = list(Level)
    return {each.check: each for each in sorted(findings, key=lambda it: order.index(it.level))}


def without_rights(*settings: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return what the doctor finds as root without any capability, by area and check."""
    less = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    doctor = [sys.executable, "-m", "holdfast", "doctor", "-o", "json"]
    told = [word for each in settings for word in ("--set", each)]
    done = subprocess.run([*less, *doctor, *told], capture_output=True, text=True, check=False)
    findings = json.loads(done.stdout)["findings"]
    return {(each["area"], each["check"]): each for each in findings}
