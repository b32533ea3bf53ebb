"""What condemns a GPU or a slice, and what has to be seen before it is trusted again."""

from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from holdfast.model.ids import BootId, PciAddress
from holdfast.model.nvidia.gpu import (
    Gpu,
    GpuCondition,
    GpuEvent,
    GpuEventKind,
    GpuProblem,
    GpuReading,
    MigSlice,
)
from holdfast.model.nvidia.health import (
    NO_DRIVER,
    GpuState,
    after_event,
    after_observation,
    condemning,
    healths,
    place_of,
    placed,
    restored,
    verdict,
)
from holdfast.model.nvidia.mig import hides_some
from holdfast.model.nvidia.xids import MOST_XIDS, GpuObservation, Place, XidChecks, xid_checks

BOOT, LATER = BootId("boot-1"), BootId("boot-2")
GPU, OTHER = "GPU-1", "GPU-2"
QUIET = 60.0
NOW = 1000.0
ILLEGAL_ACCESS, CONTAINED, BAD_MEMORY, OFF_THE_BUS, KEYS, NO_POWER, NOTICE = (
    31,
    94,
    48,
    79,
    151,
    54,
    63,
)
FINE = GpuCondition()
LOST = GpuCondition(lost="NVML_ERROR_GPU_IS_LOST")
CHECKS = XidChecks()
NOBODY: Mapping[Place, frozenset[int] | None] = {None: frozenset()}


def xid(number: int, uuid: str = GPU, gi: int | None = None, ci: int | None = None) -> GpuEvent:
    return GpuEvent(kind=GpuEventKind.XID, uuid=uuid, xid=number, gi=gi, ci=ci)


def state(*events: GpuEvent, at: float = NOW, checks: XidChecks = CHECKS) -> GpuState:
    """Return a GPU that was looked at, was fine, and then had *events*."""
    after = look(GpuState(uuid=GPU, boot=BOOT), at=at - 1)
    for event in events:
        after = after_event(after, event, at, checks)
    return after


def look(
    before: GpuState,
    condition: GpuCondition = FINE,
    *,
    at: float,
    driver: str = "550",
    users: Mapping[Place, frozenset[int] | None] | None = NOBODY,
    since: float | None = None,
    mig: bool = False,
) -> GpuState:
    taken = GpuObservation(at=at, driver=driver, condition=condition, users=users, mig=mig)
    return after_observation(before, taken, at, since=at if since is None else since, quiet=QUIET)


def texts(of: GpuState, place: Place = None) -> list[str]:
    return [fault.text for fault in verdict(of, place).faults]


def healthy(of: GpuState, place: Place = None) -> bool:
    return not verdict(of, place).faults


def test_an_xid_condemns_its_gpu_and_says_what_it_needs() -> None:
    (told,) = texts(state(xid(OFF_THE_BUS)))
    assert told.startswith("GPU-1: Xid 79 (the GPU fell off the bus): needs a reset of the GPU")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(xid(ILLEGAL_ACCESS), id="ignored by default"),
        pytest.param(xid(OFF_THE_BUS, OTHER), id="another GPU's"),
        pytest.param(GpuEvent(kind=GpuEventKind.DOUBLE_BIT_ECC, uuid=GPU), id="ECC: its Xid tells"),
        pytest.param(GpuEvent(kind=GpuEventKind.SINGLE_BIT_ECC, uuid=GPU), id="corrected"),
    ],
)
def test_some_events_condemn_nobody(event: GpuEvent) -> None:
    assert healthy(state(event))


def test_an_ignored_xid_condemns_where_it_is_forced_on() -> None:
    assert not healthy(state(xid(ILLEGAL_ACCESS), checks=xid_checks("", "31")))


AFTER = NOW + QUIET + 1
SOME: Mapping[Place, frozenset[int] | None] = {None: frozenset({7})}
UNKNOWN: Mapping[Place, frozenset[int] | None] = {None: None}


