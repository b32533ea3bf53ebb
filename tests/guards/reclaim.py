"""The guards of each step of a reclaim: who is signalled, on which evidence, and what is reset."""

from guards.guard import Edit, Guard

_RELEASES = "tests/integration/test_release_by_hand.py"
_RECLAIMER = "daemon/holdfast/reclaim/reclaimer.py"
_SIGHTED = "tests/contract/test_pod_sightings.py"
_SIGHTINGS = "daemon/holdfast/reclaim/sightings.py"
_ENDING = "daemon/holdfast/reclaim/ending.py"
_PODS = "daemon/holdfast/reclaim/pods.py"
_EVIDENCE = "daemon/holdfast/reclaim/evidence.py"
_FREE = "daemon/holdfast/model/use/free.py"
_SIGNALS = "tests/integration/test_signals_hit_nobody_else.py"
_ENDS = "tests/integration/test_ends_judged_last.py"
_FROZEN = "tests/integration/test_frozen_cgroups.py"
_MEMBERS = "tests/contract/test_pod_members.py"
_REAL_PODS = "tests/contract/test_pods_on_this_kernel.py"
_UNCOUNTED = "tests/unit/test_uncounted.py"
_RESETTER = "daemon/holdfast/reclaim/resetter.py"
_WATCHER = "daemon/holdfast/reclaim/watcher.py"
_USERS = "daemon/holdfast/reclaim/users.py"
_RESETS = "tests/contract/test_host_reset.py"
_FREES = "tests/contract/test_watcher_frees.py"
_LOOKS = "tests/contract/test_look.py"

