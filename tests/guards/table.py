"""Each guard of a signal, a reset or a free GPU, the edit that removes it, and the tests that then fail."""

from guards.claims import CLAIM_GUARDS
from guards.gpus import GPU_GUARDS
from guards.guard import Edit, Guard
from guards.living import LIVING_GUARDS
from guards.looks import LOOK_GUARDS
from guards.memory import MEMORY_GUARDS
from guards.processes import PROCESS_GUARDS
from guards.reclaim import RECLAIM_GUARDS
from guards.settings import SETTINGS_GUARDS

_ENDING = "daemon/holdfast/model/reclaim/ending.py"
_ENDS = "daemon/holdfast/reclaim/ending.py"
_PODS = "daemon/holdfast/reclaim/pods.py"
_PROCFS = "daemon/holdfast/host/proc/procfs.py"
_BY_HAND = "daemon/holdfast/model/reclaim/handrelease.py"
_EVIDENCE = "daemon/holdfast/reclaim/evidence.py"
_CGROUPS = "daemon/holdfast/host/cgroup/cgroups.py"
_PIDFD = "daemon/holdfast/host/proc/pidfd.py"
_KUBELET = "daemon/holdfast/model/kubelet.py"
_BOOK_PODS = "daemon/holdfast/model/book/pods.py"
_RECLAIMER = "daemon/holdfast/reclaim/reclaimer.py"
_LEAKS = "daemon/holdfast/reclaim/leaks.py"
_WORD = "tests/unit/test_word_of_a_person.py"
_RESET = "daemon/holdfast/model/reclaim/reset.py"
_RESET_TREES = "tests/contract/test_host_reset.py"
_LOOKS = "tests/contract/test_look.py"
_HAND = "daemon/holdfast/reclaim/handrelease.py"
_USERS = "daemon/holdfast/reclaim/users.py"
_RELEASES = "tests/integration/test_release_by_hand.py"
_RESETTER = "daemon/holdfast/reclaim/resetter.py"
_ENTRY = "daemon/holdfast/allocation/entry.py"
_USE = "daemon/holdfast/inuse/deviceuse.py"
_GATE = "tests/contract/test_gate.py"
_GATE_RULE = "daemon/holdfast/model/gate/gate.py"
_FREE = "daemon/holdfast/model/use/free.py"
_BOOK = "daemon/holdfast/model/book/book.py"
_QUEUE = "daemon/holdfast/model/book/queue.py"
_REPLICAS = "tests/unit/test_replicas.py"
_SLICES = "tests/unit/test_shared_slices.py"
_REPLICA_RULE = "daemon/holdfast/model/cards.py"
_PLACES_RULE = "daemon/holdfast/model/book/places.py"
_PLACES = "tests/unit/test_places.py"
_ON_VFIO = "tests/integration/test_gpus_on_vfio.py"
_PARTS = "daemon/holdfast/app/wiring/parts.py"
_GPU_IDLE = "daemon/holdfast/model/nvidia/free.py"
_GPU_FREE = "daemon/holdfast/model/nvidia/free.py"
_GPU_RULE = "tests/unit/test_gpu_free_rule.py"
_GPU_NODE = "tests/contract/test_gpu_release.py"
_GPU_FOUND = "daemon/holdfast/model/nvidia/names.py"
_GPU_NAMES = "tests/integration/test_gpu_cdi.py"
_PROMISE = "daemon/holdfast/model/gate/promise.py"
_GPU_PROMISE = "daemon/holdfast/model/nvidia/names.py"
_RESETS = "tests/integration/test_reset.py"
_LAST = "tests/integration/test_leaks_judged_last.py"
_CLAIMS = "tests/integration/test_claims_by_hand.py"
_CLAIM_DOOR = "tests/contract/test_claim_door.py"
_SIGNALS = "tests/integration/test_signals_hit_nobody_else.py"
_FORGETS = "tests/integration/test_kubelet_forgets.py"
_SANDBOXES = "tests/integration/test_sandboxes.py"
_REAL_PODS = "tests/contract/test_pods_on_this_kernel.py"
_MEMBERS = "tests/contract/test_pod_members.py"
_MACHINES = "tests/contract/test_host_machines.py"
_POD_SIGHTINGS = "tests/contract/test_pod_sightings.py"
_CGROUP_TREES = "tests/contract/test_host_cgroups.py"
_FREE_RULE = "tests/unit/test_free_rule.py"


# A process with a parent outside of its pod, as those that tests start, is spared whatever else is so.
_LIVING_PARENT = Edit(
    _ENDING, "return self.parent is not None and self.parent.is_init", "return True"
)
_STILL_UNDER_A_SHIM = Edit(
    _ENDING,
    "return self.sandbox is not Sandbox.MACHINE and self.is_orphan",
    "return self.sandbox is not Sandbox.MACHINE",
)
_ANOTHER_KUBELET = Edit(_ENDING, "if pod.counted_by != facts.kubelet:", "if False:")
_EVIDENCE_OF_ANOTHER = Edit(_BOOK_PODS, "if record.counted_by != view.kubelet:", "if False:")

