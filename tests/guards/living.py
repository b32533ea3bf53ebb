"""The guards of a pod that may live: its own leaking sandbox, and what a person has released."""

from guards.guard import Edit, Guard

_LEAKS = "daemon/holdfast/reclaim/leaks.py"
_LEAK_RULE = "daemon/holdfast/model/reclaim/leak.py"
_HAND = "daemon/holdfast/reclaim/handrelease.py"
_ENDS = "daemon/holdfast/reclaim/ending.py"
_LAST = "tests/integration/test_leaks_judged_last.py"
_RELEASES = "tests/integration/test_release_by_hand.py"
_JUDGED = "tests/integration/test_hand_release_judged.py"

_LEAK_GUARDS = (
    Guard(
        name="leak-report",
        why="a leaking sandbox of a living pod is kept where it is only to be reported",
        edits=(Edit(_LEAKS, "restart=self._may_restart,", "restart=True,"),),
        tests=(
            f"{_LAST}::test_a_leaking_sandbox_is_kept_where_the_operator_wants_it_only_reported",
        ),
    ),
    Guard(
        name="leak-mode",
        why="nor is it ended where nothing of the pod may be",
        edits=(
            Edit(_LEAKS, 'terminate=self._modes.mode_of(pod) == "terminate",', "terminate=True,"),
        ),
        tests=(
            f"{_LAST}::test_a_leaking_sandbox_is_kept_where_the_operator_wants_it_only_reported",
        ),
    ),
    Guard(
        name="leak-start",
        why="a sandbox that holds up no start of its pod is left alone",
        edits=(
            Edit(
                _LEAKS,
                "held_up=WaitingStart(pod=pod, device=device) in self._starts.value,",
                "held_up=True,",
            ),
        ),
        tests=(
            f"{_LAST}::test_a_start_that_goes_on_while_a_kernel_refuses_cgroup_kill_saves_its_sandbox",
        ),
    ),
    Guard(
        name="leak-counted",
        why="a pod that kubelet does not count is over, which has graces of its own",
        edits=(
            Edit(_LEAKS, "counted=view.readable and view.counts(pod),", "counted=view.readable,"),
        ),
        tests=(
            f"{_LAST}::test_the_sandbox_of_a_pod_that_kubelet_may_not_count_is_no_leak_of_a_living_pod",
        ),
    ),
    Guard(
        name="leak-unread",
        why="so may be one of which the checkpoint cannot be read",
        edits=(
            Edit(
                _LEAKS, "counted=view.readable and view.counts(pod),", "counted=view.counts(pod),"
            ),
        ),
        tests=(
            f"{_LAST}::test_the_sandbox_of_a_pod_that_kubelet_may_not_count_is_no_leak_of_a_living_pod",
        ),
    ),
    Guard(
        name="leak-grace",
        why="a leak that was just seen can be a container that is still ending",
        edits=(
            Edit(
                _LEAKS, "return now - self._leaking_since.setdefault(pod, now)", "return math.inf"
            ),
        ),
        tests=(f"{_LAST}::test_a_sandbox_has_to_leak_for_its_grace_without_a_break",),
    ),
    Guard(
        name="leak-break",
        why="so can one that comes back",
        edits=(
            Edit(_LEAKS, "            self._leaking_since.pop(pod, None)\n", "            pass\n"),
        ),
        tests=(f"{_LAST}::test_a_sandbox_has_to_leak_for_its_grace_without_a_break",),
    ),
    Guard(
        name="leak-later-start",
        why="and one that holds up a later start",
        edits=(Edit(_LEAKS, "            del self._leaking_since[pod]\n", "            pass\n"),),
        tests=(f"{_LAST}::test_a_sandbox_has_to_leak_for_its_grace_without_a_break",),
    ),
    Guard(
        name="leak-pause",
        why="nor is one ended again that leaks again soon after its end",
        edits=(Edit(_LEAKS, "pause=judge.pause,", "pause=0.0,"),),
        tests=(f"{_LAST}::test_a_sandbox_that_leaks_again_soon_is_kept_for_a_while",),
    ),
    Guard(
        name="leak-lock",
        why="a pod that does not hold the device any more has nothing that leaks it",
        edits=(
            Edit(
                _LEAK_RULE,
                "if facts.lock is None or facts.lock.state is not LockState.HELD or facts.lock.pod != facts.pod:",
                "if facts.lock is None:",
            ),
        ),
        tests=(
            f"{_LAST}::test_the_sandbox_of_a_pod_that_does_not_hold_the_device_is_no_leak_of_it",
        ),
    ),
    Guard(
        name="leak-noted",
        why="the history has it that a sandbox is being ended before it is",
        edits=(
            Edit(
                _LEAKS, "        if not await self._note(warrant, meant):\n            return\n", ""
            ),
        ),
        tests=(f"{_LAST}::test_what_is_tried_again_and_again_is_in_the_history_once",),
    ),
)

_HAND_GUARDS = (
    Guard(
        name="hand-refused",
        why="what a person's word is not enough for is not done",
        edits=(
            Edit(
                _HAND,
                "if verdict.grounds is None or lock is None or lock.pod is None:",
                "if lock is None or lock.pod is None:",
            ),
        ),
        tests=(
            f"{_RELEASES}::test_a_pod_that_lives_keeps_its_device_unless_its_own_name_is_typed",
        ),
    ),
    Guard(
        name="hand-no-answer",
        why="while kubelet gives no answer, it may count the pod",
        edits=(
            Edit(
                _HAND,
                "counted=None if view is None else view",
                "counted=False if view is None else view",
            ),
        ),
        tests=(f"{_RELEASES}::test_while_kubelet_gives_no_answer_a_pod_may_live",),
    ),
    Guard(
        name="hand-shown",
        why="a word is for the lock that was shown",
        edits=(
            Edit(_HAND, "replace(seen, shown=shown, typed=typed)", "replace(seen, typed=typed)"),
        ),
        tests=(f"{_RELEASES}::test_a_lock_that_has_moved_since_it_was_shown_is_not_released",),
    ),
    Guard(
        name="hand-at-work",
        why="a pod that still runs lives, though kubelet has forgotten it: its name has to be typed",
        edits=(Edit(_HAND, "at_work=may_be_at_work(members, state)", "at_work=None"),),
        tests=(f"{_JUDGED}::test_a_pod_that_still_runs_is_released_only_by_its_name",),
    ),
    Guard(
        name="hand-moved",
        why="nor is a lock released that moves while a person's word is judged",
        edits=(Edit(_HAND, "if not draft.is_as(lock):", "if False:"),),
        tests=(f"{_JUDGED}::test_a_lock_that_moves_while_its_release_is_judged_is_not_released",),
    ),
    Guard(
        name="hand-term",
        why="also on a person's word a process has its grace to save its work",
        edits=(Edit(_ENDS, "left, grace if sent else 0.0)", "left, 0.0)"),),
        tests=(f"{_JUDGED}::test_who_is_ended_on_a_persons_word_has_the_grace_of_sigterm",),
    ),
)

LIVING_GUARDS = (*_LEAK_GUARDS, *_HAND_GUARDS)
