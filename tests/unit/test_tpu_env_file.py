"""Reading /etc/tpu/tpu-env."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.tpu.env import TpuHostFacts, parse_tpu_env

_REAL = """\
ACCELERATOR_TYPE: 'v4-256'
ALT: 'false'
CHIPS_PER_HOST_BOUNDS: '2,2,1'
ENABLE_ICI_RESILIENCY: 'true'
HOST_BOUNDS: '2,2,8'
INJECT_SLICE_BUILDER_FAULT: ''
RUNTIME_VERSION: 'example.com/images/fake_tensorflow:latest'
TOPOLOGY: '4x4x8'
TPU_RUNTIME_METRICS_PORTS: '8431,8432,8433,8434'
WORKER_ID: '3'
WRAP: 'true,true,true'
"""


def test_the_file_of_a_real_host_names_its_slice() -> None:
    read = parse_tpu_env(_REAL)
    assert read.problems == ()
    assert read.facts == TpuHostFacts(
        topology="4x4x8", accelerator_type="v4-256", worker_id="3", ici_resiliency=True
    )


@pytest.mark.parametrize(
    "text",
    [
        "TPU_TOPOLOGY=2x4\nTPU_WORKER_HOSTNAMES=a,b",
        'TOPOLOGY="2x4"\nWORKER_HOSTNAMES="a,b"',
        "# slice\n\nexport TOPOLOGY=2x4\r\nWORKER_HOSTNAMES: a,b\n",
        "TOPOLOGY : '2x4'\n---\nWORKER_HOSTNAMES = 'a,b'",
    ],
)
def test_both_ways_of_writing_are_read(text: str) -> None:
    read = parse_tpu_env(text)
    assert read.problems == ()
    assert (read.facts.topology, read.facts.worker_hostnames) == ("2x4", ("a", "b"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("what is this", "line 1"),
        ("A: 'x'\nB: 'open", "line 2"),
        ("A: 'x' y", "line 1"),
        ("=1", "line 1"),
        ("TOPOLOGY: 'large'", "TOPOLOGY"),
        ("WORKER_ID: 'me'", "WORKER_ID"),
        ("ACCELERATOR_TYPE: 'rm -rf'", "ACCELERATOR_TYPE"),
        ("WORKER_HOSTNAMES: 'a b'", "WORKER_HOSTNAMES"),
        ("ENABLE_ICI_RESILIENCY: 'maybe'", "ENABLE_ICI_RESILIENCY"),
        ("A=\x00", "line 1"),
    ],
)
def test_odd_content_is_a_problem_with_its_place_and_leaves_the_rest(text: str, named: str) -> None:
    read = parse_tpu_env(text + "\nTPU_TOPOLOGY: '2x2'\n")
    (problem,) = [text for text in read.problems if named in text] or [""]
    assert problem
    assert read.facts.topology == "2x2"


def test_a_file_full_of_nonsense_is_a_handful_of_problems() -> None:
    problems = parse_tpu_env("?\n" * 5000).problems
    assert len(problems) < 12
    assert "more lines" in problems[-1]


@given(st.text())
def test_no_text_is_too_odd_to_read(text: str) -> None:
    parse_tpu_env(text)
