"""What the daemon lacks is told with the feature that is lost, and only where a feature asks."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.doctor.finding import Level
from holdfast.doctor.privileges import device_findings, judge
from holdfast.model.node.privileges import Privileges, Visibility, confined
from holdfast.settings import convert
from holdfast.settings.needs import NEEDS

_ALL = (1 << 41) - 1
_EVERYTHING = Privileges(
    pid=1,
    uid=0,
    sight=Visibility(capabilities=_ALL, in_init_pid_namespace=True),
    in_init_user_namespace=True,
    in_init_cgroup_namespace=True,
    no_new_privileges=False,
    label="",
    whole_cgroup_tree=True,
    cgroup_writable=True,
    unified=True,
    devices_writable=True,
    bus_writable=True,
)
_EVERY_FEATURE = {
    "reclaim": {"mode": "terminate", "reset": "afterForcedRelease", "rebind": True},
    "gpu": {"migStrategy": "mixed"},
}
_OBSERVER = {"reclaim": {"mode": "observe"}}


def _without(*bits: int, **facts: Any) -> Privileges:
    mask = _ALL
    for bit in bits:
        mask &= ~(1 << bit)
    return replace(_EVERYTHING, sight=replace(_EVERYTHING.sight, capabilities=mask, **facts))


def _told(
    found: Privileges, settings: dict[str, Any], *, is_daemon: bool = True
) -> dict[str, Level]:
    findings = list(judge(found, convert(settings), is_daemon=is_daemon))
    assert all(finding.remedy for finding in findings if finding.level is not Level.OK)
    return {finding.check: finding.level for finding in findings if finding.level is not Level.OK}


def test_a_daemon_that_may_do_everything_lacks_nothing() -> None:
    assert _told(_EVERYTHING, _EVERY_FEATURE) == {}
    assert len(list(judge(_EVERYTHING, convert(_EVERY_FEATURE), is_daemon=True))) == len(NEEDS)


@pytest.mark.parametrize(
    ("found", "lacks"),
    [
        (replace(_EVERYTHING, uid=1000), {"root-user"}),
        (replace(_EVERYTHING, in_init_user_namespace=False), {"user-namespace"}),
        (_without(in_init_pid_namespace=False), {"pid-namespace"}),
        (_without(19), {"sys-ptrace"}),
        (_without(2), {"dac-read-search"}),
        (_without(5), {"kill"}),
        (_without(19, hidepid="2"), {"sys-ptrace", "hidepid"}),
        (_without(hidepid="2"), set()),
        (replace(_EVERYTHING, whole_cgroup_tree=False), {"cgroup-tree"}),
        (replace(_EVERYTHING, cgroup_writable=False), {"cgroup-writable"}),
        (replace(_EVERYTHING, cgroup_writable=False, unified=False), set()),
        (replace(_EVERYTHING, devices_writable=False), {"sys-writable", "bus-writable"}),
        (
            replace(_EVERYTHING, devices_writable=False, pods_devices_only=True),
            {"bus-writable"},
        ),
        (replace(_EVERYTHING, bus_writable=False), {"bus-writable"}),
    ],
)
def test_each_lack_of_the_daemon_fails_by_its_name(found: Privileges, lacks: set[str]) -> None:
    assert _told(found, _EVERY_FEATURE) == dict.fromkeys(lacks, Level.FAIL)


@pytest.mark.parametrize(
    ("found", "lacks"),
    [
        (replace(_EVERYTHING, label="cri-containerd.apparmor.d (enforce)"), "confinement"),
        (_without(21), "sys-admin"),
    ],
)
def test_what_costs_a_feature_only_in_some_cases_is_no_failure(
    found: Privileges, lacks: str
) -> None:
    assert _told(found, _EVERY_FEATURE) == {lacks: Level.WARN}


@pytest.mark.parametrize(
    ("capabilities", "lacking", "blinding"),
    [
        (_ALL, (), ()),
        (
            None,
            ("CAP_DAC_READ_SEARCH", "CAP_KILL", "CAP_SYS_PTRACE"),
            ("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"),
        ),
        (1 << 19, ("CAP_DAC_READ_SEARCH", "CAP_KILL"), ("CAP_DAC_READ_SEARCH",)),
        (1 << 2 | 1 << 19, ("CAP_KILL",), ()),
    ],
)
def test_only_what_is_needed_to_see_blinds(
    capabilities: int | None, lacking: tuple[str, ...], blinding: tuple[str, ...]
) -> None:
    found = Visibility(capabilities=capabilities, in_init_pid_namespace=True)

    assert (found.lacking, found.blinding, found.hides) == (lacking, blinding, ())


def test_a_pid_namespace_of_its_own_hides_processes() -> None:
    (told,) = Visibility(capabilities=_ALL, in_init_pid_namespace=False).hides

    assert "set hostPID: true" in told


def test_what_the_doctor_itself_lacks_need_not_be_what_the_daemon_lacks() -> None:
    assert _told(_without(19), _EVERY_FEATURE, is_daemon=False) == {"sys-ptrace": Level.WARN}


def test_what_cannot_be_told_is_no_failure_and_no_clean_bill() -> None:
    found = replace(_EVERYTHING, in_init_user_namespace=None, uid=None)
    assert _told(found, _EVERY_FEATURE) == {
        "root-user": Level.WARN,
        "user-namespace": Level.WARN,
    }


@pytest.mark.parametrize(
    "found",
    [
        _without(5),
        _without(21),
        replace(_EVERYTHING, cgroup_writable=False),
        replace(_EVERYTHING, devices_writable=False, bus_writable=False),
    ],
)
def test_what_no_feature_asks_for_may_be_lacking(found: Privileges) -> None:
    assert _told(found, _OBSERVER) == {}


def test_where_gpus_alone_are_granted_nothing_is_reset_and_sys_need_not_be_writable() -> None:
    found = replace(_EVERYTHING, devices_writable=False, bus_writable=False)
    asked: dict[str, Any] = {"reclaim": {"reset": "afterForcedRelease", "rebind": True}}
    lacks = dict.fromkeys(("sys-writable", "bus-writable"), Level.FAIL)
    pool = {"resourceName": "example.com/nvme", "devices": ["1b36:0010"]}

    assert _told(found, {**asked, "tpu": {"enabled": False}}) == {}
    assert _told(found, {**asked, "tpu": {"enabled": False}, "pools": [pool]}) == lacks
    assert _told(found, asked) == lacks


@pytest.mark.parametrize(
    ("settings", "bound", "levels"),
    [
        ({}, True, [Level.OK]),
        ({}, False, [Level.OK]),
        ({}, None, [Level.OK]),
        ({"gate": {"exclusiveOpen": False}}, True, []),
        ({"reclaim": {"reset": "afterForcedRelease"}}, True, [Level.WARN]),
        ({"reclaim": {"reset": "afterForcedRelease"}}, False, [Level.OK]),
    ],
)
def test_what_opens_devices_is_said_to_have_no_effect_where_they_cannot_be_opened(
    settings: dict[str, Any], bound: bool | None, levels: list[Level]
) -> None:
    found = replace(_EVERYTHING, pods_devices_only=bound)
    told = list(device_findings(found, convert(settings)))

    assert [(each.check, each.level) for each in told] == [
        ("device-nodes", each) for each in levels
    ]
    if bound and told:
        assert "gate.exclusiveOpen has no effect" in told[0].reason
        assert ("reclaim.reset has no effect" in told[0].reason) is ("reclaim" in settings)


@pytest.mark.parametrize(
    ("label", "verdict"),
    [
        ("", False),
        ("unconfined", False),
        ("unconfined (enforce)", False),
        ("holdfast (complain)", False),
        ("cri-containerd.apparmor.d (enforce)", True),
        ("docker-default (enforce)", True),
        ("system_u:system_r:container_t:s0:c12,c40", True),
        ("system_u:system_r:spc_t:s0", False),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", False),
        ("system_u:system_r:unconfined_service_t:s0", False),
        ("system_u:system_r:kernel_t:s0", False),
    ],
)
def test_a_label_confines_unless_it_is_known_to_allow_all(label: str, verdict: bool) -> None:
    assert confined(label) is verdict


def test_every_need_has_a_name_of_its_own_and_says_what_is_lost_and_what_to_do() -> None:
    assert len({need.check for need in NEEDS}) == len(NEEDS)
    assert all(need.lost and need.remedy and need.privilege for need in NEEDS)


def test_what_a_rule_for_one_device_asks_for_is_looked_for_as_if_it_were_for_all() -> None:
    own = {"match": {"index": 0}, "reclaimMode": "terminate", "reset": "afterForcedRelease"}
    found = replace(_without(5), cgroup_writable=False, devices_writable=False)
    lacks = dict.fromkeys(("kill", "cgroup-writable", "sys-writable"), Level.FAIL)
    assert _told(found, {**_OBSERVER, "devices": [own]}) == lacks

    confined = replace(_EVERYTHING, pods_devices_only=True)
    settings = convert({"gate": {"exclusiveOpen": False}, "devices": [own]})
    (told,) = device_findings(confined, settings)
    assert told.level is Level.WARN
