"""The simulated API server: it answers slices at and over the limits as a real one did."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.controlplane import NODE, ControlPlane, control_plane
from holdfast.apiserver.client import Status
from holdfast.apiserver.wire import ApiRequest, Wire
from holdfast.runtime.clock import SystemClock

DRIVER = "val.example.com"
RECORDED: dict[str, str] = json.loads(
    (Path(__file__).parent.parent / "golden/kubernetes-1.36.2/validation.json").read_text()
)
ONE = {"value": "1"}
_PATH = ("apis", "resource.k8s.io", "v1", "resourceslices")


def _devices(count: int = 1, **content: Any) -> dict[str, Any]:
    return {"devices": [{"name": f"d{number}", **content} for number in range(count)]}


def _attribute(**value: Any) -> dict[str, Any]:
    return _devices(attributes={"a": value})


def _taints(count: int) -> dict[str, Any]:
    return _devices(taints=[_taint(f"key-{number}") for number in range(count)])


def _taint(key: str = "key", value: str = "value") -> dict[str, str]:
    return {"key": f"{DRIVER}/{key}", "value": value, "effect": "NoSchedule"}


def _sets(count: int = 1, counters: int = 1) -> dict[str, Any]:
    each = {f"c{number}": ONE for number in range(counters)}
    return {"sharedCounters": [{"name": f"s{n}", "counters": each} for n in range(count)]}


def _consuming(count: int) -> dict[str, Any]:
    return _devices(count, consumesCounters=[{"counterSet": "s0", "counters": {"c0": ONE}}])


BUILDERS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "128 devices with taints": lambda: _devices(128, taints=[_taint()]),
    "129 devices": lambda: _devices(129),
    "17 taints on a device": lambda: _taints(17),
    "33 attributes and capacities": lambda: _devices(
        attributes={f"a{number}": {"int": number} for number in range(17)},
        capacity={f"c{number}": ONE for number in range(16)},
    ),
    "33 counters in a set": lambda: _sets(counters=33),
    "5 taints on a device": lambda: _taints(5),
    "65 devices with counters": lambda: _consuming(65),
    "9 counter sets": lambda: _sets(9),
    "counters with devices in one slice": lambda: _sets() | _consuming(1),
    "device name of 64 characters": lambda: {"devices": [{"name": "d" * 64}]},
    "pool name driver/node": lambda: _devices() | {"pool": f"{DRIVER}/{NODE}"},
    "string of 64 characters, 128 bytes": lambda: _attribute(
        string="\N{LATIN SMALL LETTER E WITH ACUTE}" * 64
    ),
    "string of 65 characters": lambda: _attribute(string="x" * 65),
    "taint value of 64 characters": lambda: _devices(taints=[_taint(value="x" * 64)]),
    "unknown counter set": lambda: _consuming(1),
    "version not semver": lambda: _attribute(version="570.86.15.1"),
}
"""What the spec of a slice has besides what every slice has; a pool is given by its name."""


def _answer(plane: ControlPlane, name: str, content: dict[str, Any]) -> str:
    """Return what the server says to a new slice, in the form of the recording."""
    pool = {"name": content.pop("pool", NODE), "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, **content},
    }
    request = ApiRequest(
        about=name, method="POST", path=_PATH, body=json.dumps(body, ensure_ascii=False).encode()
    )
    wire = Wire(plane.access, SystemClock())
    try:
        answer = wire.exchange(request, 30.0)
    finally:
        wire.close()
    if answer.status == 201:
        return "accepted"
    told = msgspec.json.decode(answer.body, type=Status)
    assert told.code == answer.status
    return f"{told.code} {told.reason}: {told.message}"


def test_there_is_a_slice_for_each_recorded_answer() -> None:
    assert BUILDERS.keys() == RECORDED.keys()


@pytest.mark.parametrize("case", RECORDED)
def test_it_answers_as_a_real_api_server_did(short_path: Path, case: str) -> None:
    """Recorded from kube-apiserver 1.36.2, with all feature gates at their defaults."""
    expected = RECORDED[case]
    named = expected.partition('"')[2].partition('"')[0]
    with control_plane(short_path) as plane:
        answer = _answer(plane, "mine", BUILDERS[case]())
        assert answer == expected.replace(f'"{named}"', '"mine"', 1)
        assert (answer == "accepted") == ("mine" in plane.slices())