@pytest.mark.parametrize(
    ("number", "looks", "over"),
    [
        # A quiet period, then a look.
        (NOTICE, [(NOW + 1, SOME)], False),
        (NOTICE, [(AFTER, SOME)], True),
        # Processes that were there, and only those, and then the quiet period.
        (CONTAINED, [(NOW + 1, SOME), (AFTER, SOME)], False),
        (CONTAINED, [(NOW + 1, NOBODY), (AFTER + 1, NOBODY)], True),
        (CONTAINED, [(NOW + 1, SOME), (NOW + 50, NOBODY), (AFTER, NOBODY)], False),
        (CONTAINED, [(NOW + 1, SOME), (NOW + 50, NOBODY), (NOW + 111, NOBODY)], True),
        (CONTAINED, [(NOW + 1, SOME), (NOW + 2, {None: frozenset({8})}), (NOW + 63, SOME)], True),
        # Nobody was seen because nobody could be asked.
        (CONTAINED, [(NOW + 1, UNKNOWN), (AFTER, UNKNOWN)], False),
        (CONTAINED, [(NOW + 1, None), (AFTER, None)], False),
        # However long it is quiet, and whatever the GPU answers.
        (BAD_MEMORY, [(NOW + 1, NOBODY), (NOW + 1e6, NOBODY)], False),
        (KEYS, [(NOW + 1, NOBODY), (NOW + 1e6, NOBODY)], False),
        (NO_POWER, [(NOW + 1, NOBODY), (NOW + 1e6, NOBODY)], False),
        (4711, [(NOW + 1, NOBODY), (NOW + 1e6, NOBODY)], False),
    ],
)
def test_time_clears_only_what_passes(
    number: int,
    looks: Iterable[tuple[float, Mapping[Place, frozenset[int] | None] | None]],
    over: bool,
) -> None:
    after = state(xid(number))
    for at, users in looks:
        after = look(after, at=at, users=users)
    assert healthy(after) == over


@pytest.mark.parametrize("moment", [NOW + 1, 1_700_000_000.0])
def test_an_xid_of_no_moment_of_this_boot_begins_its_quiet_period_at_the_start(
    moment: float,
) -> None:
    """An older ledger has the time of day, which is later than any moment of a boot."""
    after = restored(state(xid(NOTICE), at=moment).kept, BOOT, NOW, CHECKS)
    assert not healthy(look(after, at=NOW + QUIET - 1))
    assert healthy(look(after, at=NOW + QUIET + 1))


def test_a_restart_of_the_daemon_does_not_begin_the_quiet_period_anew() -> None:
    after = restored(state(xid(NOTICE)).kept, BOOT, NOW + QUIET - 1, CHECKS)
    assert not healthy(look(after, at=NOW + QUIET - 1))
    assert healthy(look(after, at=NOW + QUIET + 1))


def test_an_xid_that_outlives_a_boot_has_its_moment_in_this_one() -> None:
    after = restored(state(xid(NO_POWER)).kept, LATER, 7.0, CHECKS)
    assert [(record.first, record.last) for record in after.xids] == [(7.0, 7.0)]


def _driver_changed(before: GpuState) -> GpuState:
    return look(before, at=NOW + 5, driver="560")


def _driver_reloaded(before: GpuState) -> GpuState:
    return look(replace(before, driver=NO_DRIVER), at=NOW + 5)


def _lost_and_back(before: GpuState) -> GpuState:
    return look(look(before, LOST, at=NOW + 5), at=NOW + 6)


def _lost_odd_and_back(before: GpuState) -> GpuState:
    odd = GpuCondition(lost="NVML_ERROR_UNKNOWN")
    return look(look(look(before, LOST, at=NOW + 5), odd, at=NOW + 6), at=NOW + 7)


def _rows_replaced(before: GpuState) -> GpuState:
    pending = look(before, GpuCondition(remap_pending=True), at=NOW + 5)
    return look(pending, GpuCondition(remap_pending=False), at=NOW + 6)


def _pages_retired(before: GpuState) -> GpuState:
    pending = look(before, GpuCondition(retired_pending=True), at=NOW + 5)
    return look(pending, GpuCondition(retired_pending=False), at=NOW + 6)


def _asked_for_and_done(before: GpuState) -> GpuState:
    asked = look(before, GpuCondition(recovery="drain and reset the GPU"), at=NOW + 5)
    return look(restored(asked.kept, BOOT, NOW + 4, CHECKS), GpuCondition(recovery=""), at=NOW + 6)


def _drained(before: GpuState) -> GpuState:
    asked = look(before, GpuCondition(recovery="drain peer-to-peer"), at=NOW + 5)
    return look(asked, GpuCondition(recovery=""), at=NOW + 6)


