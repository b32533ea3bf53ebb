"""How names of others are shown: no line is begun, no cursor moved, nothing left unencodable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.text import MOST_SHOWN, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("python3 train.py", "python3 train.py"),
        ("größer 東京", "größer 東京"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nok     ledger\r", r"a\nok     ledger\r"),
        ("\x07\x00\x7f\x9b", r"\x07\x00\x7f\x9b"),
        ("a\u202eb\u2066c\u200b", r"a\u202eb\u2066c\u200b"),
        ("\u2028\u2029\x85\xa0", r"\u2028\u2029\x85\xa0"),
        (b"a\xff".decode(errors="surrogateescape"), r"a\udcff"),
        ("\U000e0041", r"\U000e0041"),
        (r"\x1b", r"\x1b"),
    ],
)
def test_what_does_not_print_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_text_without_end_is_cut_and_says_so() -> None:
    assert printable("x" * (MOST_SHOWN + 7)) == "x" * MOST_SHOWN + "... (7 more characters)"
    assert printable("x" * MOST_SHOWN) == "x" * MOST_SHOWN
    assert printable("abcdef", 2) == "ab... (4 more characters)"


@given(st.text(st.characters(codec=None)))
def test_whatever_it_is_given_one_line_of_text_comes_out(text: str) -> None:
    shown = printable(text)

    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode()
    assert printable(shown) == shown