_END_GUARDS = (
    Guard(
        name="only-meant",
        why="of a pod that lives nobody is ended but the holders of the device that is released",
        edits=(Edit(_ENDING, "if (only is None or each.process in only) and judge", "if judge"),),
        tests=(f"{_ENDS}::test_who_was_not_meant_does_not_end_with_who_was",),
    ),
    Guard(
        name="void",
        why="with its pidfds open, a pod is spared if its lock moved or kubelet counts it",
        edits=(Edit(_ENDING, "        if void is not None:\n", "        if False:\n"),),
        tests=(
            f"{_SIGNALS}::test_a_lock_that_moved_meanwhile_is_not_acted_upon",
            f"{_SIGNALS}::test_a_manifest_put_back_between_scan_and_signal_saves_its_pod",
        ),
    ),
    Guard(
        name="each-judged",
        why="with its pidfd open, each process is judged as it is then",
        edits=(Edit(_ENDING, " and judge.why_spare(each, members) is None", ""),),
        tests=(f"{_SIGNALS}::test_the_container_runtime_in_the_pods_cgroup_is_never_signalled",),
    ),
    Guard(
        name="whole-each-judged",
        why="where a cgroup is ended, each process that is in it by then has to be one to end",
        edits=(
            Edit(
                _ENDING,
                "                and not any(judge.why_spare(each, now) for each in now)\n",
                "",
            ),
        ),
        tests=(
            f"{_SIGNALS}::test_a_container_that_shows_once_its_pod_is_frozen_saves_it",
            f"{_SIGNALS}::test_a_container_that_shows_right_before_its_cgroup_is_killed_saves_it",
        ),
    ),
    Guard(
        name="whole-empty",
        why="nobody judged who enters an empty cgroup as it is killed",
        edits=(
            Edit(_ENDING, "                and bool(now)\n", ""),
            Edit(
                "daemon/holdfast/model/reclaim/ending.py",
                "return bool(members) and not any(\n        member.is_shim",
                "return not any(\n        member.is_shim",
            ),
        ),
        tests=(f"{_ENDS}::test_a_cgroup_that_is_empty_at_the_last_moment_is_not_ended",),
    ),
    Guard(
        name="whole-let-go",
        why="while kubelet has not let go of a pod, any process of it may be a new start",
        edits=(
            Edit(_ENDING, "newest is not None and whole_cgroup", "newest is None or whole_cgroup"),
        ),
        tests=(
            f"{_ENDS}::test_of_a_pod_that_may_live_a_word_ends_no_process_that_comes_meanwhile",
        ),
    ),
    Guard(
        name="term-not-whole",
        why="a process has its grace to save its work before its cgroup is killed",
        edits=(
            Edit(
                _ENDING,
                "at_once = order.step is ReclaimStep.KILL or any(each.sandbox for each in members)",
                "at_once = True",
            ),
        ),
        tests=(f"{_SIGNALS}::test_the_log_calls_a_signal_sent_and_no_process_ended",),
    ),
    Guard(
        name="term-first",
        why="the first signal is SIGTERM, on which a process can save its work",
        edits=(
            Edit(
                _ENDING,
                "signal.SIGKILL if order.step is ReclaimStep.KILL else signal.SIGTERM",
                "signal.SIGKILL",
            ),
        ),
        tests=(f"{_SIGNALS}::test_the_log_calls_a_signal_sent_and_no_process_ended",),
    ),
    Guard(
        name="forks-on",
        why="a process that forks and ends between the signals does not keep its device locked",
        edits=(
            Edit(
                _ENDING,
                "return agreed.whole or bool(agreed.victims)",
                "return bool(agreed.victims)",
            ),
        ),
        tests=(f"{_SIGNALS}::test_what_is_another_process_at_each_signal_is_ended_all_the_same",),
    ),
    Guard(
        name="thawed",
        why="a pod that is spared once it is frozen goes on",
        edits=(
            Edit(
                _PODS,
                "            finally:\n                await self._thaw(path, each)\n",
                "            finally:\n                pass\n",
            ),
        ),
        tests=(
            f"{_REAL_PODS}::test_a_pod_that_is_spared_once_it_is_frozen_goes_on",
            f"{_SIGNALS}::test_a_container_that_shows_once_its_pod_is_frozen_saves_it",
            f"{_FROZEN}::test_a_freeze_that_ends_in_an_error_is_thawed",
        ),
    ),
    Guard(
        name="thawed-stopping",
        why="a daemon that stops does not leave a pod frozen",
        edits=(Edit(_PODS, "return await asyncio.shield(end)", "return await end"),),
        tests=(f"{_FROZEN}::test_a_daemon_that_stops_thaws_first",),
    ),
    Guard(
        name="thawed-late",
        why="a freeze may come after everybody has given up, and a thaw may fail: it is tried again",
        edits=(
            Edit(
                _PODS,
                "            return\n        self._problems",
                "            pass\n        self._problems",
            ),
        ),
        tests=(
            f"{_FROZEN}::test_a_freeze_that_comes_after_everybody_has_given_up_is_thawed",
            f"{_FROZEN}::test_a_thaw_that_fails_is_tried_again_and_told_once",
        ),
    ),
    Guard(
        name="thawed-next",
        why="what is frozen is noted before: the next daemon can thaw what this one, killed, left",
        edits=(Edit(_PODS, "await self._frozen.keep({**noted, path: each})", "pass"),),
        tests=(
            f"{_FROZEN}::test_a_daemon_thaws_what_the_one_before_it_had_frozen_when_it_was_killed",
            f"{_FROZEN}::test_what_cannot_be_noted_is_not_frozen",
        ),
    ),
    Guard(
        name="thawed-start",
        why="and it does so when it starts",
        edits=(
            Edit(
                "daemon/holdfast/app/daemon.py",
                '    supervisor.start("frozen cgroups", parts.reclaim.pods.run())\n',
                "",
            ),
        ),
        tests=(
            f"{_FROZEN}::test_a_daemon_that_starts_lets_a_pod_go_on_that_the_one_before_it_had_frozen",
        ),
    ),
    Guard(
        name="thawed-own",
        why="what somebody else has frozen stays frozen",
        edits=(
            Edit(
                _PODS,
                "if path not in noted and await self._lane.run(lambda: self._cgroups.is_frozen(path)):",
                "if False:",
            ),
        ),
        tests=(f"{_FROZEN}::test_what_somebody_else_has_frozen_is_ended_and_stays_frozen",),
    ),
    Guard(
        name="thawed-same",
        why="so does another cgroup that has the name of the one that was frozen",
        edits=(Edit(_PODS, " and self._cgroups.inode(path) == each.inode", ""),),
        tests=(
            f"{_FROZEN}::test_a_daemon_thaws_no_other_cgroup_of_the_same_name",
            f"{_FROZEN}::test_a_cgroup_that_is_gone_is_forgotten",
        ),
    ),
    Guard(
        name="thawed-boot",
        why="and one that has its inode as well, since the node was rebooted",
        edits=(Edit(_PODS, "each.boot == self._ledger.boot and ", ""),),
        tests=(f"{_FROZEN}::test_a_daemon_thaws_no_other_cgroup_of_the_same_name",),
    ),
    Guard(
        name="frozen-left",
        why="who left a frozen cgroup before its pidfd was open is not the pod's any more",
        edits=(
            Edit(
                _PODS,
                "            members = await self.members(pod)\n            if not may_end",
                "            members = found\n            if not may_end",
            ),
        ),
        tests=(f"{_ENDS}::test_who_leaves_a_frozen_cgroup_before_it_is_ended_is_spared",),
    ),
    Guard(
        name="shim-inside-seen",
        why="what a process inside the pod's cgroup runs in mounts of its own shows that it is a shim",
        edits=(Edit(_PODS, "contains=pid in shims", "contains=False"),),
        tests=(f"{_SIGNALS}::test_a_shim_of_any_name_inside_the_pods_cgroup_spares_all_of_it",),
    ),
    Guard(
        name="ended-while-read",
        why="who ends while its parent is looked for keeps no device for want of a parent",
        edits=(
            Edit(
                _PODS,
                "if parent is None and self._procfs.start_ticks(pid) != facts.process.start_ticks:",
                "if False:",
            ),
        ),
        tests=(f"{_MEMBERS}::test_who_ends_while_its_parent_is_looked_for_is_not_there_any_more",),
    ),
    Guard(
        name="sandbox-stuck",
        why="where the runtime's files give no answer, nobody knows what runs in a sandbox",
        edits=(Edit(_PODS, "return RuntimeState(problem=str(error))", "return RuntimeState()"),),
        tests=(f"{_MEMBERS}::test_files_of_the_runtime_that_give_no_answer_show_no_idle_sandbox",),
    ),
    Guard(
        name="mode-of-pod",
        why="nothing of a pod is ended whose devices are only observed",
        edits=(Edit(_EVIDENCE, 'return self._modes.mode_of(pod) == "terminate"', "return True"),),
        tests=(f"{_SIGNALS}::test_where_nothing_may_be_ended_nothing_is",),
    ),
    Guard(
        name="scan-of-warrant",
        why="that a scan missed somebody is known to the end",
        edits=(Edit(_EVIDENCE, "scan_complete=not judge.warrant.gap", "scan_complete=True"),),
        tests=(f"{_SIGNALS}::test_a_scan_that_could_not_see_everything_proves_nobody_guilty",),
    ),
    Guard(
        name="gap-of-others",
        why="whoever could not be seen has to be of the pod itself, or nothing of it is ended",
        edits=(
            Edit(_FREE, "self.of_unread if self.unread.issubset(but) else ()", "self.of_unread"),
        ),
        tests=(f"{_SIGNALS}::test_what_hides_in_the_pod_itself_keeps_nobody_of_it_alive",),
    ),
    Guard(
        name="graces-anew",
        why="a pod that is counted again has graces of its own when it ends again",
        edits=(
            Edit(
                _EVIDENCE,
                "        self._runtime.pop(pod, None)\n        self._kubelet.pop(pod, None)\n",
                "        pass\n",
            ),
        ),
        tests=(f"{_SIGNALS}::test_a_pod_that_was_not_over_after_all_has_its_graces_anew",),
    ),
    Guard(
        name="let-go-anew",
        why="each time that kubelet lets go of a pod has a grace of its own",
        edits=(Edit(_EVIDENCE, "if known is None or known[0] != said:", "if known is None:"),),
        tests=(f"{_ENDS}::test_new_evidence_that_kubelet_let_go_has_a_grace_of_its_own",),
    ),
    Guard(
        name="let-go-by-another",
        why="also when it is another kubelet that does",
        edits=(
            Edit(
                _EVIDENCE,
                "said = (record.counted_by, record.let_go_at)",
                "said = (None, record.let_go_at)",
            ),
        ),
        tests=(f"{_ENDS}::test_new_evidence_that_kubelet_let_go_has_a_grace_of_its_own",),
    ),
    Guard(
        name="unread-checkpoint",
        why="a checkpoint that cannot be read any more may have the pod again",
        edits=(
            Edit(
                _EVIDENCE,
                "return not view.readable or view.counts(pod)",
                "return view.counts(pod)",
            ),
        ),
        tests=(f"{_ENDS}::test_a_checkpoint_that_cannot_be_read_any_more_saves_the_pod",),
    ),
    Guard(
        name="uncounted-unread",
        why="a checkpoint that cannot be read does not show that kubelet is without a pod",
        edits=(Edit(_EVIDENCE, "elif counted is False:", "else:"),),
        tests=(f"{_UNCOUNTED}::test_books_that_cannot_be_read_neither_begin_nor_end_the_time",),
    ),
    Guard(
        name="uncounted-forgotten",
        why="nor has a pod been without kubelet since a former end",
        edits=(Edit(_EVIDENCE, "            del self._since[pod]\n", "            pass\n"),),
        tests=(f"{_UNCOUNTED}::test_what_is_of_no_interest_is_forgotten",),
    ),
    Guard(
        name="noted-first",
        why="the history has it that a process is being ended before it is: a crash hides nothing",
        edits=(
            Edit(
                _RECLAIMER, "        if lock.state is LockState.RELEASING:\n", "        if False:\n"
            ),
        ),
        tests=(
            f"{_RELEASES}::test_an_orphan_is_ended_at_once_and_in_observe_mode_because_a_person_asks",
        ),
    ),
)

