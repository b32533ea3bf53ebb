"""`holdfast doctor --root` on each broken node of tests/doctor-trees: the finding and the remedy."""

import json

import pytest

from fakes.doctortrees import TREES
from holdfast.cli import main

# What a copy shows without its programs being run.
_SHOWN = {
    "nvidia-nodes-in-operators-root": ("criu", "WARN"),
    "gvisor-all-well": None,
    "gvisor-cdi-without-mode": ("cdi-modes", "WARN"),
    "gvisor-driver-not-listed": ("nvproxy-driver", "WARN"),
    "gvisor-handler-of-another-name": ("handlers", "FAIL"),
    "gvisor-leaking-runsc": ("release", "WARN"),
    "gvisor-low-max-map-count": ("max-map-count", "WARN"),
    "gvisor-no-libraries": ("libraries", "WARN"),
    "gvisor-runc-type": ("table", "FAIL"),
    "gvisor-toolkit-starts-runc": ("low-level-runtime", "FAIL"),
    "gvisor-vfio-devices": ("vfio-devices", "FAIL"),
    "gvisor-wrong-prefix": ("tables", "FAIL"),
}
_WITH_GPUS = {"gvisor-all-well", "nvidia-nodes-in-operators-root"}
"""The nodes that have all of NVIDIA's driver; others have no more of it than they need."""


@pytest.mark.parametrize("name", sorted(path.name for path in TREES.iterdir()))
def test_each_broken_node_is_named_with_its_remedy(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = "runsc" if name.startswith("gvisor") else "nvidia"
    main(["doctor", "--root", str(TREES / name), "--runtime-handler", handler, "--output", "json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    # The trees have what these areas read, and not all of a node.
    areas = {"containerd", "gvisor"} | ({"nvidia"} if name in _WITH_GPUS else set())
    shown = {(each["check"], each["level"]): each for each in findings if each["area"] in areas}
    expected = _SHOWN[name]
    if expected is not None:
        assert shown[expected]["remedy"]
    failed = {check for check, level in shown if level == "FAIL"}
    wrong = {expected[0]} if expected is not None and expected[1] == "FAIL" else set()
    if name == "gvisor-wrong-prefix":
        wrong.add("handlers")
    assert failed == wrong
