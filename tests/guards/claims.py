"""The guards of what is granted by claims: of a free device, and of what is left of a claim's pods."""

from guards.guard import Edit, Guard

_CLAIMS = "daemon/holdfast/model/book/claims.py"
_PODS = "daemon/holdfast/model/book/pods.py"
_FREE_GPUS = "tests/unit/test_gpu_free_rule.py"
_IN_THE_BOOK = "tests/unit/test_claims_in_the_book.py"
_AT_THE_DOOR = "tests/contract/test_claim_door.py"
_ON_A_NODE = "tests/integration/test_claims.py"

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
        edits=(Edit(_CLAIMS, "    other = _next_pod(draft.book, lock)\n", "    other = None\n"),),
        tests=(f"{_IN_THE_BOOK}::test_what_was_prepared_is_free_only_after_each_of_its_pods",),
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
                "daemon/holdfast/model/dra/shares.py",
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
        name="admin-over",
        why="what a pod with adminAccess leaves behind is in the way once its claim is over",
        edits=(Edit(_CLAIMS, "over_at=draft.uptime, admin={})", "over_at=draft.uptime)"),),
        tests=("tests/unit/test_admin_claims.py::test_its_end_is_forgotten_but_for_its_name",),
    ),
    Guard(
        name="claim-unended",
        why="kubelet's checkpoint, which has nothing of claims, ends none",
        edits=(
            Edit(
                "daemon/holdfast/model/book/reconcile.py",
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
                "daemon/holdfast/dra/preparing.py",
                "        if blocked is not None:\n",
                "        if False:\n",
            ),
        ),
        tests=(f"{_AT_THE_DOOR}::test_a_process_that_has_the_device_is_waited_for",),
    ),
)
