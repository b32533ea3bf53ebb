"""The values of node labels, and the file that node-feature-discovery reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.labels import refused
from holdfast.model.node.labels import MOST, feature_file, label_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("Tesla V100-SXM2-16GB", "Tesla-V100-SXM2-16GB"),
        ("NVIDIA  H100\tPCIe ", "NVIDIA-H100PCIe"),
        ("1g.10gb+me", "1g.10gbme"),
        ("--x--", "x"),
        ("☃", ""),
        ("x" * 62 + "-y", "x" * 62),
        ("a=b\nc=d", "abcd"),
    ],
)
def test_a_value_is_what_kubernetes_takes(text: str, value: str) -> None:
    assert label_value(text) == value


@given(st.text(max_size=2 * MOST))
def test_no_text_makes_a_value_that_is_refused(text: str) -> None:
    assert not refused("example.com/key", label_value(text))


def test_a_label_is_a_line_and_what_has_no_value_left_is_none() -> None:
    labels = {"example.com/b": "a b", "example.com/a": "", "example.com/c": "☃"}
    assert feature_file(labels, until=1_800_000_000.9) == (
        "# +expiry-time=2027-01-15T08:00:00Z\nexample.com/a=\nexample.com/b=a-b\n"
    )