def _rebooted(before: GpuState) -> GpuState:
    return look(restored(before.kept, LATER, NOW + 4, CHECKS), at=NOW + 5)


def _restarted(before: GpuState) -> GpuState:
    return look(restored(before.kept, BOOT, NOW + 4, CHECKS), at=NOW + 5)


def _lost_and_back_over_a_restart(before: GpuState) -> GpuState:
    return _restarted(look(before, LOST, at=NOW + 4))


def _only_lost(before: GpuState) -> GpuState:
    return look(look(before, LOST, at=NOW + 5), LOST, at=NOW + 6)


def _odd_and_back(before: GpuState) -> GpuState:
    return look(look(before, GpuCondition(lost="NVML_ERROR_UNKNOWN"), at=NOW + 5), at=NOW + 6)


def _rows_not_told_any_more(before: GpuState) -> GpuState:
    return look(look(before, GpuCondition(remap_pending=True), at=NOW + 5), at=NOW + 6)


def _pages_not_told_any_more(before: GpuState) -> GpuState:
    return look(look(before, GpuCondition(retired_pending=True), at=NOW + 5), at=NOW + 6)


def _recovery_not_told_any_more(before: GpuState) -> GpuState:
    asked = look(before, GpuCondition(recovery="reset the GPU"), at=NOW + 5)
    return look(restored(asked.kept, BOOT, NOW + 4, CHECKS), at=NOW + 6)


def _rows_not_told_for_a_while(before: GpuState) -> GpuState:
    return look(_rows_not_told_any_more(before), GpuCondition(remap_pending=False), at=NOW + 7)


RESETS = [
    _driver_changed,
    _driver_reloaded,
    _lost_and_back,
    _lost_odd_and_back,
    _rows_replaced,
    _pages_retired,
    _lost_and_back_over_a_restart,
    _asked_for_and_done,
    _rows_not_told_for_a_while,
]
NO_RESETS = [
    _restarted,
    _only_lost,
    _odd_and_back,
    _drained,
    _rows_not_told_any_more,
    _pages_not_told_any_more,
    _recovery_not_told_any_more,
]


@pytest.mark.parametrize(
    ("number", "seen", "over"),
    [
        *((BAD_MEMORY, reset, True) for reset in [*RESETS, _rebooted]),
        *((OFF_THE_BUS, reset, True) for reset in [*RESETS, _rebooted]),
        *((4711, reset, True) for reset in [*RESETS, _rebooted]),
        *((BAD_MEMORY, nothing, False) for nothing in NO_RESETS),
        *((KEYS, reset, False) for reset in RESETS),
        (KEYS, _rebooted, True),
        *((NO_POWER, anything, False) for anything in [*RESETS, _rebooted]),
    ],
)
def test_what_takes_a_new_beginning_is_cleared_by_one_that_was_seen(
    number: int, seen: object, over: bool
) -> None:
    assert callable(seen)
    assert healthy(seen(state(xid(number)))) == over


AWAITS_RESET = GpuCondition(recovery="reset the GPU")


@pytest.mark.parametrize("known", [FINE, LOST, AWAITS_RESET], ids=["fine", "lost", "reset asked"])
@pytest.mark.parametrize("former", ["550", NO_DRIVER])
@pytest.mark.parametrize(
    ("since", "again", "over"),
    [
        pytest.param(NOW - 1, None, False, id="told by the new driver"),
        pytest.param(NOW, None, True, id="told by the former"),
        pytest.param(NOW + 1, None, True, id="told well before"),
        pytest.param(NOW + 1, NOW + 2, False, id="told by both"),
        pytest.param(NOW + 3, NOW + 2, True, id="told twice by the former"),
    ],
)
def test_a_load_of_the_driver_clears_only_what_a_former_one_told(
    known: GpuCondition, former: str, since: float, again: float | None, over: bool
) -> None:
    before = state(xid(BAD_MEMORY))
    if again is not None:
        before = after_event(before, xid(BAD_MEMORY), again, CHECKS)
    before = replace(look(before, known, at=NOW + 3), driver=former)
    fine = replace(FINE, recovery="")
    after = look(before, fine, at=NOW + 5, driver="560", since=since)
    assert healthy(after) == over
    assert healthy(look(after, fine, at=NOW + 6, driver="560", since=since)) == over


