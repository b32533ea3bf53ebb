"""Which Xids count, by the variables of NVIDIA's plugin, and that the table is one that can be used."""

import pytest

from holdfast.model.nvidia.xids import IGNORED, Cure, XidChecks, rule_of, xid_checks

APPLICATION, BAD_MEMORY, UNHEARD_OF = 31, 48, 4711


@pytest.mark.parametrize(
    ("disable", "enable", "watched", "ignored"),
    [
        pytest.param("", "", {48, 79, UNHEARD_OF}, IGNORED, id="by default"),
        pytest.param("48,94", "", {79}, {48, 94, *IGNORED}, id="a list is ignored besides"),
        pytest.param(" 48 , 94 ", "", {79}, {48, 94}, id="blanks do not matter"),
        pytest.param("all", "", (), {48, 79, UNHEARD_OF}, id="all off"),
        pytest.param("xids", "", (), {48, 79}, id="all Xids off"),
        pytest.param("XIDS", "", (), {48}, id="case does not matter"),
        pytest.param("48,all", "", (), {48, 79}, id="all among others"),
        pytest.param("", "31", {31, 48}, {13, 43}, id="one of the ignored forced on"),
        pytest.param("48", "48", {48}, IGNORED, id="forced on wins over off"),
        pytest.param("all", "48", {48}, {79}, id="forced on wins over all off"),
        pytest.param("all", "all", {31, 48, 79}, (), id="all forced on wins over all off"),
        pytest.param("", "all", {*IGNORED, 48}, (), id="all forced on"),
        pytest.param("48,seven,-1", "4x", {79}, {48}, id="what means nothing is left out"),
    ],
)
def test_which_xids_count_is_decided_as_nvidias_plugin_does(
    disable: str, enable: str, watched: set[int], ignored: set[int]
) -> None:
    checks = xid_checks(disable, enable)
    assert {xid: checks.watches(xid) for xid in (*watched, *ignored)} == {
        **dict.fromkeys(watched, True),
        **dict.fromkeys(ignored, False),
    }


def test_what_means_nothing_is_named() -> None:
    assert xid_checks("48,seven", "4x,").malformed == ("seven", "4x")
    assert xid_checks("9" * 5000).malformed == ("9" * 5000,)


@pytest.mark.parametrize(
    ("disable", "enable", "conditions", "listening"),
    [
        ("", "", True, True),
        ("xids", "", True, False),
        ("all", "", False, False),
        ("all", "48", False, True),
        ("all", "all", True, True),
    ],
)
def test_all_off_turns_off_more_than_xids(
    disable: str, enable: str, conditions: bool, listening: bool
) -> None:
    checks = xid_checks(disable, enable)
    assert (checks.conditions, checks.listening) == (conditions, listening)


@pytest.mark.parametrize(
    ("xid", "cure"),
    [
        (63, Cure.QUIET),
        (154, Cure.ADVICE),
        (166, Cure.RESET),
        (185, Cure.RESET),
        (APPLICATION, Cure.RESTART),
        (94, Cure.RESTART),
        (BAD_MEMORY, Cure.RESET),
        (64, Cure.RESET),
        (74, Cure.RESET),
        (79, Cure.RESET),
        (95, Cure.RESET),
        (119, Cure.RESET),
        (151, Cure.REBOOT),
        (54, Cure.OPERATOR),
        (UNHEARD_OF, Cure.RESET),
    ],
)
def test_each_class_of_xids_says_what_clears_it(xid: int, cure: Cure) -> None:
    assert rule_of(xid).cure is cure
    assert rule_of(xid).meaning
    assert cure.told


def test_only_what_takes_a_reset_condemns_a_whole_gpu_for_one_slice() -> None:
    assert not rule_of(94).whole
    assert rule_of(95).whole


def test_every_xid_that_is_ignored_by_default_is_in_the_table() -> None:
    assert all("not in the table" not in rule_of(xid).meaning for xid in IGNORED)
    assert XidChecks().ignored == {13, 31, 43, 45, 68, 109}
