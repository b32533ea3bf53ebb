"""How a change of each key is taken up, and that the parts follow those that are taken up live."""

import pytest

from holdfast.app.reload import by_take_up
from holdfast.app.wiring.live import LiveSettings
from holdfast.settings import convert, known_paths
from holdfast.settings.reloading import _TABLE, TakeUp, changed, take_up
from holdfast.settings.sources import LoadedSettings
from holdfast.settings.types import entry_of


def test_each_line_of_the_table_is_of_a_key_or_a_section() -> None:
    paths = dict(known_paths())
    for name, kind in known_paths().items():
        if (entry := entry_of(kind)) is not None:
            paths |= known_paths(entry, f"{name}[].")
    for line in _TABLE:
        assert line in paths or any(path.startswith(f"{line}.") for path in paths), line


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("gate.wait", TakeUp.LIVE),
        ("gate.exclusiveOpen", TakeUp.LIVE),
        ("withholdAfter", TakeUp.LIVE),
        ("dra.evictLost", TakeUp.LIVE),
        ("dra.nodeName", TakeUp.RESTART),
        ("reclaim.retry.first", TakeUp.LIVE),
        ("log.level", TakeUp.LIVE),
        ("tpu.resourceName", TakeUp.RESTART),
        ("pools", TakeUp.RESTART),
        ("pools[].api", TakeUp.RESTART),
        ("devices", TakeUp.LIVE),
        ("devices[].match.uuid", TakeUp.LIVE),
        ("devices[].api", TakeUp.RESTART),
        ("stateDir", TakeUp.POD),
        ("host.dev", TakeUp.POD),
        ("http.port", TakeUp.POD),
        ("kubelet.pluginDir", TakeUp.POD),
        ("kubelet.podResourcesSocket", TakeUp.POD),
        ("kubelet.poll", TakeUp.LIVE),
        ("kubelet.socketPrefix", TakeUp.RESTART),
    ],
)
def test_how_a_change_of_a_key_is_taken_up(path: str, how: TakeUp) -> None:
    assert take_up(path) is how


def test_what_has_changed_is_told_by_its_path() -> None:
    before = convert({"gate": {"wait": "10s"}})
    after = convert({"pools": [{"resourceName": "a.b/c", "devices": ["8086:*"]}], "stateDir": "/a"})

    paths = changed(before, after)

    assert paths == ("stateDir", "pools", "gate.wait")
    assert by_take_up(paths) == {
        TakeUp.POD: ("stateDir",),
        TakeUp.RESTART: ("pools",),
        TakeUp.LIVE: ("gate.wait",),
    }
    assert changed(after, after) == ()


_RULE = {"match": {"model": "*"}, "resource": "a.b/c"}
_OTHER_RULE = {"match": {"model": "x"}, "resource": "a.b/d", "api": "device-plugin"}
_BOTH = {"gpu": {"api": "dra"}}
_NO_GPUS = {"gpu": {"enabled": False, "api": "dra"}}


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ({}, {"devices": [_RULE]}, "devices"),
        ({"devices": [_RULE]}, {"devices": [{**_RULE, "match": {"uuid": "x"}}]}, "devices"),
        ({"devices": [_RULE]}, {}, "devices"),
        ({}, {"devices": [{**_RULE, "api": "dra"}]}, "devices[].api"),
        (
            {**_BOTH, "devices": [{**_RULE, "api": "dra"}]},
            {**_BOTH, "devices": [{**_RULE, "api": "device-plugin"}]},
            "devices[].api",
        ),
        (
            {**_BOTH, "devices": [{**_RULE, "api": "dra"}]},
            {**_BOTH, "devices": [{**_RULE, "api": "dra"}, _OTHER_RULE]},
            "devices[].api",
        ),
        # Of hardware with both APIs it is not known which of them the devices have without the rule.
        (_BOTH, {**_BOTH, "devices": [_OTHER_RULE]}, "devices[].api"),
        ({**_BOTH, "devices": [_OTHER_RULE]}, _BOTH, "devices[].api"),
        # GPUs that are not served do not make the daemon serve claims; the rule does.
        (_NO_GPUS, {**_NO_GPUS, "devices": [{**_RULE, "api": "dra"}]}, "devices[].api"),
        (
            _NO_GPUS,
            {**_NO_GPUS, "devices": [{"match": {"model": "*"}, "exclude": True}]},
            "devices",
        ),
        # A rule that gives no name leaves every device its API.
        (_BOTH, {**_BOTH, "devices": [{"match": {"model": "*"}, "exclude": True}]}, "devices"),
        # Under the name of GPUs, which none is served by, the first device for claims appears.
        (
            _NO_GPUS,
            {**_NO_GPUS, "devices": [{**_RULE, "resource": "nvidia.com/gpu", "api": "dra"}]},
            "devices[].api",
        ),
    ],
)
def test_rules_for_devices_are_live_unless_a_name_gets_another_api(
    before: dict[str, object], after: dict[str, object], path: str
) -> None:
    assert changed(convert(before), convert(after)) == (path,)


def test_only_the_rules_for_devices_are_told_as_those_of_an_api() -> None:
    after = convert({"gate": {"wait": "10s"}, "devices": [{**_RULE, "api": "dra"}]})

    assert set(changed(convert({}), after)) == {"gate.wait", "devices[].api"}


def test_parts_see_settings_that_were_put_after_they_were_built() -> None:
    after = convert({"reclaim": {"mode": "observe"}})
    live = LiveSettings(LoadedSettings(settings=convert({})))
    mode = live.reclaim.part(lambda now: now.mode)

    live.in_use.set(after)

    assert live.whole is after
    assert live.reclaim.value is after.reclaim
    assert mode.value == "observe"
    assert (live.reclaim.version, live.gate.version) == (1, 0)
