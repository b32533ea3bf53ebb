"""The guards of what a change of the settings does to devices that pods have."""

from guards.guard import Edit, Guard

_RULES = "daemon/holdfast/model/devicerules.py"
_OFFERS = "daemon/holdfast/model/book/offers.py"
_RELOAD = "daemon/holdfast/app/reload.py"
_SHARING = "daemon/holdfast/model/nvidia/sharing.py"
_RULES_TESTS = "tests/unit/test_device_rules.py"
_STANDING = "daemon/holdfast/model/book/standing.py"
_STANDING_TESTS = "tests/unit/test_standing.py"
_LEAVES = "tests/unit/test_what_leaves.py"
_QUEUES = "tests/integration/test_what_leaves.py"
_REPLICAS = "tests/unit/test_replicas.py"
_ON_A_NODE = "tests/integration/test_device_rules.py"
_RELOADS = "tests/integration/test_reload.py"

SETTINGS_GUARDS = (
    Guard(
        name="rule-keeps",
        why="a pod keeps a device that a rule takes away, under the name by which it was granted",
        edits=(Edit(_RULES, "for each in self._former(device)", "for each in ()"),),
        tests=(
            f"{_RULES_TESTS}::test_a_device_that_a_pod_has_stays_under_its_name_and_is_under_no_other",
            f"{_RULES_TESTS}::test_a_rule_that_is_taken_back_lets_a_pod_keep_the_name_that_it_has",
        ),
    ),
    Guard(
        name="rule-keeps-unread",
        why="also a pod that only kubelet's checkpoint names keeps it",
        edits=(Edit(_OFFERS, "        for entry in entries\n", "        for entry in ()\n"),),
        tests=(f"{_RULES_TESTS}::test_a_pod_that_only_kubelets_checkpoint_names_keeps_its_device",),
    ),
    Guard(
        name="rule-new-name",
        why="no pod gets a device under its new name while another has it under the former",
        edits=(
            Edit(
                _RULES,
                "elif not kept or name.resource in self._had.get(self._card(name), {}):",
                "else:",
            ),
        ),
        tests=(
            f"{_RULES_TESTS}::test_a_device_that_a_pod_has_stays_under_its_name_and_is_under_no_other",
        ),
    ),
    Guard(
        name="rule-leaving",
        why="no further pod gets a device under the name that it is about to lose",
        edits=(
            Edit(
                _STANDING,
                "self.withheld or self.leaving or self.uncommitted:",
                "self.withheld or self.uncommitted:",
            ),
        ),
        tests=(
            f"{_STANDING_TESTS}::test_a_device_that_is_leaving_is_kept_for_the_pod_that_has_it_and_is_for_no_other",
        ),
    ),
    Guard(
        name="rule-leaving-ended",
        why="nor the first pod that is admitted after the end of the one that had it",
        edits=(Edit(_STANDING, "return not (self.leaving and self.emptied)", "return True"),),
        tests=(
            f"{_LEAVES}::test_what_leaves_is_healthy_until_the_last_process_of_its_pod_has_ended",
        ),
    ),
    Guard(
        name="rule-leaving-late",
        why="also of a kubelet that has not read the latest list, or counts a pod no more that runs",
        edits=(
            Edit(
                "daemon/holdfast/allocation/allocator.py",
                "if reason := self._refusal(device):",
                'if reason := "":',
            ),
        ),
        tests=(f"{_QUEUES}::test_a_kubelet_that_reads_an_old_list_is_refused_a_chip_that_leaves",),
    ),
    Guard(
        name="rule-readmitted",
        why="a kubelet that restarts finds a device Healthy whose pod it may admit again",
        edits=(
            Edit(
                "daemon/holdfast/kubelet/plugin.py",
                "        self._parts.emptied.registered()\n",
                "",
            ),
        ),
        tests=(f"{_QUEUES}::test_a_pod_whose_processes_ended_with_kubelet_is_admitted_anew",),
    ),
    Guard(
        name="shared-fewer",
        why="no pod comes to a GPU that as many share as may since their number was lowered",
        edits=(
            Edit(
                _STANDING,
                'crowded="" if by_claims else crowded,',
                'crowded="",',
            ),
        ),
        tests=(
            f"{_LEAVES}::test_no_pod_comes_to_a_card_that_more_share_than_may",
            f"{_LEAVES}::test_no_pod_that_comes_after_a_change_gets_what_is_to_leave",
        ),
    ),
    Guard(
        name="rule-leaving-claims",
        why="nor does a new claim get it",
        edits=(Edit(_STANDING, '        if self.leaving:\n            return "leaving"\n', ""),),
        tests=(
            "tests/unit/test_dra_taints.py::test_a_device_is_withheld_for_its_state_and_its_health",
        ),
    ),
    Guard(
        name="rule-unseen",
        why="what a rule moves is not taken for gone because it was not seen yet",
        edits=(Edit(_RULES, "return unseen | (self._targets | former) - known", "return unseen"),),
        tests=(
            f"{_RULES_TESTS}::test_while_some_hardware_was_not_seen_a_rule_may_be_for_that_and_so_may_its_name",
            f"{_RULES_TESTS}::test_what_a_pod_had_under_a_former_name_may_be_among_what_was_not_seen",
        ),
    ),
    Guard(
        name="rule-kinds",
        why="no container gets devices of one name that need different things to work",
        edits=(
            Edit(
                _RULES,
                "if self._source_of.setdefault(resource, device.source) != device.source:",
                "if False:",
            ),
        ),
        tests=(f"{_RULES_TESTS}::test_hardware_of_two_kinds_is_never_under_one_name",),
    ),
    Guard(
        name="rule-shared",
        why="a GPU that a rule takes out of a shared resource is one pod's",
        edits=(
            Edit(_SHARING, "sharing.replicas == 1 or taken(device):", "sharing.replicas == 1:"),
        ),
        tests=(f"{_REPLICAS}::test_what_a_rule_takes_into_another_resource_is_shared_by_nobody",),
    ),
    Guard(
        name="rule-observe",
        why="of a pod that may have a device which is only observed no process is ended",
        edits=(
            Edit(
                "daemon/holdfast/app/wiring/live.py",
                "return _OBSERVE if _OBSERVE in modes else (modes or {general}).pop()",
                "return general",
            ),
        ),
        tests=(
            f"{_ON_A_NODE}::test_what_holds_an_observed_device_is_not_ended_until_the_rule_is_gone",
        ),
    ),
    Guard(
        name="reload-whole",
        why="a configuration that cannot be used changes nothing, and ends no daemon",
        edits=(
            Edit(_RELOAD, "except SettingsError as error:", "except TimeoutError as error:"),
            Edit(_RELOAD, "except Exception as error:", "except TimeoutError as error:"),
        ),
        tests=(
            f"{_RELOADS}::test_a_file_that_cannot_be_used_changes_nothing_and_is_told",
            f"{_RELOADS}::test_a_file_that_is_gone_changes_nothing_and_is_told",
        ),
    ),
    Guard(
        name="reload-pod",
        why="what only another pod can take up changes nothing, and no part of the file does",
        edits=(Edit(_RELOAD, "if pod := keys.get(TakeUp.POD):", "if pod := ():"),),
        tests=(f"{_RELOADS}::test_a_file_that_cannot_be_used_changes_nothing_and_is_told",),
    ),
    Guard(
        name="reload-hangs",
        why="nothing is stopped for a restart that a hanging call would hold up",
        edits=(Edit(_RELOAD, "if calls := sorted(self._parts.stuck_calls()):", "if calls := ():"),),
        tests=(f"{_RELOADS}::test_while_a_look_at_a_process_hangs_nothing_is_begun_anew",),
    ),
    Guard(
        name="reload-api",
        why="a device is not served to claims and to the device plugin in one run of the daemon",
        edits=(
            Edit(
                "daemon/holdfast/settings/reloading.py",
                'return tuple("devices[].api" if path == "devices" else path for path in paths)',
                "return paths",
            ),
        ),
        tests=(
            "tests/unit/test_reloading.py::test_rules_for_devices_are_live_unless_a_name_gets_another_api",
        ),
    ),
)