GUARDS = (
    Guard(
        name="mode",
        why="nothing is ended unless the operator allowed it",
        edits=(Edit(_ENDING, "if not terminate:", "if False:"),),
        tests=(f"{_SIGNALS}::test_where_nothing_may_be_ended_nothing_is",),
    ),
    Guard(
        name="complete-scan",
        why="a scan that could not see everything proves nothing against a process",
        edits=(Edit(_ENDING, "if not scan_complete:", "if False:"),),
        tests=(f"{_SIGNALS}::test_a_scan_that_could_not_see_everything_proves_nobody_guilty",),
    ),
    Guard(
        name="self",
        why="the daemon and pid 1 are never signalled",
        edits=(Edit(_ENDING, "if facts.process.pid in {1, facts.own_pid}:", "if False:"),),
        tests=(f"{_SIGNALS}::test_the_daemon_never_signals_itself",),
    ),
    Guard(
        name="kubelet",
        why="kubelet is never signalled, under whatever name it runs",
        edits=(Edit(_ENDING, "facts.process.pid == facts.kubelet.pid:", "False:"),),
        tests=(f"{_SIGNALS}::test_kubelet_is_never_signalled",),
    ),
    Guard(
        name="runtime",
        why="the container runtime is never signalled, not even inside the pod's cgroup",
        edits=(Edit(_ENDING, "if facts.command in RUNTIMES | SHIMS:", "if False:"),),
        tests=(f"{_SIGNALS}::test_the_container_runtime_in_the_pods_cgroup_is_never_signalled",),
    ),
    Guard(
        name="whole-runtime",
        why="a cgroup is not ended as one with the container runtime in it",
        edits=(
            Edit(
                _ENDS,
                "whole=bool(members) and len(agreed) == len(members),",
                "whole=bool(members),",
            ),
            Edit(_ENDING, "member.is_shim or member.command in RUNTIMES or member", "member"),
        ),
        tests=(f"{_SIGNALS}::test_the_container_runtime_in_the_pods_cgroup_is_never_signalled",),
    ),
    Guard(
        name="shim-inside",
        why="conmon (CRI-O) and Kata's shim may be in the pod's cgroup: then it is the runtime's",
        edits=(
            Edit(
                _ENDING,
                'return self.command == "pause" or self.is_shim or of_another',
                "return of_another",
            ),
            Edit(_ENDING, "if facts.command in RUNTIMES | SHIMS:", "if False:"),
            Edit(_ENDING, "member.is_shim or member.command in RUNTIMES or member", "member"),
        ),
        tests=(f"{_SIGNALS}::test_a_conmon_or_shim_inside_the_pods_cgroup_spares_all_of_it",),
    ),
    Guard(
        name="living-shim",
        why="a force-deleted pod lives on through its grace, and kubelet has long forgotten it",
        edits=(Edit(_ENDING, "self.is_shim or of_another", "self.is_shim"), _STILL_UNDER_A_SHIM),
        tests=(
            f"{_SIGNALS}::test_a_forced_deletion_under_a_living_shim_lets_the_pod_save_its_work",
        ),
    ),
    Guard(
        name="living-parent",
        why="a shim can have any name: a parent process outside the pod spares the pod",
        edits=(
            Edit(
                _ENDING,
                "of_another = self.sandbox is None and not self.is_orphan",
                "of_another = self.parent is not None and self.parent.command in SHIMS",
            ),
            _STILL_UNDER_A_SHIM,
        ),
        tests=(
            f"{_SIGNALS}::test_a_parent_that_lives_outside_the_pod_spares_it_whatever_it_is_called",
        ),
    ),
    Guard(
        name="unread-parent",
        why="a parent that cannot be read may be a living shim",
        edits=(
            Edit(
                _ENDING,
                "return self.parent is not None and self.parent.is_init",
                "return self.parent is None or self.parent.is_init",
            ),
        ),
        tests=(f"{_SIGNALS}::test_a_parent_that_cannot_be_read_spares_the_pod",),
    ),
    Guard(
        name="young-parent",
        why="the pid of a parent that ended can belong to another process now",
        edits=(Edit(_PROCFS, " or parent.process.start_ticks > child.process.start_ticks", ""),),
        tests=(
            f"{_SIGNALS}::test_a_parent_that_is_younger_than_its_child_is_taken_for_another_process",
        ),
    ),
    Guard(
        name="shim-inside-by-what-it-does",
        why="a shim inside the pod's cgroup can have any name as well, and init for its parent",
        edits=(Edit(_ENDING, "or (self.contains and self.sandbox is None)", ""),),
        tests=(f"{_SIGNALS}::test_a_shim_of_any_name_inside_the_pods_cgroup_spares_all_of_it",),
    ),
    Guard(
        name="machine",
        why="no parent process shows what runs in a virtual machine",
        edits=(
            Edit(
                _PROCFS,
                "return Sandbox.MACHINE if self._procfs.runs_a_machine(pid) else None",
                "return None",
            ),
        ),
        tests=(
            f"{_SIGNALS}::test_a_machine_is_spared_under_any_name_for_only_its_runtime_knows_what_runs_in_it",
        ),
    ),
    Guard(
        name="machine-many-files",
        why="nor what a monitor that has many files open runs",
        edits=(
            Edit(_PROCFS, "return len(names) > _FEW and self._maps_a_cpu(pid)", "return False"),
        ),
        tests=(f"{_MACHINES}::test_a_processor_anywhere_among_the_mappings_is_one",),
    ),
    Guard(
        name="machine-unread",
        why="what cannot be asked in time may be the monitor of a virtual machine",
        edits=(Edit(_PODS, "return Sandbox.MACHINE  # it may run one", "return None  # it"),),
        tests=(f"{_MEMBERS}::test_what_cannot_be_asked_in_time_may_be_a_machine",),
    ),
    Guard(
        name="pause",
        why="while its pause runs, the runtime still has the pod",
        edits=(Edit(_ENDING, 'self.command == "pause" or ', ""),),
        tests=(f"{_SIGNALS}::test_while_its_pause_runs_nothing_of_a_pod_is_ended",),
    ),
    Guard(
        name="sandbox-at-work",
        why="containers in a gVisor sandbox are no processes of the node: only the runtime tells",
        edits=(Edit(_ENDING, "if runtime is not None and runtime.containers:", "if False:"),),
        tests=(
            f"{_SANDBOXES}::test_a_sandbox_that_lost_its_shim_is_spared_where_the_runtime_has_a_container_in_it",
        ),
    ),
    Guard(
        name="sandbox-grace",
        why="a sandbox is ended only when nothing but pause ran in it for long enough",
        edits=(
            Edit(
                _ENDING,
                "facts.only_pause_at is None or facts.now - facts.only_pause_at < facts.sandbox_grace",
                "False",
            ),
        ),
        tests=(f"{_SANDBOXES}::test_a_sandbox_that_is_not_idle_for_long_enough_is_spared",),
    ),
    Guard(
        name="sandbox-unreadable",
        why="where the runtime's state cannot be read, a sandbox is reported and not ended",
        edits=(
            Edit(_ENDING, "if state is None or not state.only_pause:", "if state is None:"),
            Edit(
                _ENDING,
                "facts.only_pause_at is None or facts.now - facts.only_pause_at < facts.sandbox_grace",
                "False",
            ),
        ),
        tests=(
            f"{_SANDBOXES}::test_a_leak_whose_runtimes_files_cannot_be_read_is_named_everywhere_and_spared",
        ),
    ),
    Guard(
        name="inode",
        why="a static pod comes back with the same UID: its new cgroup is not the old one",
        edits=(Edit(_ENDING, "or facts.pod.inode != facts.inode:", "or False:"),),
        tests=(
            f"{_SIGNALS}::test_a_pod_made_anew_with_the_same_uid_is_not_the_one_that_ended",
            f"{_SIGNALS}::test_a_cgroup_replaced_between_scan_and_signal_is_another_one",
        ),
    ),
    Guard(
        name="kill-inode",
        why="cgroup.kill is written into the very cgroup that was judged",
        edits=(Edit(_CGROUPS, "if os.fstat(folder).st_ino != inode:", "if False:"),),
        tests=(f"{_SIGNALS}::test_a_cgroup_replaced_right_before_it_is_killed_is_another_one",),
    ),
    Guard(
        name="pod",
        why="only what is in the cgroup of the pod that had the device is signalled",
        edits=(
            Edit(
                _ENDS,
                "        held = {each.process for each in order.opened}\n",
                "        members = (*members, *(x for x in order.opened if x not in members))\n"
                "        held = {each.process for each in order.opened}\n",
            ),
        ),
        tests=(
            f"{_SIGNALS}::test_one_that_moved_to_another_cgroup_since_the_scan_is_not_signalled",
        ),
    ),
    Guard(
        name="start-time",
        why="a pid counts only with its start time: it may be another process now",
        edits=(
            Edit(
                _PIDFD,
                "if self._procfs.start_ticks(process.pid) != process.start_ticks:",
                "if False:",
            ),
        ),
        tests=(f"{_SIGNALS}::test_a_pid_that_was_given_to_another_process_is_not_signalled",),
    ),
    Guard(
        name="same-process",
        why="what was opened is asked for again by pid and start time",
        edits=(
            Edit(
                _PIDFD,
                "if self._procfs.start_ticks(process.pid) != process.start_ticks:",
                "if False:",
            ),
            Edit(
                _ENDS,
                "        held = {each.process for each in order.opened}\n",
                "        members = order.opened\n"
                "        held = {each.process for each in order.opened}\n",
            ),
        ),
        tests=(f"{_SIGNALS}::test_a_pid_reused_between_scan_and_signal_is_another_process",),
    ),
    Guard(
        name="fence",
        why="a lock that changed meanwhile may belong to another pod now",
        edits=(
            Edit(
                _EVIDENCE,
                "if book.locks.get(warrant.lock.device) != warrant.lock:",
                "if False:",
            ),
        ),
        tests=(f"{_SIGNALS}::test_a_lock_that_moved_meanwhile_is_not_acted_upon",),
    ),
    Guard(
        name="counted-again",
        why="a manifest that is put back has its UID and cgroup again: kubelet is asked last",
        edits=(Edit(_EVIDENCE, "return not view.readable or view.counts(pod)", "return False"),),
        tests=(
            f"{_SIGNALS}::test_a_manifest_put_back_between_scan_and_signal_saves_its_pod",
            f"{_SIGNALS}::test_a_manifest_put_back_after_kubelets_answer_saves_its_pod",
        ),
    ),
    Guard(
        name="prepared-claim",
        why="the pods of a claim that kubelet has not unprepared live: no word releases its devices",
        edits=(
            Edit(
                _BY_HAND,
                "if lives and not forgotten:",
                "if False:",
            ),
        ),
        tests=(f"{_CLAIMS}::test_what_a_claim_has_is_not_released_before_kubelet_unprepares_it",),
    ),
    Guard(
        name="answer",
        why="without an answer to a question asked now, nothing is known",
        edits=(
            Edit(
                _EVIDENCE,
                "return await self._reader.answered_after(self._clock.uptime(), self.question_timeout)",
                "await self._reader.answered_after(0.0, 0.0)\n        return self._reader.view.value",
            ),
        ),
        tests=(f"{_SIGNALS}::test_without_an_answer_of_kubelets_nobody_is_signalled",),
    ),
    Guard(
        name="fresh",
        why="kubelet's answer from more than a second ago may be outdated",
        edits=(Edit(_ENDING, "if age >= limit:", "if False:"),),
        tests=(f"{_SIGNALS}::test_nobody_is_signalled_on_evidence_that_is_more_than_a_second_old",),
    ),
    Guard(
        name="same-kubelet",
        why="a kubelet that restarts without its API server lists nothing, and the pods live",
        edits=(_ANOTHER_KUBELET,),
        tests=(f"{_SIGNALS}::test_what_another_kubelet_had_in_its_books_proves_nothing",),
    ),
    Guard(
        name="same-kubelet-to-the-end",
        why="nor does the evidence of a pod survive a restart of kubelet, or a lost checkpoint",
        edits=(_ANOTHER_KUBELET, _EVIDENCE_OF_ANOTHER, _LIVING_PARENT),
        tests=(
            f"{_FORGETS}::test_a_kubelet_that_lost_its_checkpoint_costs_no_living_pod_a_process",
        ),
    ),
    Guard(
        name="after-a-list",
        why="a checkpoint from before our List call does not show that a pod has ended",
        edits=(
            Edit(
                _BOOK_PODS,
                "asked = view.answered and view.kubelet is not None",
                "asked = view.kubelet is not None",
            ),
            _LIVING_PARENT,
        ),
        tests=(
            f"{_FORGETS}::test_a_checkpoint_without_a_pod_that_kubelet_wrote_for_no_list_ends_nothing",
        ),
    ),
    Guard(
        name="no-devices",
        why="a pod that is in kubelet's checkpoint without devices still exists",
        edits=(
            Edit(
                _KUBELET,
                "(entry.pod, entry) for entry in self.entries)",
                "(entry.pod, entry) for entry in self.entries if entry.devices)",
            ),
        ),
        tests=(
            f"{_FORGETS}::test_a_living_pod_that_stands_in_the_books_without_devices_keeps_them",
        ),
    ),
    Guard(
        name="let-go",
        why="kubelet itself has to say that it dropped the pod",
        edits=(
            Edit(_ENDING, "if pod.let_go_at is None or facts.let_go_at is None:", "if False:"),
            Edit(_ENDING, "if facts.now - facts.let_go_at < facts.let_go_grace:", "if False:"),
            Edit(_ENDING, "if let_go is None or gone is None:", "if False:"),
            Edit(_ENDING, "since = max(gone, let_go + facts.let_go_grace)", "since = gone"),
        ),
        tests=(f"{_SIGNALS}::test_a_pod_that_kubelet_has_not_let_go_of_is_spared",),
    ),
    Guard(
        name="graces",
        why="a pod that kubelet forgot may still be ending by itself",
        edits=(
            Edit(_ENDING, "if facts.now - facts.let_go_at < facts.let_go_grace:", "if False:"),
            Edit(_ENDING, "if facts.now - since < facts.orphan_grace:", "if False:"),
        ),
        tests=(f"{_SIGNALS}::test_nobody_is_ended_within_a_grace",),
    ),
    Guard(
        name="clock-set-forward",
        why="a grace must not be over because somebody set the clock",
        edits=(
            Edit(
                _EVIDENCE,
                "now=self._clock.monotonic(),\n            own_pid",
                "now=self._clock.wall(),\n            own_pid",
            ),
        ),
        tests=(
            f"{_SIGNALS}::test_a_clock_that_is_set_forward_ends_no_grace",
            f"{_SIGNALS}::test_a_daemon_that_starts_after_the_clock_was_set_forward_waits_all_the_same",
        ),
    ),
    Guard(
        name="young",
        why="what is younger than the pod's end may be a new start, of which more is coming",
        edits=(Edit(_ENDING, " or member.started_at > let_go_at", ""),),
        tests=(
            f"{_SIGNALS}::test_one_that_enters_a_cgroup_with_young_ones_as_it_is_ended_is_spared",
        ),
    ),
    Guard(
        name="frozen",
        why="nothing forks away from the end of its pod",
        edits=(
            Edit(_PODS, "        self._cgroups.freeze(path, inode, frozen=True)\n", ""),
            Edit(
                _PODS,
                "if not self._cgroups.await_frozen(path, patience=_FREEZE_TIME):",
                "if False:",
            ),
        ),
        tests=(f"{_REAL_PODS}::test_nobody_forks_away_from_the_end_of_a_pod",),
    ),
    Guard(
        name="exited-leader",
        why="cgroup.kill does not end a process whose leader has exited: it is frozen and signalled",
        edits=(Edit(_PODS, " or any(map(self._leader_has_exited, listed))", ""),),
        tests=(f"{_REAL_PODS}::test_a_process_whose_leader_has_exited_is_ended_with_its_pod",),
    ),
    Guard(
        name="frozen-waited",
        why="a cgroup is frozen a moment after the kernel is told: before, what is listed can fork away",
        edits=(
            Edit(
                _PODS,
                "if not self._cgroups.await_frozen(path, patience=_FREEZE_TIME):",
                "if False:",
            ),
        ),
        tests=(f"{_REAL_PODS}::test_nobody_forks_away_from_the_end_of_a_pod",),
    ),
    Guard(
        name="frozen-asked-again",
        why="on kernels without cgroup.kill, who came before the freeze is judged as well",
        edits=(Edit(_PODS, "if not may_end(members):", "if False:"),),
        tests=(f"{_SIGNALS}::test_a_container_that_shows_once_its_pod_is_frozen_saves_it",),
    ),
    Guard(
        name="judged-last",
        why="a cgroup is judged where it is killed: what was listed before has waited for its turn",
        edits=(
            Edit(_PODS, "if not may_end(listed):", "if False:"),
            Edit(_PODS, "if not as_one(listed) or any", "if any"),
        ),
        tests=(
            f"{_SIGNALS}::test_a_container_that_shows_right_before_its_cgroup_is_killed_saves_it",
        ),
    ),
    Guard(
        name="asked-after-refusal",
        why="the attempt to kill a whole cgroup takes time: before single pids all is checked again",
        edits=(
            Edit(
                _ENDS,
                "            agreed = await self._agreed(order)  # trying took its time\n",
                "",
            ),
        ),
        tests=(
            f"{_SIGNALS}::test_a_manifest_put_back_while_a_kernel_refuses_cgroup_kill_saves_its_pod",
        ),
    ),
    Guard(
        name="leak-judged-last",
        why="a start that goes on saves the sandbox that held it up, down to the last moment",
        edits=(
            Edit(_ENDS, "judge.why_void(now) is None\n                and bool", "bool"),
            Edit(
                _ENDS,
                "            agreed = await self._agreed(order)  # trying took its time\n",
                "",
            ),
        ),
        tests=(
            f"{_LAST}::test_a_start_that_goes_on_while_a_kernel_refuses_cgroup_kill_saves_its_sandbox",
        ),
    ),
    Guard(
        name="leak-whole",
        why="a sandbox that changes while it is asked about may be at work: it is ended whole or not",
        edits=(Edit(_ENDS, 'void = void or "its processes change"', "pass"),),
        tests=(f"{_LAST}::test_a_process_that_comes_while_all_is_asked_again_saves_the_sandbox",),
    ),
    Guard(
        name="whole-void",
        why="where a cgroup is killed it is asked once more whether kubelet has the pod, and how long ago",
        edits=(Edit(_ENDS, "judge.why_void(now) is None\n                and bool", "bool"),),
        tests=(
            f"{_SIGNALS}::test_a_manifest_put_back_right_before_its_cgroup_is_killed_saves_its_pod",
            f"{_SIGNALS}::test_what_kubelet_said_may_grow_old_before_a_cgroup_is_killed",
        ),
    ),
    Guard(
        name="claimed-again",
        why="kubelet's checkpoint has nothing of claims: a pod that has one lives",
        edits=(Edit(_EVIDENCE, "(counted or has_claim(book, warrant.pod))", "counted"),),
        tests=(f"{_SIGNALS}::test_a_pod_that_has_a_claim_lives_whatever_the_checkpoint_says",),
    ),
    Guard(
        name="unlisted",
        why="where not all processes of a pod can be listed, one of them may be its shim",
        edits=(Edit(_PODS, "            if cgroup.unlisted:\n", "            if False:\n"),),
        tests=(f"{_MEMBERS}::test_of_a_pod_that_cannot_all_be_listed_nobody_is_judged",),
    ),
    Guard(
        name="word-expires",
        why="a person's word is for what was there when it was given",
        edits=(
            Edit(
                _RECLAIMER,
                "return grounds if self._clock.monotonic() < until else Grounds.OVER",
                "return grounds",
            ),
        ),
        tests=(
            f"{_WORD}::test_a_word_is_good_for_as_long_as_an_attempt_takes_and_for_its_pod_alone",
        ),
    ),
    Guard(
        name="word-once",
        why="and for one attempt: what comes after a quarantine was not meant",
        edits=(
            Edit(
                _RECLAIMER, "            self._by_hand.pop(lock.pod, None)\n", "            pass\n"
            ),
        ),
        tests=(f"{_SIGNALS}::test_a_persons_word_ends_with_the_attempt_that_it_was_given_for",),
    ),
    Guard(
        name="uncounted-anew",
        why="a pod that kubelet counts again has not been without it",
        edits=(
            Edit(
                _EVIDENCE,
                "        if counted:\n            self._since.pop(pod, None)\n        elif",
                "        if",
            ),
        ),
        tests=(
            "tests/unit/test_uncounted.py::test_a_pod_that_is_counted_again_has_not_been_without_kubelet",
        ),
    ),
    Guard(
        name="leak-complete",
        why="somebody who was not seen may have the device as well as the sandbox",
        edits=(
            Edit(
                _LEAKS,
                'return holders, next((gap for each in found.values() if (gap := each.gap())), "")',
                'return holders, ""',
            ),
        ),
        tests=(f"{_LAST}::test_a_look_that_could_not_see_everybody_saves_the_sandbox",),
    ),
    Guard(
        name="leak-all",
        why="a sandbox that works with any other device of its pod is not idle",
        edits=(
            Edit(
                _LEAKS,
                "for each in locks.values() if each.pod == pod",
                "for each in list(locks.values())[:1] if each.pod == pod",
            ),
        ),
        tests=(f"{_LAST}::test_another_device_of_the_pod_that_is_at_work_saves_the_sandbox",),
    ),
    Guard(
        name="reset-own",
        why="a bus or slot reset may reach functions of others",
        edits=(Edit(_RESET, "if reset_method(look.methods) is None:", "if False:"),),
        tests=(
            f"{_RESETS}::test_a_function_that_only_a_bus_reset_would_reset_is_left_alone_and_becomes_free",
        ),
    ),
    Guard(
        name="reset-forced",
        why="a device that its pod released by itself is not reset",
        edits=(
            Edit(
                _RESET,
                "if state not in FORCED or trial is TrialState.PASSED:",
                "if trial is TrialState.PASSED:",
            ),
        ),
        tests=(f"{_RESETS}::test_what_was_let_go_unforced_is_neither_reset_nor_checked",),
    ),
    Guard(
        name="reset-policy",
        why="nothing is reset where the operator did not ask for it",
        edits=(
            Edit(_RESETTER, "if self.policy is not ResetPolicy.NEVER:", "if True:"),
            Edit(_RESET, "if policy is ResetPolicy.NEVER:", "if False:"),
        ),
        tests=(f"{_RESETS}::test_by_default_nothing_is_reset_but_what_was_forced_is_checked",),
    ),
    Guard(
        name="reset-at-work",
        why="nobody enters to hardware that is being reset, nor its own pod that came back",
        edits=(
            Edit(_ENTRY, "if doing := self._resetter.at_work(rights.keys):", 'if doing := "":'),
        ),
        tests=(
            f"{_RESETS}::test_a_pod_that_comes_back_while_its_device_is_being_reset_waits_at_the_gate",
            f"{_CLAIM_DOOR}::test_nobody_passes_before_the_node_was_looked_at_or_while_it_is_reset",
        ),
    ),
    Guard(
        name="reset-answers",
        why="a device that does not answer after its holder was ended is given to nobody",
        edits=(Edit(_RESET, "if look.vendor == NO_ANSWER:", "if False:"),),
        tests=(
            f"{_RESETS}::test_a_device_that_does_not_answer_is_quarantined_and_returns_when_it_does",
        ),
    ),
    Guard(
        name="res-fence",
        why="what a check found before another pod had the device says nothing about that pod's",
        edits=(
            Edit(_RESETTER, "if it.findings is not None and it.fence != lock.fence:", "if False:"),
        ),
        tests=(
            f"{_RESET_TREES}::test_what_a_trial_found_is_no_word_about_another_part_of_a_locks_life",
        ),
    ),
    Guard(
        name="hand-claim",
        why="a pod that has another claim lives, though kubelet's checkpoint does not have it",
        edits=(
            Edit(
                _HAND, "view.counts(lock.pod) or has_claim(book, lock.pod)", "view.counts(lock.pod)"
            ),
        ),
        tests=(f"{_CLAIMS}::test_a_pod_that_has_another_claim_lives_and_nothing_of_it_is_ended",),
    ),
    Guard(
        name="use-tried",
        why="a free function that was left enabled is not called a stranger's where its group can be opened",
        edits=(
            Edit(
                _USERS,
                "            facts = await self._use.tried(device, facts)\n",
                "            pass\n",
            ),
        ),
        tests=(f"{_LOOKS}::test_a_free_device_that_was_left_enabled_is_no_strangers",),
    ),
    Guard(
        name="hand-complete",
        why="nor does a person's word end anything where not everybody could be seen",
        edits=(Edit(_HAND, "gap=seen.kernel.gap(),", 'gap="",'),),
        tests=(f"{_RELEASES}::test_where_not_everybody_can_be_seen_no_word_ends_a_pod_that_lives",),
    ),
    Guard(
        name="gpu-former-pod",
        why="whatever a program is called, the pod that was granted the GPU has to release it",
        edits=(
            Edit(_GPU_FREE, "if holder.pod is not None and holder.pod in to.pods:", "if False:"),
        ),
        tests=(
            f"{_GPU_RULE}::test_who_is_in_the_way_on_a_gpu_is_told_by_what_they_do_and_whose_they_are",
        ),
    ),
    Guard(
        name="gpu-computes",
        why="what a program in a pod is called excuses nothing that computes",
        edits=(Edit(_GPU_FREE, "may_watch = holder.pod is None or not uses", "may_watch = True"),),
        tests=(
            f"{_GPU_RULE}::test_who_is_in_the_way_on_a_gpu_is_told_by_what_they_do_and_whose_they_are",
        ),
    ),
    Guard(
        name="gpu-replicas",
        why="nobody has a replica of a GPU while another pod has the GPU, nor the other way round",
        edits=(
            Edit(
                _BOOK, "for side in sorted(rivals(keys, self.places)):", "for side in sorted(()):"
            ),
        ),
        tests=(f"{_REPLICAS}::test_a_start_on_a_replica_is_told_who_has_the_card",),
    ),
    Guard(
        name="gpu-shares-of-slices",
        why="nobody has a replica of a slice while another pod has the slice, nor the other way round",
        edits=(
            Edit(
                _REPLICA_RULE,
                "yield whole.removeprefix(_PART), shared",
                "yield whole.removeprefix(_PART), False",
            ),
        ),
        tests=(
            f"{_SLICES}::test_a_share_of_a_slice_excludes_all_of_its_gpu_but_other_shares_and_other_slices",
        ),
    ),
    Guard(
        name="gpu-slice-occupied",
        why="a slice in whose place a pod has one of an earlier layout is shared by nobody",
        edits=(
            Edit(
                "daemon/holdfast/model/nvidia/sharing.py",
                "faults = (*device.faults, _OCCUPIED) if occupied else device.faults",
                "faults = device.faults",
            ),
        ),
        tests=(
            f"{_SLICES}::test_a_new_slice_is_shared_by_nobody_while_a_pod_has_what_was_in_its_place",
        ),
    ),
    Guard(
        name="gpu-replicas-in-line",
        why="no later pod gets a replica of a GPU before one that waits for the whole of it",
        edits=(
            Edit(_QUEUE, "if all(same_holder(each, allocation) for each in rival):", "if True:"),
        ),
        tests=(
            f"{_REPLICAS}::test_the_card_waits_for_the_last_replica_and_no_later_pod_overtakes_it",
        ),
    ),
    Guard(
        name="gpu-on-vfio",
        why="nobody has the PCI function of a GPU by VFIO while another pod has the GPU, a slice or a "
        "replica of it, nor the other way round",
        edits=(Edit(_REPLICA_RULE, "        elif key in functions:", "        elif False:"),),
        tests=(
            f"{_PLACES}::test_who_asks_for_the_same_hardware_by_the_other_driver_waits_until_it_is_free",
        ),
    ),
    Guard(
        name="gpu-on-vfio-remembered",
        why="a GPU that its driver has lost is still known to be its PCI function",
        edits=(Edit(_PLACES_RULE, "draft.keep(CARDS, stay | new)", "draft.keep(CARDS, new)"),),
        tests=(f"{_PLACES}::test_a_card_that_no_driver_tells_of_any_more_stays_where_it_was",),
    ),
    Guard(
        name="gpu-on-vfio-first",
        why="no GPU is offered before the ledger has which PCI function it is",
        edits=(Edit(_PARTS, "partial(place, found=found.cards)", "partial(place, found={})"),),
        tests=(f"{_ON_VFIO}::test_nobody_hears_of_a_card_before_the_book_has_where_it_is",),
    ),
    Guard(
        name="gpu-on-vfio-free",
        why="a GPU that its driver has lost is free by VFIO's word alone where all of it is on VFIO",
        edits=(
            Edit(
                _PLACES_RULE,
                "return functions if vfio.issuperset(functions) else ()",
                "return functions",
            ),
        ),
        tests=(f"{_PLACES}::test_nobody_has_a_card_by_its_driver_when_its_function_is_on_vfio",),
    ),
    Guard(
        name="gpu-neighbours",
        why="on a shared GPU nobody is a neighbour who has not started on another replica of it",
        edits=(Edit(_GPU_FREE, "if holder.pod in to.neighbours:", "if holder.pod is not None:"),),
        tests=(f"{_REPLICAS}::test_who_is_in_the_way_on_a_replica",),
    ),
    Guard(
        name="gpu-neighbours-memory",
        why="memory that neighbours use is not taken for what a GPU has in use when it is idle",
        edits=(
            Edit(
                _GPU_FREE,
                "found.holders or sight.ended or sight.shared:",
                "found.holders or sight.ended:",
            ),
        ),
        tests=(f"{_REPLICAS}::test_who_is_in_the_way_on_a_replica",),
    ),
    Guard(
        name="gpu-nvml-fails",
        why="a failed NVML query never counts as an answer without processes",
        edits=(
            Edit(
                _GPU_FREE,
                "    if sight.problem:\n        return unknown(sight.problem, final=True)\n",
                "",
            ),
        ),
        tests=(
            f"{_GPU_RULE}::test_a_lock_on_a_gpu_is_not_freed_while_nvml_fails_or_its_memory_is_not_back",
        ),
    ),
    Guard(
        name="gpu-nvml-fails-at-gate",
        why="no container starts on a GPU of which NVML cannot tell who uses it",
        edits=(Edit(_GATE_RULE, "if verdict.final:", "if False:"),),
        tests=(
            f"{_GPU_NODE}::test_no_container_starts_on_a_gpu_of_which_nvml_cannot_tell_who_uses_it",
        ),
    ),
    Guard(
        name="gpu-nvml-fails-after-pod",
        why="nor does the lock of a pod that has ended become free",
        edits=(
            Edit(_FREE, "or kernel.final or facts", "or facts"),
            Edit(_FREE, "if kernel.final or kernel.freedom", "if kernel.freedom"),
        ),
        tests=(
            f"{_GPU_NODE}::test_a_gpu_whose_pod_is_over_becomes_free_only_when_nvml_and_its_memory_say_so",
        ),
    ),
    Guard(
        name="gpu-torn-down",
        why="what a killed process had is still being taken down while NVML names it",
        edits=(Edit(_GPU_FREE, "if sight.ended:", "if False:"),),
        tests=(
            f"{_GPU_NODE}::test_a_gpu_whose_pod_is_over_becomes_free_only_when_nvml_and_its_memory_say_so",
        ),
    ),
    Guard(
        name="gpu-memory",
        why="memory that is not given back is somebody's, although no process is left",
        edits=(Edit(_GPU_FREE, "if sight.above:", "if False:"),),
        tests=(
            f"{_GPU_NODE}::test_no_container_starts_before_what_a_killed_process_had_is_taken_down",
        ),
    ),
    Guard(
        name="gpu-idle-level",
        why="what a GPU has in use while a pod may have it is not its idle memory",
        edits=(Edit(_GPU_IDLE, " if look.unowned else level", ""),),
        tests=(
            f"{_GPU_RULE}::test_idle_memory_is_the_least_that_was_seen_while_nobody_had_the_gpu_and_small_rises",
        ),
    ),
    Guard(
        name="gpu-leak",
        why="memory that leaked does not become idle memory, however long it stands",
        edits=(Edit(_GPU_IDLE, "and memory <= level.least + MOST_RISE * rules.slack", ""),),
        tests=(
            f"{_GPU_RULE}::test_idle_memory_is_the_least_that_was_seen_while_nobody_had_the_gpu_and_small_rises",
            f"{_GPU_RULE}::test_many_small_leaks_end_in_one_that_is_told",
        ),
    ),
    Guard(
        name="gpu-leak-restart",
        why="nor does a restart of the daemon make it free",
        edits=(Edit(_GPU_IDLE, "if kept is None or kept.load != load:", "if True:"),),
        tests=(
            "tests/contract/test_gpu_use.py::test_a_leak_is_still_one_to_the_next_daemon_until_the_driver_was_loaded_anew",
        ),
    ),
    Guard(
        name="gpu-works",
        why="a GPU that is busy without a known process is not granted without a note",
        edits=(
            Edit(_GPU_FREE, "if sight.busy and not sight.restless:", "if False:"),
            Edit(_GPU_FREE, "    if sight.busy:\n", "    if False:\n"),
        ),
        tests=(
            "tests/contract/test_gpu_use.py::test_a_gpu_that_works_for_nobody_is_waited_for_and_then_handed_over_as_unverified",
        ),
    ),
    Guard(
        name="gpu-bystanders",
        why="memory without a process makes no GPU foreign",
        edits=(
            Edit(
                _FREE,
                "return facts.kind is not DeviceKind.DRIVER or bool(verdict.holders)",
                "return True",
            ),
        ),
        tests=(f"{_GPU_RULE}::test_a_gpu_is_called_foreign_only_for_a_process_that_can_be_named",),
    ),
    Guard(
        name="gpu-unexplained",
        why="a GPU without a CDI spec is granted to no pod by CDI name",
        edits=(
            Edit(
                _GPU_FOUND,
                "if not channel or names.devices.get(",
                "if False and names.devices.get(",
            ),
        ),
        tests=(
            f"{_GPU_NAMES}::test_a_gpu_that_no_spec_can_explain_is_given_to_nobody_and_chips_go_on",
            f"{_GPU_NAMES}::test_a_pod_with_a_name_waits_at_the_gate_until_a_spec_explains_it",
        ),
    ),
    Guard(
        name="gpu-promise-unexplained",
        why="nor does a container start that was promised such a name before",
        edits=(Edit(_GPU_PROMISE, "    if unknown:", "    if False:"),),
        tests=(
            f"{_GPU_NAMES}::test_such_a_pod_waits_where_the_spec_that_it_counts_on_cannot_be_written",
        ),
    ),
    Guard(
        name="gpu-promise-another",
        why="a name that now leads to another GPU starts no container",
        edits=(Edit(_GPU_PROMISE, "    if led == own:", "    if True:"),),
        tests=(f"{_GPU_NAMES}::test_an_index_that_is_anothers_since_the_boot_starts_nothing",),
    ),
    Guard(
        name="populated",
        why="a pod lives as long as the kernel says that its cgroup is populated, whoever could be listed",
        edits=(Edit(_FREE, "if pod.populated and not kernel", "if pod.processes and not kernel"),),
        tests=(
            f"{_FREE_RULE}::test_a_lock_becomes_free_when_its_pod_is_gone_and_the_kernel_agrees",
        ),
    ),
    Guard(
        name="populated-unknown",
        why="where the kernel's word cannot be read, a process of the pod may live",
        edits=(Edit(_FREE, "if pod.populated is None:", "if False:"),),
        tests=(
            f"{_FREE_RULE}::test_a_pod_whose_cgroup_cannot_be_read_may_live_and_keeps_its_device",
        ),
    ),
    Guard(
        name="populated-read",
        why="a list of pids is no proof: a process forks and ends faster than it is listed",
        edits=(
            Edit(
                _CGROUPS,
                "populated, problem = _populated(folder)",
                'populated, problem = bool(pids), ""',
            ),
        ),
        tests=(
            f"{_CGROUP_TREES}::test_the_kernel_says_whether_a_cgroup_is_populated",
            f"{_POD_SIGHTINGS}::test_a_pod_is_over_by_the_kernels_word_and_not_because_nobody_could_be_listed",
        ),
    ),
    Guard(
        name="populated-v1",
        why="cgroup v1 has only lists: one that is empty once proves nothing",
        edits=(Edit(_CGROUPS, "if not pids and not unlisted:", "if False:"),),
        tests=(f"{_CGROUP_TREES}::test_of_version_1_two_lists_have_to_be_empty",),
    ),
    Guard(
        name="populated-v1-hidden",
        why="cgroup v1 lists nobody from outside the reader's own pid namespace",
        edits=(
            Edit(
                _CGROUPS,
                "if not pids and namespace not in {None, INIT_PID_NAMESPACE}:",
                "if False:",
            ),
        ),
        tests=(
            f"{_CGROUP_TREES}::test_without_the_kernels_word_as_with_version_1_lists_have_to_do",
        ),
    ),
    Guard(
        name="late-look",
        why="what a look shows that takes longer than a start waits counts for the next try",
        edits=(Edit(_USE, "self._note_late(found, locks, turn.awaited)", "pass"),),
        tests=(
            f"{_GATE}::test_where_a_look_takes_longer_than_a_start_waits_the_second_try_passes",
            f"{_CLAIM_DOOR}::test_where_a_look_takes_longer_than_a_prepare_may_the_second_one_succeeds",
        ),
    ),
    Guard(
        name="late-lock",
        why="but not one from before the lock was this pod's: another's could start since",
        edits=(
            Edit(
                _USE,
                "return late if self._book.value.locks.get(device) == late.lock else None",
                "return late",
            ),
        ),
        tests=(
            f"{_GATE}::test_a_look_from_before_the_lock_was_this_pods_does_not_count",
            f"{_CLAIM_DOOR}::test_a_look_for_the_claim_before_does_not_count",
        ),
    ),
    Guard(
        name="late-enable",
        why="nor one after which the device was enabled",
        edits=(
            Edit(
                _USE,
                "same = proven or enabled[each.name] == before.facts.enabled",
                "same = True",
            ),
        ),
        tests=(f"{_GATE}::test_a_device_that_was_enabled_since_such_a_look_is_looked_at_anew",),
    ),
    Guard(
        name="late-old",
        why="nor one that ended too long ago, and each for one try",
        edits=(
            Edit(_USE, "self._clock.monotonic() - late.ended >= _COUNTS_FOR", "False"),
            Edit(_USE, "            del self._late[name]\n", "            pass\n"),
        ),
        tests=(
            "tests/contract/test_device_use.py::test_a_look_that_ended_too_late_for_a_start_counts_for_a_minute_and_once",
        ),
    ),
    *GPU_GUARDS,
    *CLAIM_GUARDS,
    *SETTINGS_GUARDS,
    *LOOK_GUARDS,
    *RECLAIM_GUARDS,
    *LIVING_GUARDS,
    *PROCESS_GUARDS,
    *MEMORY_GUARDS,
)