@pytest.mark.parametrize("number", [NOTICE, CONTAINED, BAD_MEMORY])
def test_a_gpu_that_does_not_answer_is_cleared_of_nothing(number: int) -> None:
    gone = look(state(xid(number)), at=NOW + 1)
    for later in (AFTER + 1, AFTER + 2):
        gone = look(gone, LOST, at=later, driver="570")
    assert [record.xid for record in condemning(gone)] == [number]


def test_a_later_harmless_xid_never_clears_an_earlier_fatal_one() -> None:
    after = state(xid(BAD_MEMORY), xid(NOTICE), xid(ILLEGAL_ACCESS))
    assert len(texts(after)) == 2
    after = look(after, at=AFTER)
    assert texts(after) == texts(state(xid(BAD_MEMORY)))


def test_an_xid_that_came_while_we_looked_is_not_cleared_by_that_look() -> None:
    before = look(state(), LOST, at=NOW - 5)
    after = after_event(before, xid(BAD_MEMORY), NOW, CHECKS)
    taken = GpuObservation(at=NOW - 1, driver="550", condition=FINE)
    assert not healthy(after_observation(after, taken, NOW + 1, since=0.0, quiet=QUIET))


def test_a_storm_of_different_xids_keeps_the_gravest() -> None:
    events = [xid(number) for number in (NO_POWER, *range(2000, 2040), NOTICE, BAD_MEMORY)]
    after = state(*events)
    assert len(after.xids) == MOST_XIDS
    assert any("Xid 54 " in text for text in texts(after))
    assert not any("Xid 63 " in text for text in texts(after))


def test_a_slices_own_error_condemns_the_slice_and_the_gpu_as_a_whole_not_its_neighbours() -> None:
    after = state(xid(CONTAINED, gi=1, ci=0))
    assert not healthy(after, (1, 0))
    assert healthy(after, (2, 0))
    assert healthy(after, (1, 1))
    assert not healthy(after)


def test_an_error_of_a_gpu_instance_condemns_each_of_its_compute_instances() -> None:
    after = state(xid(CONTAINED, gi=1, ci=0xFFFFFFFF))
    assert [healthy(after, (1, ci)) for ci in (0, 1)] == [False, False]
    assert healthy(after, (2, 0))


@pytest.mark.parametrize("event", [xid(95, gi=1, ci=0), xid(BAD_MEMORY, gi=1, ci=0), xid(94)])
def test_what_takes_a_reset_or_names_no_slice_condemns_all_slices(event: GpuEvent) -> None:
    after = state(event)
    assert not any(healthy(after, place) for place in [(1, 0), (2, 0), None])


def test_a_slice_waits_for_its_own_processes_alone() -> None:
    busy: Mapping[Place, frozenset[int] | None] = {(1, 0): frozenset(), (2, 0): frozenset({7})}
    after = look(state(xid(CONTAINED, gi=1, ci=0)), at=NOW + 1, users=busy)
    assert healthy(look(after, at=AFTER + 1, users=busy), (1, 0))


def test_an_event_of_an_unnamed_gpu_is_the_lost_ones_and_nobody_elses() -> None:
    after = state(xid(OFF_THE_BUS, uuid=""))
    assert healthy(after)
    assert "did not name" in verdict(after).notes[0]
    assert verdict(look(after, at=NOW + 1)) == verdict(state())
    lost = look(after, LOST, at=NOW + 1)
    assert "fell off the bus" in texts(lost)[0]
    assert healthy(look(lost, at=NOW + 2))


