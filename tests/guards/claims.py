"""The guards of what is granted by claims: of a free device, and of what is left of a claim's pods."""

from guards.guard import Edit, Guard

_CLAIMS = "daemon/holdfast/model/book/claims.py"
_RECORDS = "daemon/holdfast/dra/records.py"
_PODS = "daemon/holdfast/model/book/pods.py"
_FREE_GPUS = "tests/unit/test_gpu_free_rule.py"
_IN_THE_BOOK = "tests/unit/test_claims_in_the_book.py"
_AT_THE_DOOR = "tests/contract/test_claim_door.py"
_ON_A_NODE = "tests/integration/test_claims.py"

_NEXT_POD = "    other = min((pod for pod in following(draft.book, lock) if pod not in over), default=None)\n"

CLAIM_GUARDS = (
    Guard(
        name="claim-living",
        why="a pod that has another claim is not over, whatever kubelet unprepares",
        edits=(
            Edit(_PODS, "    if has_claim:\n", "    if False:\n"),
            Edit(_PODS, "if has_claim or view.counts(record.uid):", "if view.counts(record.uid):"),
            Edit(_CLAIMS, "for uid in record.pods - counted:", "for uid in record.pods:"),
            Edit(_CLAIMS, "if pod is None or book.holdings.of_pod(uid):", "if pod is None:"),
        ),
        tests=(f"{_ON_A_NODE}::test_a_pod_with_another_claim_is_not_over",),
    ),
    Guard(
        name="claim-pods",
        why="a device is free only after each of the pods that shared its claim",
        edits=(Edit(_CLAIMS, _NEXT_POD, "    other = None\n"),),
        tests=(f"{_IN_THE_BOOK}::test_what_was_prepared_is_free_only_after_each_of_its_pods",),
    ),
    Guard(
        name="claim-traces",
        why="a pod that kubelet's record no longer has is waited for while it has a cgroup",
        edits=(Edit(_RECORDS, "gone -= frozenset(await self._sight.with_cgroup(gone))", "pass"),),
        tests=(
            "tests/contract/test_claim_records.py::test_a_pod_that_left_without_a_trace_is_forgotten_while_others_use_the_claim",
        ),
    ),
    Guard(
        name="claim-joined-meanwhile",
        why="a pod that joined by a former kubelet's word keeps the claim, and only such a one",
        edits=(Edit(_RECORDS, "pod for pod, populated in cgroups.items() if populated", "()"),),
        tests=(
            "tests/oneholder/test_claim_orders.py::test_a_pod_that_joins_while_the_daemon_is_down_and_kubelet_restarts_keeps_the_claim",
        ),
    ),
    Guard(
        name="claim-late",
        why="a Prepare that kubelet gave up on cannot come after its Unprepare",
        edits=(Edit(_CLAIMS, "    _refuse_late(draft, wish)\n", "    pass\n"),),
        tests=(f"{_AT_THE_DOOR}::test_unprepare_ends_the_prepare_that_waits",),
    ),
    Guard(
        name="claim-share",
        why="a share is a replica that nobody has, and no two shares are the same one",
        edits=(
            Edit(
                "daemon/holdfast/model/dra/handover.py",
                "return not (on_it or locked or quarantines_on(book, device.keys))",
                "return True",
            ),
        ),
        tests=(
            "tests/unit/test_shares.py::test_a_share_is_the_first_replica_that_nobody_has",
            "tests/unit/test_shares.py::test_a_claim_waits_for_no_certain_replica_when_none_is_left",
        ),
    ),
    Guard(
        name="share-neighbours",
        why="each pod of a claim that has a share is a neighbour, and none that gives one back",
        edits=(
            Edit(
                "daemon/holdfast/model/nvidia/free.py",
                "if lock.started for pod in pods_of(lock)",
                "if lock.started for pod in _pod_of(lock)",
            ),
        ),
        tests=(
            "tests/unit/test_replicas.py::test_every_pod_of_a_claim_is_a_neighbour_and_none_of_one_that_gives_this_replica_back",
        ),
    ),
    Guard(
        name="admin-own",
        why="a pod with adminAccess is in the way on a GPU that it was given to itself as well",
        edits=(
            Edit(
                "daemon/holdfast/model/nvidia/free.py",
                "holder.pod in to.pods:",
                "holder.pod in to.pods - to.admins:",
            ),
        ),
        tests=(f"{_FREE_GPUS}::test_a_pod_that_was_given_the_gpu_is_in_the_way_all_the_same",),
    ),
    Guard(
        name="claim-joined",
        why="a claim that a pod joins before its end is done goes on, and its device is not free",
        edits=(
            Edit(_CLAIMS, "joined = frozenset(recorded) - record.let_go", "return frozenset()"),
        ),
        tests=(
            "tests/unit/test_claims_taken_over.py::test_a_claim_that_a_pod_joins_before_its_end_is_done_goes_on",
        ),
    ),
    Guard(
        name="claim-former",
        why="what a claim had before it was allocated other devices is free after the pods of then",
        edits=(
            Edit(
                "daemon/holdfast/model/book/book.py",
                "return self.former if self.had_before(lock) else self.pods",
                "return self.pods",
            ),
        ),
        tests=(
            f"{_IN_THE_BOOK}::test_a_claim_that_is_allocated_other_hardware_waits_for_none_that_it_had",
        ),
    ),
    Guard(
        name="claim-reserved",
        why="a claim that kubelet lost is not over while it is allocated and reserved for its pods",
        edits=(Edit(_RECORDS, "else OnServer.THERE\n", "else OnServer.ELSEWHERE\n"),),
        tests=(
            "tests/contract/test_claim_records.py::test_a_named_claim_that_kubelet_forgot_is_over_once_it_is_not_allocated_to_its_pods",
        ),
    ),
    Guard(
        name="claim-plugin-starts",
        why="while hardware goes to claims, the device plugin's pods that are yet to start are gated",
        edits=(
            Edit(
                "daemon/holdfast/kubelet/plugin.py",
                "ungated=by_claims - unstarted,",
                "ungated=by_claims,",
            ),
        ),
        tests=(
            "tests/integration/test_claims_after_plugin.py::test_a_pod_of_the_plugin_that_is_yet_to_start_is_gated_as_before",
        ),
    ),
    Guard(
        name="admin-over",
        why="what a pod with adminAccess leaves behind is in the way once its claim is over",
        edits=(Edit(_CLAIMS, "            admin={},\n", ""),),
        tests=("tests/unit/test_admin_claims.py::test_its_end_is_forgotten_but_for_its_name",),
    ),
    Guard(
        name="claim-unended",
        why="kubelet's checkpoint, which has nothing of claims, ends none",
        edits=(
            Edit(
                "daemon/holdfast/model/book/pods.py",
                "if allocation.claim is not None:  # kubelet",
                "if False:  # kubelet",
            ),
        ),
        tests=(
            f"{_IN_THE_BOOK}::test_kubelets_checkpoint_ends_no_claim_however_long_it_is_silent",
        ),
    ),
    Guard(
        name="claim-in-use",
        why="a claim is prepared only when the kernel shows its devices free",
        edits=(
            Edit(
                "daemon/holdfast/allocation/entry.py",
                "    if not blocked:\n",
                "    if True:\n",
            ),
        ),
        tests=(f"{_AT_THE_DOOR}::test_a_process_that_has_the_device_is_waited_for",),
    ),
)
