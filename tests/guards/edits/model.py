"""What removes the guards in `holdfast.model`."""

from guards.guard import Edit

MODEL_EDITS = {
    "model/book/book.py": (
        Edit(
            "gpu-replicas",
            "[*sorted(keys), *sorted(rivals(keys, self.places))]",
            "[*sorted(keys)]",
        ),
        Edit(
            "claim-former",
            "return self.former if self.had_before(lock) else self.pods",
            "return self.pods",
        ),
    ),
    "model/book/claims.py": (
        Edit("claim-living", "for uid in record.pods - counted:", "for uid in record.pods:"),
        Edit("claim-living", "if pod is None or book.holdings.of_pod(uid):", "if pod is None:"),
        Edit(
            "claim-pods",
            "    other = min((pod for pod in following(draft.book, lock) if pod not in over), default=None)\n",
            "    other = None\n",
        ),
        Edit("claim-late", "    _refuse_late(draft, wish)\n", "    pass\n"),
        Edit("claim-joined", "joined = frozenset(recorded) - record.let_go", "return frozenset()"),
        Edit("admin-over", "            admin={},\n", ""),
        Edit("claim-unseen", "enlist(draft, wish, partly=True)", "enlist(draft, wish)"),
    ),
    "model/book/draft.py": (
        Edit("late-records", "self.pay()  # the queue goes by their numbers\n", "pass\n"),
    ),
    "model/book/offers.py": (
        Edit("rule-keeps-unread", "        for entry in entries\n", "        for entry in ()\n"),
    ),
    "model/book/places.py": (
        Edit("gpu-on-vfio-remembered", "draft.keep(CARDS, stay | new)", "draft.keep(CARDS, new)"),
        Edit(
            "gpu-on-vfio-free",
            "return functions if vfio.issuperset(functions) else ()",
            "return functions",
        ),
    ),
    "model/book/pods.py": (
        Edit("late-ended", "return bool(own) and all(own)", "return False"),
        Edit("late-former", "elif not owed:", "else:"),
        Edit(
            "late-names",
            "    _identify(draft, observed)\n    _adopt(draft, observed)\n    settle",
            "    _adopt(draft, observed)\n    settle",
        ),
        Edit("entry-by-id", "elif keys := inventory.keys_of(id_):", "elif keys := frozenset():"),
        Edit("same-kubelet-to-the-end", "if record.counted_by != view.kubelet:", "if False:"),
        Edit("after-a-list", "(view.readable and view.answered)", "view.readable"),
        Edit(
            "claim-living",
            "counted = has_claim or (view.readable and view.counts(record.uid))",
            "counted = view.readable and view.counts(record.uid)",
        ),
        Edit(
            "claim-unended", "if allocation.claim is not None:  # kubelet", "if False:  # kubelet"
        ),
        Edit("old-ids-reboot", "if rebooted and _leads_elsewhere(", "if _leads_elsewhere("),
        Edit("old-ids-unseen", " and None not in found.values()", ""),
    ),
    "model/book/queue.py": (
        Edit("queue-two-ways", "in_the_way == [same]", "same in in_the_way"),
        Edit(
            "gpu-replicas-in-line",
            "for each in holdings.contending(lacks)\n                if",
            "for each in holdings.on(lacks)\n                if",
        ),
    ),
    "model/book/standing.py": (
        Edit(
            "rule-leaving",
            "self.withheld or self.leaving or self.uncommitted:",
            "self.withheld or self.uncommitted:",
        ),
        Edit("rule-leaving-ended", "return not (self.leaving and self.emptied)", "return True"),
        Edit("shared-fewer", 'crowded="" if by_claims else crowded,', 'crowded="",'),
        Edit("rule-leaving-claims", '        if self.leaving:\n            return "leaving"\n', ""),
    ),
    "model/cards.py": (
        Edit(
            "gpu-shares-of-slices",
            "yield whole.removeprefix(_PART), shared",
            "yield whole.removeprefix(_PART), False",
        ),
        Edit("gpu-on-vfio", "        elif key in functions:", "        elif False:"),
    ),
    "model/devicerules.py": (
        Edit("rule-keeps", "for each in self._former(device)", "for each in ()"),
        Edit(
            "rule-new-name",
            "elif not kept or name.resource in self._had.get(self._card(name), {}):",
            "else:",
        ),
        Edit("rule-unseen", "return unseen | (self._targets | former) - known", "return unseen"),
        Edit(
            "rule-kinds",
            "if self._source_of.setdefault(resource, device.source) != device.source:",
            "if False:",
        ),
    ),
    "model/devices.py": (
        Edit(
            "gpu-shared-since", "if known is None or not (number or name.id == card):", "if True:"
        ),
    ),
    "model/dra/handover.py": (
        Edit(
            "claim-share",
            "return not (on_it or locked or quarantines_on(book, device.keys))",
            "return True",
        ),
        Edit("claim-spec-card", "card_of(each) or each for each in keys", "each for each in keys"),
    ),
    "model/gate/gate.py": (
        Edit("gpu-nvml-fails-at-gate", "if verdict.final:", "if False:"),
        Edit(
            "late-behind", "obstacle or _first_by_what_is_owed(", "obstacle or (lambda *_: None)("
        ),
        Edit("late-own-name", "caller if caller.pod or pod is None else", "caller if True else"),
    ),
    "model/kubelet.py": (
        Edit(
            "no-devices",
            "(entry.pod, entry) for entry in self.entries)",
            "(entry.pod, entry) for entry in self.entries if entry.devices)",
        ),
    ),
    "model/nvidia/devices.py": (
        Edit("gpu-divided", "part.keys | _inherited(part, locked)", "part.keys"),
    ),
    "model/nvidia/free.py": (
        Edit("gpu-former-pod", "if holder.pod is not None and holder.pod in to.pods:", "if False:"),
        Edit("gpu-computes", "may_watch = holder.pod is None or not uses", "may_watch = True"),
        Edit("gpu-neighbours", "holder.pod in to.neighbours:", "True:"),
        Edit(
            "gpu-neighbours-memory",
            "found.holders or sight.ended or sight.shared:",
            "found.holders or sight.ended:",
        ),
        Edit(
            "gpu-nvml-fails",
            "    if sight.problem:\n        return unknown(sight.problem, final=True)\n",
            "",
        ),
        Edit("gpu-torn-down", "if sight.ended:", "if False:"),
        Edit("gpu-memory", "if sight.above:", "if False:"),
        Edit("gpu-idle-level", " if look.unowned else level", ""),
        Edit("gpu-leak", "and memory <= level.least + MOST_RISE * rules.slack", ""),
        Edit("gpu-leak-restart", "if kept is None or kept.load != load:", "if True:"),
        Edit("gpu-works", "if sight.busy and not sight.restless:", "if False:"),
        Edit("gpu-works", "    if sight.busy:\n", "    if False:\n"),
        Edit(
            "share-neighbours",
            "for pod in pods_of(lock) or (None,)",
            "for pod in named_pod(lock) or (None,)",
        ),
        Edit("admin-own", "holder.pod in to.pods:", "holder.pod in to.pods - to.admins:"),
    ),
    "model/nvidia/health.py": (
        Edit("gpu-health-next-driver", "not (again and record.last > since)", "True"),
        Edit("gpu-health-unanswered", "    if not observed.answered:", "    if False:"),
        Edit("gpu-health-boot", "if record.cure is Cure.OPERATOR)", "if False)"),
        Edit(
            "gpu-health-kept",
            "self.condition, links_down=(), peers={}",
            "GpuCondition(), links_down=(), peers={}",
        ),
    ),
    "model/nvidia/mig.py": (
        Edit("gpu-number", "if gpu.minor is not None and numbers.get", "if False and numbers.get"),
    ),
    "model/nvidia/names.py": (
        Edit(
            "gpu-unexplained",
            "if not channel or names.devices.get(",
            "if False and names.devices.get(",
        ),
        Edit("gpu-promise-unexplained", "    if unknown:", "    if False:"),
        Edit("gpu-promise-another", "    if led == own:", "    if True:"),
    ),
    "model/nvidia/roots.py": (
        Edit("nvidia-nodes", "if root.control == wanted and not root.nodev]", "if root.control]"),
    ),
    "model/nvidia/sharing.py": (
        Edit(
            "gpu-slice-occupied",
            "faults = (*device.faults, _OCCUPIED) if occupied else device.faults",
            "faults = device.faults",
        ),
        Edit("rule-shared", "sharing.replicas == 1 or taken(device):", "sharing.replicas == 1:"),
    ),
    "model/nvidia/xids.py": (
        Edit("gpu-health-time", "if record.cure > Cure.RESTART and not passes:", "if False:"),
        Edit("gpu-health-gravest", "(reset and record.cure <= Cure.RESET)", "reset"),
        Edit("gpu-health-users", "if record.gone_at is None:", "if False:"),
        Edit("gpu-health-late", "if observed.at < record.last:", "if False:"),
    ),
    "model/reclaim/ending.py": (
        Edit("mode", "if not terminate:", "if False:"),
        Edit("complete-scan", "if not scan_complete:", "if False:"),
        Edit("self", "if facts.member.process.pid in {1, facts.own_pid}:", "if False:"),
        Edit("kubelet", "facts.member.process.pid == facts.kubelet.pid:", "False:"),
        Edit("runtime", "if facts.member.command in RUNTIMES | SHIMS:", "if False:"),
        Edit("whole-runtime", "member.is_shim or member.command in RUNTIMES or member", "member"),
        Edit(
            "shim-inside",
            'return self.command == "pause" or self.is_shim or of_another',
            "return of_another",
        ),
        Edit("shim-inside", "if facts.member.command in RUNTIMES | SHIMS:", "if False:"),
        Edit("shim-inside", "member.is_shim or member.command in RUNTIMES or member", "member"),
        Edit("living-shim", "self.is_shim or of_another", "self.is_shim"),
        Edit(
            "living-shim",
            "return self.sandbox is not Sandbox.MACHINE and self.is_orphan",
            "return self.sandbox is not Sandbox.MACHINE",
        ),
        Edit(
            "living-parent",
            "of_another = self.sandbox is None and not self.is_orphan",
            "of_another = self.parent is not None and self.parent.command in SHIMS",
        ),
        Edit(
            "living-parent",
            "return self.sandbox is not Sandbox.MACHINE and self.is_orphan",
            "return self.sandbox is not Sandbox.MACHINE",
        ),
        Edit(
            "unread-parent",
            "return self.parent is not None and self.parent.is_init",
            "return self.parent is None or self.parent.is_init",
        ),
        Edit("shim-inside-by-what-it-does", "or (self.contains and self.sandbox is None)", ""),
        Edit("pause", 'self.command == "pause" or ', ""),
        Edit("sandbox-at-work", "if runtime is not None and runtime.containers:", "if False:"),
        Edit(
            "sandbox-grace",
            "if since is None or facts.now - since < facts.sandbox_grace:",
            "if False:",
        ),
        Edit(
            "sandbox-unreadable", "if state is None or not state.only_pause:", "if state is None:"
        ),
        Edit(
            "sandbox-unreadable",
            "if since is None or facts.now - since < facts.sandbox_grace:",
            "if False:",
        ),
        Edit("inode", "or facts.pod.inode != facts.member.inode:", "or False:"),
        Edit("fresh", "if age >= limit:", "if False:"),
        Edit("same-kubelet", "if pod.counted_by != facts.kubelet:", "if False:"),
        Edit("same-kubelet-to-the-end", "if pod.counted_by != facts.kubelet:", "if False:"),
        # A process with a parent outside of its pod, as those that tests start, is spared whatever
        # else is so: that guard is removed with the two that follow.
        Edit(
            "same-kubelet-to-the-end",
            "return self.parent is not None and self.parent.is_init",
            "return True",
        ),
        Edit(
            "after-a-list", "return self.parent is not None and self.parent.is_init", "return True"
        ),
        Edit("let-go", "if pod.let_go_at is None or facts.let_go_at is None:", "if False:"),
        Edit("let-go", "if facts.now - facts.let_go_at < facts.let_go_grace:", "if False:"),
        Edit("let-go", "if let_go is None or gone is None:", "if False:"),
        Edit("let-go", "since = max(gone, let_go + facts.let_go_grace)", "since = gone"),
        Edit("graces", "if facts.now - facts.let_go_at < facts.let_go_grace:", "if False:"),
        Edit("graces", "if facts.now - since < facts.orphan_grace:", "if False:"),
        Edit("young", " or member.started_at > let_go_at", ""),
        Edit(
            "whole-empty",
            "return bool(members) and not any(\n        member.is_shim",
            "return not any(\n        member.is_shim",
        ),
    ),
    "model/reclaim/handrelease.py": (
        Edit("prepared-claim", "if lives and not forgotten:", "if False:"),
    ),
    "model/reclaim/leak.py": (
        Edit(
            "leak-lock",
            "if facts.lock is None or facts.lock.state is not LockState.HELD or facts.lock.pod != facts.pod:",
            "if facts.lock is None:",
        ),
    ),
    "model/reclaim/reset.py": (
        Edit("reset-own", "if reset_method(look.methods) is None:", "if False:"),
        Edit(
            "reset-forced",
            "if state not in FORCED or trial is TrialState.PASSED:",
            "if trial is TrialState.PASSED:",
        ),
        Edit("reset-policy", "if policy is ResetPolicy.NEVER:", "if False:"),
        Edit("reset-answers", "if look.vendor == NO_ANSWER:", "if False:"),
    ),
    "model/use/free.py": (
        Edit(
            "turn-over", "return judge_release(but_for_them).freedom is Freedom.FREE", "return True"
        ),
        Edit("turn-theirs", "any(each.pod not in others for each in holders)", "False"),
        Edit("gpu-nvml-fails-after-pod", "or kernel.final or facts", "or facts"),
        Edit("gpu-nvml-fails-after-pod", "if kernel.final or kernel.freedom", "if kernel.freedom"),
        Edit(
            "gpu-bystanders",
            "return facts.kind is not DeviceKind.DRIVER or bool(verdict.holders)",
            "return True",
        ),
        Edit("populated", "if pod.populated and not kernel", "if pod.processes and not kernel"),
        Edit("populated-unknown", "if pod.populated is None:", "if False:"),
        Edit(
            "look-gaps",
            "    if facts.gaps:\n        return unknown(",
            "    if False:\n        return unknown(",
        ),
        Edit(
            "gap-of-others", "self.of_unread if self.unread.issubset(but) else ()", "self.of_unread"
        ),
    ),
}