def test_an_odd_answer_condemns_at_once_a_gpu_that_an_event_may_be_about() -> None:
    odd = GpuCondition(lost="NVML_ERROR_UNKNOWN")
    assert not healthy(look(state(xid(OFF_THE_BUS, uuid="")), odd, at=NOW + 1))
    assert healthy(look(state(), odd, at=NOW + 1))


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (LOST, "it is lost (NVML_ERROR_GPU_IS_LOST)"),
        (GpuCondition(lost="NVML_ERROR_RESET_REQUIRED"), "it is lost"),
        (GpuCondition(remap_failed=True), "could not be replaced"),
        (GpuCondition(remap_pending=True), "waits for a reset"),
        (GpuCondition(retired_pending=True), "wait for a reset"),
        (GpuCondition(links_down=(3,)), "NVLink 3 went down"),
        (GpuCondition(recovery="reset the GPU"), "the driver asks to reset the GPU"),
        (GpuCondition(recovery=""), None),
        (GpuCondition(temperature=90, shutdown_temperature=90), "90 degrees"),
        (FINE, None),
        (GpuCondition(remap_failed=False, remap_pending=False, retired_pending=False), None),
        (GpuCondition(temperature=89, shutdown_temperature=90), None),
        (GpuCondition(temperature=89), None),
        (GpuCondition(shutdown_temperature=90), None),
        (GpuCondition(lost="NVML_ERROR_UNKNOWN"), None),
        (GpuCondition(lost="NVML_ERROR_DRIVER_NOT_LOADED"), None),
    ],
)
def test_what_nvml_tells_condemns_while_it_is_so_and_what_it_does_not_tell_never(
    condition: GpuCondition, told: str | None
) -> None:
    after = look(state(), condition, at=NOW)
    if told is None:
        assert healthy(after)
        return
    assert told in texts(after)[0]
    assert not verdict(after, conditions=False).faults
    assert healthy(look(after, at=NOW + 1))
    restarted = restored(after.kept, BOOT, NOW + 1, CHECKS)
    passes = condition.temperature is not None or condition.links_down
    assert texts(restarted) == ([] if passes else texts(after)), "until it is looked at again"
    assert healthy(look(restarted, at=NOW + 1))
    assert healthy(restored(after.kept, LATER, 7.0, CHECKS))


def test_a_gpu_that_answers_oddly_twice_is_out_of_order_and_once_is_a_note() -> None:
    odd = GpuCondition(lost="NVML_ERROR_UNKNOWN")
    once = look(state(), odd, at=NOW)
    assert verdict(once).notes == ("its state cannot be read: NVML_ERROR_UNKNOWN",)
    twice = look(once, odd, at=NOW + 1)
    assert texts(twice) == ["GPU-1: it does not answer: NVML_ERROR_UNKNOWN"]
    assert texts(restored(twice.kept, BOOT, NOW + 1, CHECKS)) == texts(twice), "nobody answered"
    assert healthy(restored(once.kept, BOOT, NOW + 1, CHECKS))
    assert look(twice, odd, at=NOW + 2).kept == twice.kept, "no beat has it written anew"
    assert healthy(look(twice, at=NOW + 2))


def test_a_library_that_is_not_there_condemns_no_gpu_however_long() -> None:
    after = state()
    for beat in range(5):
        after = look(after, GpuCondition(lost="NVML_ERROR_UNINITIALIZED"), at=NOW + beat)
    assert healthy(after)
    assert verdict(after).notes


def test_only_what_a_verdict_goes_by_has_it_judged_anew() -> None:
    def at(degrees: int, before: GpuState, *, failed: bool | None = None) -> GpuState:
        condition = GpuCondition(temperature=degrees, shutdown_temperature=90, remap_failed=failed)
        return look(before, condition, at=NOW)

    cool, hot = at(40, state()), at(91, state())
    assert cool.judged == at(41, cool).judged
    assert cool.judged == replace(cool, condition=GpuCondition())
    assert at(91, cool).judged != cool.judged
    assert at(92, hot).judged != hot.judged  # its text has the degrees
    assert at(41, cool, failed=True).judged != cool.judged


def test_a_gpu_that_was_too_hot_must_cool_down() -> None:
    def at(degrees: int, before: GpuState) -> GpuState:
        return look(before, GpuCondition(temperature=degrees, shutdown_temperature=90), at=NOW)

    hot = at(91, state())
    assert not healthy(at(86, hot))
    assert healthy(at(84, at(86, hot)))
    assert healthy(at(86, state()))


def test_links_that_were_never_up_are_not_missed() -> None:
    bare = look(GpuState(uuid=GPU, boot=BOOT), GpuCondition(links_down=(0, 1)), at=NOW)
    assert healthy(bare)
    one_up = look(bare, GpuCondition(links_down=(0,)), at=NOW + 1)
    assert texts(look(one_up, GpuCondition(links_down=(0, 1)), at=NOW + 2)) == [
        "GPU-1: its NVLink 1 went down"
    ]


DOWN = GpuCondition(links_down=(1,))


def _reset(before: GpuState) -> GpuState:
    asked = replace(DOWN, recovery="reset the GPU")
    return look(look(before, asked, at=NOW + 2), replace(DOWN, recovery=""), at=NOW + 3)