_RESET_GUARDS = (
    Guard(
        name="reset-guarded",
        why="nothing is reset while others could open its group",
        edits=(Edit(_RESETTER, "guarded = opened is OpenOutcome.SUCCEEDED", "guarded = True"),),
        tests=(f"{_RESETS}::test_nothing_is_reset_while_a_group_cannot_be_kept_from_others",),
    ),
    Guard(
        name="reset-idle",
        why="nothing is reset that somebody may use",
        edits=(Edit(_RESETTER, "idle = self.idle and self.wanted()", "idle = self.wanted()"),),
        tests=(f"{_RESETS}::test_nothing_is_reset_that_is_not_proven_idle",),
    ),
    Guard(
        name="reset-wanted",
        why="the lock is asked for once more with the group open, right before the reset",
        edits=(Edit(_RESETTER, "idle = self.idle and self.wanted()", "idle = self.idle"),),
        tests=(
            f"{_RESETS}::test_nothing_is_reset_whose_lock_has_moved_meanwhile",
            f"{_RESETS}::test_nothing_is_reset_that_is_not_left_of_the_same_pod_by_then",
        ),
    ),
    Guard(
        name="reset-state",
        why="what has been freed or granted since is not reset",
        edits=(
            Edit(
                _RESETTER,
                "now is not None and now.state in FORCED and now.pod",
                "now is not None and now.pod",
            ),
        ),
        tests=(f"{_RESETS}::test_nothing_is_reset_that_is_not_left_of_the_same_pod_by_then",),
    ),
    Guard(
        name="reset-pod",
        why="nor is what another pod left behind",
        edits=(
            Edit(_RESETTER, "now.state in FORCED and now.pod == lock.pod", "now.state in FORCED"),
        ),
        tests=(f"{_RESETS}::test_nothing_is_reset_that_is_not_left_of_the_same_pod_by_then",),
    ),
    Guard(
        name="reset-busy",
        why="a device whose group somebody has open goes to nobody",
        edits=(
            Edit(
                _RESETTER, "            if opened is OpenOutcome.BUSY:\n", "            if False:\n"
            ),
        ),
        tests=(f"{_RESETS}::test_a_device_whose_group_somebody_has_open_is_not_given_away",),
    ),
    Guard(
        name="reset-refused",
        why="nor does one whose reset the kernel refused",
        edits=(Edit(_RESETTER, "if answer.written is WriteOutcome.FAILED:", "if False:"),),
        tests=(f"{_RESETS}::test_a_reset_that_the_kernel_refuses_is_a_failure",),
    ),
    Guard(
        name="reset-dead",
        why="nor one of which a single function gives no answer",
        edits=(
            Edit(_RESETTER, "            if problem is not None:\n", "            if False:\n"),
        ),
        tests=(f"{_RESETS}::test_a_function_that_stops_answering_is_found_out",),
    ),
    Guard(
        name="reset-unlooked",
        why="nor one of which a function cannot be looked at",
        edits=(
            Edit(
                _RESETTER,
                'return Findings(problem=f"{trial.device.name} cannot be checked: {error}")',
                "return Findings()",
            ),
        ),
        tests=(f"{_RESETS}::test_a_function_that_cannot_be_looked_at_is_kept_and_tried_again",),
    ),
    Guard(
        name="reset-again",
        why="a device whose check failed is checked again, and not kept for good",
        edits=(
            Edit(
                _RESETTER,
                "return it.findings is not None and self._clock.monotonic() - it.ended >= pause",
                "return False",
            ),
        ),
        tests=(f"{_RESETS}::test_a_function_that_cannot_be_looked_at_is_kept_and_tried_again",),
    ),
    Guard(
        name="reset-fresh",
        why="what a check found some time ago does not show that a device answers now",
        edits=(
            Edit(_RESETTER, "fresh = self._clock.monotonic() - it.ended < _FRESH", "fresh = True"),
        ),
        tests=(f"{_RESETS}::test_what_a_check_found_is_asked_for_again_after_a_while",),
    ),
    Guard(
        name="reset-first",
        why="a device whose holder was ended is checked before it is free",
        edits=(
            Edit(
                _RESETTER,
                "            self._begin(lock, device, facts)\n        return None\n",
                '            self._begin(lock, device, facts)\n        return ""\n',
            ),
        ),
        tests=(
            f"{_RESETS}::test_what_a_trial_found_is_no_word_about_another_part_of_a_locks_life",
        ),
    ),
    Guard(
        name="rebind-allowed",
        why="a function is bound again only where the operator allowed it",
        edits=(Edit(_RESETTER, "allowed=self.rebind)", "allowed=True)"),),
        tests=(f"{_RESETS}::test_a_function_off_vfio_is_found_out_and_left_alone_by_default",),
    ),
    Guard(
        name="rebind-wanted",
        why="and only while its lock is the one whose holder was ended",
        edits=(
            Edit(_RESETTER, "allowed=self.rebind) and self.wanted():", "allowed=self.rebind):"),
        ),
        tests=(
            f"{_RESETS}::test_no_function_is_bound_again_whose_lock_has_moved_or_that_has_a_driver",
        ),
    ),
)

