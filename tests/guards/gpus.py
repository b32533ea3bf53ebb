"""The guards of a GPU's health, and of GPUs that nobody can look at, in the form of the table."""

from guards.guard import Edit, Guard

_XIDS = "daemon/holdfast/model/nvidia/xids.py"
_HEALTH = "daemon/holdfast/model/nvidia/health.py"
_WATCH = "daemon/holdfast/vendors/nvidia/health.py"
_SOURCE = "daemon/holdfast/vendors/nvidia/driver.py"
_LOADING = "daemon/holdfast/host/nvidia/nvml/answers.py"
_ROOTS = "daemon/holdfast/model/nvidia/roots.py"
_RULE = "tests/unit/test_gpu_health_rule.py"
_NODE = "tests/integration/test_gpus.py"
_HANGS = "tests/integration/test_gpu_hangs.py"
_NVML = "tests/contract/test_host_nvml.py"
_BEGUN = "tests/contract/test_gpu_source.py"
_ROOT_RULE = "tests/unit/test_nvidia_roots.py"
_SHARES = "tests/unit/test_replicas.py"
_UNSEEN = "tests/integration/test_gpus_unseen.py"

GPU_GUARDS = (
    Guard(
        name="gpu-health-time",
        why="what needs a reset, a reboot or a person does not pass with time",
        edits=(Edit(_XIDS, "if record.cure > Cure.RESTART and not passes:", "if False:"),),
        tests=(f"{_RULE}::test_time_clears_only_what_passes",),
    ),
    Guard(
        name="gpu-health-gravest",
        why="a reset clears nothing that needs more than a reset",
        edits=(Edit(_XIDS, "(reset and record.cure <= Cure.RESET)", "reset"),),
        tests=(f"{_RULE}::test_what_takes_a_new_beginning_is_cleared_by_one_that_was_seen",),
    ),
    Guard(
        name="gpu-health-users",
        why="a GPU is not trusted again while processes of the time of the error are on it",
        edits=(Edit(_XIDS, "if record.gone_at is None:", "if False:"),),
        tests=(f"{_RULE}::test_time_clears_only_what_passes",),
    ),
    Guard(
        name="gpu-health-late",
        why="a look that began before an error says nothing about it",
        edits=(Edit(_XIDS, "if observed.at < record.last:", "if False:"),),
        tests=(f"{_RULE}::test_an_xid_that_came_while_we_looked_is_not_cleared_by_that_look",),
    ),
    Guard(
        name="gpu-health-next-driver",
        why="a load of the driver clears nothing that this very driver told before it was looked at",
        edits=(Edit(_HEALTH, "record.last <= until", "True"),),
        tests=(f"{_RULE}::test_a_load_of_the_driver_clears_only_what_a_former_one_told",),
    ),
    Guard(
        name="gpu-health-unanswered",
        why="a GPU that does not answer is cleared of nothing",
        edits=(Edit(_HEALTH, "    if not observed.answered:", "    if False:"),),
        tests=(f"{_RULE}::test_a_gpu_that_does_not_answer_is_cleared_of_nothing",),
    ),
    Guard(
        name="gpu-health-boot",
        why="a reboot clears nothing that a person has to repair",
        edits=(Edit(_HEALTH, "if record.cure is Cure.OPERATOR)", "if False)"),),
        tests=(f"{_RULE}::test_what_takes_a_new_beginning_is_cleared_by_one_that_was_seen",),
    ),
    Guard(
        name="gpu-health-restart",
        why="a restart of the daemon forgets no error",
        edits=(Edit(_WATCH, "self._kept.value.items()", "dict[str, GpuState]().items()"),),
        tests=(f"{_NODE}::test_a_killed_daemon_does_not_forget_a_fatal_xid",),
    ),
    Guard(
        name="gpu-hangs",
        why="an NVML call that hangs never counts as an answer without processes",
        edits=(
            Edit(
                "daemon/holdfast/host/nvidia/use.py",
                'GpuUse(problem=f"NVML does not answer who uses it: {reason}")',
                "GpuUse()",
            ),
        ),
        tests=(f"{_HANGS}::test_while_nvml_hangs_no_gpu_becomes_free_and_tpus_go_on",),
    ),
    Guard(
        name="gpu-unseen",
        why="a GPU that nobody can look at is not taken for one that is gone",
        edits=(
            Edit(
                "daemon/holdfast/reclaim/watcher.py",
                "device is None and self._inventory.value.may_have(lock.device.resource):",
                "False:",
            ),
        ),
        tests=(
            f"{_UNSEEN}::test_a_slice_whose_driver_is_away_at_a_start_is_not_taken_for_gone",
            f"{_UNSEEN}::test_a_gpu_that_is_not_to_be_advertised_any_more_is_not_taken_for_gone",
        ),
    ),
    Guard(
        name="gpu-nameless",
        why="a GPU that does not say who it is may be any that has a lock",
        edits=(
            Edit(
                "daemon/holdfast/vendors/nvidia/gpus.py",
                "RESOURCES if hides_some(driver.last) else frozenset()",
                "frozenset()",
            ),
        ),
        tests=(f"{_UNSEEN}::test_a_gpu_that_is_lost_at_a_start_is_not_taken_for_gone",),
    ),
    Guard(
        name="gpu-divided",
        why="what a pod has of a GPU that was divided again since goes to no other pod",
        edits=(
            Edit(
                "daemon/holdfast/model/nvidia/devices.py",
                "part.keys | _inherited(part, locked)",
                "part.keys",
            ),
        ),
        tests=(
            "tests/unit/test_gpu_devices.py::test_a_slice_that_is_no_more_excludes_what_its_pod_can_reach_while_it_is_locked",
            f"{_NODE}::test_a_gpu_is_not_whole_for_others_while_a_pod_has_a_slice_that_it_was_divided_into",
        ),
    ),
    Guard(
        name="gpu-shared-since",
        why="a pod keeps what it has of a GPU that is shared since, or is so no more",
        edits=(
            Edit(
                "daemon/holdfast/model/devices.py",
                "if known is None or not (number or name.id == card):",
                "if True:",
            ),
        ),
        tests=(f"{_SHARES}::test_a_pod_finds_what_it_has_whether_the_card_is_shared_now_or_not",),
    ),
    Guard(
        name="nvml-one-library",
        why="a handle of the former driver's library is never given to the new one's",
        edits=(Edit(_LOADING, "not now.users and now.file", "now.file"),),
        tests=(f"{_NVML}::test_while_others_have_the_former_library_open_nobody_gets_another",),
    ),
    Guard(
        name="nvml-anew",
        why="a library that speaks of the former driver is not believed about the new one",
        edits=(Edit(_SOURCE, "if self._anew and library.in_use:", "if False:"),),
        tests=(
            f"{_BEGUN}::test_with_a_driver_that_was_replaced_nvml_is_begun_anew_once_all_others_let_go",
        ),
    ),
    Guard(
        name="nvidia-nodes",
        why="nodes of another driver, or that nobody can open, are not handed to a container",
        edits=(Edit(_ROOTS, "if root.control == wanted and not root.nodev]", "if root.control]"),),
        tests=(
            f"{_ROOT_RULE}::test_a_root_counts_only_if_its_nvidiactl_is_the_drivers",
            f"{_ROOT_RULE}::test_where_roots_overlap_what_they_are_mounted_on_decides",
        ),
    ),
    Guard(
        name="gpu-other-nodes",
        why="a GPU that a process draws on goes to no other pod",
        edits=(
            Edit(
                "daemon/holdfast/host/use/look.py",
                "(*device.nodes, *device.other_nodes)",
                "device.nodes",
            ),
        ),
        tests=(
            "tests/contract/test_look.py::test_a_holder_of_another_node_of_the_same_hardware_is_a_holder_of_the_device",
        ),
    ),
)