def test_a_link_that_is_down_is_judged_anew_by_another_daemon_and_under_another_driver() -> None:
    down = look(look(state(), at=NOW), DOWN, at=NOW + 1)
    assert healthy(look(restored(down.kept, BOOT, NOW + 4, CHECKS), DOWN, at=NOW + 2))
    assert healthy(look(replace(down, driver=NO_DRIVER), DOWN, at=NOW + 2))
    assert healthy(look(down, DOWN, at=NOW + 2, driver="560"))
    assert not healthy(look(down, DOWN, at=NOW + 2))
    assert not healthy(_reset(down)), "a link that does not come back with a reset is broken"


OWN, PEER = PciAddress("0000:10:00.0"), PciAddress("0000:11:00.0")


@pytest.mark.parametrize(
    ("peer", "lost", "missed"),
    [
        pytest.param(Gpu(index=1, uuid=OTHER, pci=PEER), False, True, id="the peer is there"),
        pytest.param(Gpu(index=1, uuid=OTHER, pci=PEER, mig=True), False, False, id="in MIG mode"),
        pytest.param(Gpu(index=1, uuid=OTHER, pci=PEER), True, False, id="lost"),
        pytest.param(
            Gpu(
                index=1,
                uuid=OTHER,
                pci=PEER,
                problems=(GpuProblem(asked="handle", error="NVML_ERROR_GPU_IS_LOST", lost=True),),
            ),
            False,
            False,
            id="lost when enumerated",
        ),
        pytest.param(None, False, False, id="gone"),
    ],
)
def test_a_link_to_a_peer_that_is_away_condemns_nobody_until_the_peer_is_back(
    peer: Gpu | None, lost: bool, missed: bool
) -> None:
    linked = look(state(), GpuCondition(peers={1: PEER}), at=NOW)
    down = look(linked, DOWN, at=NOW + 1)
    other = replace(state(), uuid=OTHER)
    states = {GPU: down, OTHER: look(other, LOST if lost else FINE, at=NOW + 1)}
    me = Gpu(index=0, uuid=GPU, pci=OWN)
    gpus = [me] if peer is None else [me, peer]
    assert bool(healths(states, gpus)[GPU].faults) is missed
    back = [me, Gpu(index=1, uuid=OTHER, pci=PEER)]
    states[OTHER] = other
    assert healths(states, back)[GPU].faults, "it has not come up again with its peer"
    assert not healths({**states, GPU: look(down, at=NOW + 2)}, back)[GPU].faults


def test_a_link_to_a_switch_has_no_peer_that_could_excuse_it() -> None:
    down = look(look(state(), at=NOW), DOWN, at=NOW + 1)
    assert healths({GPU: down}, [Gpu(index=0, uuid=GPU, pci=OWN)])[GPU].faults


def test_links_rest_while_mig_is_on_and_are_learned_anew_after() -> None:
    down = GpuCondition(links_down=(0, 1))
    mig = look(state(), down, at=NOW, mig=True)
    assert healthy(mig)
    assert healthy(look(mig, down, at=NOW + 1))
    untold = look(state(), at=NOW, mig=True)
    assert healthy(look(untold, down, at=NOW + 1)), "what MIG mode does not show is no link"


@pytest.mark.parametrize("number", [154, 4711])
def test_what_the_driver_asks_for_decides_after_an_xid_that_only_refers_to_it_or_is_unknown(
    number: int,
) -> None:
    heard = state(xid(number))
    assert not healthy(heard)
    fine, asks = GpuCondition(recovery=""), GpuCondition(recovery="reset the GPU")
    quiet = look(look(heard, fine, at=NOW + 1), fine, at=AFTER)
    assert healthy(quiet)
    assert not healthy(look(heard, asks, at=AFTER))
    reset = look(look(heard, asks, at=NOW + 1), fine, at=NOW + 2)
    assert healthy(reset)


def test_a_change_of_the_drivers_advice_is_over_at_once_where_the_driver_tells_it() -> None:
    assert healthy(look(state(xid(154)), GpuCondition(recovery=""), at=NOW + 1))
    older = look(state(xid(154)), at=NOW + 1)
    assert not healthy(older)
    assert healthy(look(older, at=AFTER))


def test_an_xid_that_is_known_to_need_a_reset_is_not_cleared_by_what_the_driver_says() -> None:
    fine = GpuCondition(recovery="")
    assert not healthy(look(look(state(xid(BAD_MEMORY)), fine, at=NOW + 1), fine, at=AFTER))