_FREE_GUARDS = (
    Guard(
        name="free-detained",
        why="what is seen while the daemon itself has a device open frees and ends nothing",
        edits=(
            Edit(
                _WATCHER, "if detained := await self._resetter.detains(lock):", 'if detained := "":'
            ),
        ),
        tests=(f"{_FREES}::test_a_device_is_not_free_before_it_was_reset_and_checked",),
    ),
    Guard(
        name="free-checked",
        why="a device is free once its reset and check are done",
        edits=(Edit(_WATCHER, "        if cleared is None:\n            return\n", ""),),
        tests=(f"{_FREES}::test_a_device_is_not_free_before_it_was_reset_and_checked",),
    ),
    Guard(
        name="free-unmoved",
        why="a lock that moved while it was judged is not freed",
        edits=(
            Edit(
                _WATCHER,
                "        await self._ledger.if_unmoved(\n            lock, lambda draft: release(",
                "        await self._ledger.apply_or_log(\n            lambda draft: release(",
            ),
        ),
        tests=(f"{_FREES}::test_a_lock_that_moves_while_it_is_judged_is_not_freed",),
    ),
    Guard(
        name="free-unread",
        why="a checkpoint that cannot be read does not show that a pod is not counted",
        edits=(
            Edit(
                _WATCHER,
                "counted = view.counts(lock.pod) if view.readable else None",
                "counted = view.counts(lock.pod)",
            ),
        ),
        tests=(f"{_FREES}::test_a_checkpoint_that_cannot_be_read_does_not_say_who_is_counted",),
    ),
    Guard(
        name="free-claim",
        why="what a claim had does not stay locked because the checkpoint cannot be read",
        edits=(
            Edit(_WATCHER, "if lock.claim is not None:  # kubelet has", "if False:  # kubelet has"),
        ),
        tests=(f"{_FREES}::test_a_checkpoint_that_cannot_be_read_does_not_say_who_is_counted",),
    ),
    Guard(
        name="free-later-pod",
        why="nor because a static pod is back with the same UID",
        edits=(
            Edit(
                _WATCHER,
                "record is not None and sighting is not None and record.is_former(sighting.inode, boot)",
                "False",
            ),
        ),
        tests=(f"{_FREES}::test_a_later_pod_of_the_same_uid_does_not_keep_what_the_former_had",),
    ),
    Guard(
        name="free-unseen",
        why="a pod whose cgroup was never seen may be yet to show",
        edits=(
            Edit(
                _WATCHER,
                "cgroup_seen=record is not None and (record.cgroup is not None or rebooted)",
                "cgroup_seen=True",
            ),
        ),
        tests=(f"{_FREES}::test_a_pod_without_a_cgroup_is_gone_where_it_had_one_before",),
    ),
    Guard(
        name="free-claims-pods",
        why="a device is not free with one pod of its claim while another may live",
        edits=(Edit(_WATCHER, ").freedom\n            is Freedom.FREE\n", ").freedom\n"),),
        tests=(
            "tests/contract/test_graces_of_shared_claims.py::test_of_the_pods_of_a_claim_those_that_may_live_are_not_over_in_the_same_step",
        ),
    ),
    Guard(
        name="free-unlisted",
        why="a pod that cannot all be listed does not keep other locks from their turn",
        edits=(
            Edit(_WATCHER, "listed = facts.pod is None or not facts.pod.unlisted", "listed = True"),
        ),
        tests=(
            f"{_FREES}::test_of_a_pod_that_cannot_all_be_listed_nothing_is_ended_and_others_have_their_turn",
        ),
    ),
    Guard(
        name="held-again",
        why="a pod that has its device again has its graces and its SIGTERM again",
        edits=(
            Edit(
                _WATCHER,
                "        self._reclaimer.start_over({lock.pod for lock in held if lock.pod is not None})\n",
                "",
            ),
        ),
        tests=(f"{_FREES}::test_a_pod_that_has_its_device_again_starts_over",),
    ),
    Guard(
        name="true-owner",
        why="a lock is that of the pod which has the device open, and not of one that waits for it",
        edits=(Edit(_USERS, "await self._ledger.if_unmoved(lock, prove)", "pass"),),
        tests=(f"{_LOOKS}::test_the_pod_that_has_a_device_open_gets_its_lock_from_one_that_waits",),
    ),
    Guard(
        name="free-foreign",
        why="a free device that a stranger uses is offered to no pod",
        edits=(Edit(_USERS, "elif is_foreign(facts):", "elif False:"),),
        tests=(f"{_LOOKS}::test_a_free_device_that_was_left_enabled_is_no_strangers",),
    ),
    Guard(
        name="free-seen-now",
        why="that nobody has a device is seen after the end of its pod, and not remembered",
        edits=(Edit(_WATCHER, "to_free=not _may_live(pod),", "to_free=False,"),),
        tests=(
            f"{_FREES}::test_who_has_a_device_is_seen_anew_once_its_pod_is_over_and_never_tried_before",
        ),
    ),
    Guard(
        name="free-untried",
        why="nor is a device opened to try it while its pod may live: a program may just start on it",
        edits=(Edit(_WATCHER, "return counted or pod.populated is not False", "return counted"),),
        tests=(
            f"{_FREES}::test_who_has_a_device_is_seen_anew_once_its_pod_is_over_and_never_tried_before",
        ),
    ),
    Guard(
        name="free-nobodys",
        why="a device of which nobody knows whose it is may be that of a pod that started on it",
        edits=(
            Edit(
                _WATCHER,
                "lock.pod is None and (lock.state is LockState.FOREIGN or not lock.started)",
                "lock.pod is None",
            ),
        ),
        tests=(f"{_FREES}::test_a_device_is_nobodys_only_where_no_pod_can_have_started_on_it",),
    ),
    Guard(
        name="sight-empty",
        why="an empty cgroup is read each time: a pod of the same UID may come into it",
        edits=(
            Edit(
                _SIGHTINGS,
                "elif sighting.populated and sighting.processes and not sighting.unlisted:",
                "else:",
            ),
        ),
        tests=(f"{_SIGHTED}::test_an_empty_cgroup_is_read_each_time_since_its_end_is_not_told",),
    ),
    Guard(
        name="sight-unlisted",
        why="so is one of which not all can be listed",
        edits=(
            Edit(
                _SIGHTINGS, "sighting.processes and not sighting.unlisted:", "sighting.processes:"
            ),
        ),
        tests=(f"{_SIGHTED}::test_a_part_that_cannot_be_listed_is_tried_each_time",),
    ),
    Guard(
        name="sight-anew",
        why="and that of a pod that is over: its processes are those that are judged",
        edits=(
            Edit(
                _SIGHTINGS,
                "announced = self._announced.difference(again)",
                "announced = self._announced",
            ),
        ),
        tests=(f"{_SIGHTED}::test_what_is_to_be_read_anew_is",),
    ),
)

RECLAIM_GUARDS = (*_END_GUARDS, *_RESET_GUARDS, *_FREE_GUARDS)
