"""Counters for devices that share hardware, and none for those that do not."""

from holdfast.model.dra.slices import MOST_COUNTERS, Hardware, counted
from holdfast.model.ids import HardwareKey


def made_of(**devices: str) -> Hardware:
    """Return devices by name, each with the keys that its text has, separated by blanks."""
    return {name: frozenset(map(HardwareKey, keys.split())) for name, keys in devices.items()}


def test_what_several_devices_have_is_one_counter_however_many_keys_it_has() -> None:
    kept, counters = counted(made_of(a="1 2", b="3", c="9", both="1 2 3"))

    assert kept == ("a", "b", "c", "both")
    (one,) = counters.sets
    assert one.name == "a"
    assert {name: amount.value for name, amount in one.counters.items()} == {
        "part-0": "1",
        "part-1": "1",
    }
    assert {name: [*use.counters] for name, use in counters.uses.items()} == {
        "a": ["part-0"],
        "b": ["part-1"],
        "both": ["part-0", "part-1"],
    }


def test_devices_are_entangled_through_a_chain_that_ends_in_different_hardware() -> None:
    """Without a counter for the last piece, two claims would get it."""
    kept, counters = counted(made_of(a="1 2", b="1", c="2"))

    assert kept == ("a", "b", "c")
    assert {name: [*use.counters] for name, use in counters.uses.items()} == {
        "a": ["part-0", "part-1"],
        "b": ["part-0"],
        "c": ["part-1"],
    }


def test_hardware_that_one_device_alone_has_takes_no_counter() -> None:
    """There are only so many, and nothing else can be given what it has."""
    _, counters = counted(made_of(a="1 only-a", b="1 only-b"))

    (one,) = counters.sets
    assert [*one.counters] == ["part-0"]
    assert {name: [*use.counters] for name, use in counters.uses.items()} == {
        "a": ["part-0"],
        "b": ["part-0"],
    }


def test_a_set_is_filled_to_its_last_counter_and_no_further() -> None:
    def box(count: int) -> Hardware:
        keys = [f"{place:02}" for place in range(count)]
        return made_of(**{f"chip-{key}": key for key in keys}, box=" ".join(keys))

    kept, counters = counted(box(MOST_COUNTERS))
    assert len(kept) == MOST_COUNTERS + 1
    assert len(counters.sets[0].counters) == MOST_COUNTERS

    kept, counters = counted(box(MOST_COUNTERS + 1))
    assert len(kept) == MOST_COUNTERS + 1, "the box is left out, for it came last"
    assert "box" not in kept
    assert counters.sets == ()