def test_one_reset_is_not_seen_twice_where_nvml_tells_no_rows_for_a_while() -> None:
    asks = GpuCondition(recovery="reset the GPU", remap_pending=True)
    reset = look(look(state(), asks, at=NOW + 1), GpuCondition(recovery=""), at=NOW + 2, mig=True)
    heard = after_event(reset, xid(OFF_THE_BUS), NOW + 3, CHECKS)
    fine = GpuCondition(recovery="", remap_pending=False)
    assert not healthy(look(heard, fine, at=NOW + 4)), "its error came after the reset"


def test_an_event_is_about_a_slice_only_where_the_gpu_is_divided() -> None:
    part = MigSlice(uuid="MIG-1", gi=0, ci=0, profile="7g.80gb")
    whole, divided = Gpu(index=0, uuid=GPU), Gpu(index=0, uuid=GPU, mig=True, slices=(part,))
    event = xid(BAD_MEMORY, gi=0, ci=0)
    assert placed(event, [whole]) == xid(BAD_MEMORY)
    assert placed(event, [divided]) == event
    assert placed(replace(event, uuid="MIG-1", gi=None, ci=None), [divided]) == event
    assert placed(replace(event, uuid=""), [whole]) == replace(event, uuid="")
    assert placed(event, []) == event
    assert "on its slice" not in texts(state(placed(xid(CONTAINED, gi=0, ci=0), [whole])))[0]


def test_being_unmonitored_is_a_note_and_no_fault() -> None:
    deaf = replace(state(), unmonitored="its events cannot be received: NVML_ERROR_NOT_SUPPORTED")
    assert healthy(deaf)
    assert verdict(deaf).notes == (deaf.unmonitored,)


def test_a_mark_that_a_person_has_had_ignored_is_gone_after_a_restart() -> None:
    before = state(xid(NO_POWER), xid(BAD_MEMORY)).kept
    assert texts(restored(before, BOOT, NOW + 4, xid_checks("54"))) == texts(state(xid(BAD_MEMORY)))


def test_the_health_of_each_gpu_and_slice_is_found_by_uuid() -> None:
    slices = (
        MigSlice(uuid="MIG-1", gi=1, ci=0, profile="1g.10gb"),
        MigSlice(uuid="MIG-2", gi=2, ci=0, profile="1g.10gb"),
    )
    found = healths(
        {GPU: state(xid(CONTAINED, gi=1, ci=0)), OTHER: replace(state(), uuid=OTHER)},
        [Gpu(index=0, uuid=GPU, mig=True, slices=slices), Gpu(index=1, uuid="GPU-unknown")],
    )
    assert {uuid: bool(each.faults) for uuid, each in found.items()} == {
        GPU: True,
        OTHER: False,
        "MIG-1": True,
        "MIG-2": False,
    }


def test_a_slice_is_found_on_its_gpu_and_anything_else_is_taken_for_a_gpu() -> None:
    part = MigSlice(uuid="MIG-1", gi=7, ci=1, profile="1g.10gb", slices=(1, 1), memory=1, index=0)
    gpus = (Gpu(index=0, uuid=OTHER), Gpu(index=1, uuid=GPU, slices=(part,)))
    assert place_of("MIG-1", gpus) == (GPU, (7, 1))
    assert place_of(OTHER, gpus) == (OTHER, None)


def test_what_is_not_on_the_list_may_be_a_gpu_that_does_not_say_who_or_how_divided_it_is() -> None:
    def problem(asked: str) -> GpuProblem:
        return GpuProblem(asked=asked, error="NVML_ERROR_GPU_IS_LOST", lost=True)

    fine = Gpu(index=0, uuid=GPU)
    part = MigSlice(uuid="MIG-1", gi=1, ci=0, profile="1g.10gb")
    hidden = {
        False: [
            fine,
            replace(fine, problems=(problem("memory"),)),
            replace(fine, mig=True, slices=(part,), problems=(problem("MIG devices"),)),
        ],
        True: [replace(fine, uuid=""), replace(fine, problems=(problem("handle"),))],
    }
    for expected, gpus in hidden.items():
        for gpu in gpus:
            assert hides_some(GpuReading(gpus=(fine, gpu))) is expected, gpu
