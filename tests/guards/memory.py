"""The guards of what is remembered of who has a device: it is used only where it still counts."""

from guards.guard import Edit, Guard

_USE = "daemon/holdfast/inuse/deviceuse.py"
_MEMORY = "tests/contract/test_one_memory.py"
_DEVICES = "tests/contract/test_device_use.py"

MEMORY_GUARDS = (
    Guard(
        name="use-seen-now",
        why="that nobody has a device, to free it, was seen after its pod was over",
        edits=(
            Edit(
                _USE,
                "if to_free and not (enabled or facts.holders or (facts.gaps and seen.to_free)):",
                "if False:",
            ),
        ),
        tests=(
            f"{_MEMORY}::test_nobody_to_free_a_device_must_have_been_seen_after_its_pod_was_over",
        ),
    ),
    Guard(
        name="use-enable",
        why="what was seen says nothing once `enable` says something else",
        edits=(
            Edit(
                _USE,
                "if enabled != facts.enabled or facts.holders is None:",
                "if facts.holders is None:",
            ),
        ),
        tests=(
            f"{_DEVICES}::test_a_change_of_enable_is_looked_into_at_once_although_the_holder_lives",
        ),
    ),
    Guard(
        name="use-ahead-enable",
        why="nor does what was seen of many devices together",
        edits=(Edit(_USE, "seen.to_free and enabled == seen.facts.enabled:", "seen.to_free:"),),
        tests=(
            f"{_DEVICES}::test_what_was_seen_ahead_is_not_used_once_enable_says_something_else",
        ),
    ),
    Guard(
        name="use-ahead-once",
        why="that counts for one turn of the watcher, and once",
        edits=(
            Edit(
                _USE,
                "        self._ahead = set()\n        if len(devices) < 2:",
                "        if len(devices) < 2:",
            ),
        ),
        tests=(f"{_DEVICES}::test_what_was_seen_ahead_of_one_beat_is_not_used_in_the_next",),
    ),
    Guard(
        name="use-ahead-start",
        why="and what a start has proven meanwhile is not it",
        edits=(
            Edit(
                _USE,
                "seen is not None and seen.to_free and enabled",
                "seen is not None and enabled",
            ),
        ),
        tests=(f"{_MEMORY}::test_what_a_start_proved_meanwhile_is_not_what_was_looked_at_ahead",),
    ),
    Guard(
        name="use-released",
        why="what was seen for a release is no proof once a pod has the device again",
        edits=(
            Edit(
                _USE,
                "            self._seen[device] = replace(seen, to_free=False)\n",
                "            pass\n",
            ),
        ),
        tests=(f"{_MEMORY}::test_what_a_release_saw_is_no_proof_once_a_pod_has_the_device_again",),
    ),
    Guard(
        name="use-whole",
        why="what some processes have tells a start nothing of all others",
        edits=(
            Edit(
                _USE,
                "            and seen.whole\n            and _is_kept(seen.facts)\n",
                "            and _is_kept(seen.facts)\n",
            ),
        ),
        tests=(f"{_MEMORY}::test_what_a_pods_own_processes_have_tells_a_start_nothing_of_others",),
    ),
    Guard(
        name="use-nobody-among",
        why="nobody among the processes of a pod is not nobody",
        edits=(Edit(_USE, "            if _is_kept(found):\n", "            if True:\n"),),
        tests=(f"{_MEMORY}::test_nobody_among_a_pods_processes_is_not_nobody",),
    ),
    Guard(
        name="use-unread",
        why="a holder that cannot be read any more has not let go",
        edits=(Edit(_USE, "elif facts.unread & followed[device.name]:", "elif False:"),),
        tests=(f"{_DEVICES}::test_a_holder_that_cannot_be_read_any_more_has_not_let_go",),
    ),
    Guard(
        name="use-next-look",
        why="a start is answered by a look that began after it asked",
        edits=(
            Edit(_USE, "            self._next = None  # who asks", "            pass  # who asks"),
        ),
        tests=(f"{_MEMORY}::test_starts_that_ask_while_a_look_is_under_way_share_the_next",),
    ),
)
