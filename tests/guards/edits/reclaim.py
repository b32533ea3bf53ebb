"""What removes the guards in `holdfast.reclaim`."""

from guards.guard import Edit

RECLAIM_EDITS = {
    "reclaim/ending.py": (
        Edit(
            "whole-runtime",
            "whole=bool(members) and len(agreed) == len(members),",
            "whole=bool(members),",
        ),
        Edit(
            "pod",
            "        held = {each.process for each in order.opened}\n",
            "        members = (*members, *(x for x in order.opened if x not in members))\n        held = {each.process for each in order.opened}\n",
        ),
        Edit(
            "same-process",
            "        held = {each.process for each in order.opened}\n",
            "        members = order.opened\n        held = {each.process for each in order.opened}\n",
        ),
        Edit(
            "asked-after-refusal",
            "return await self._carry_out(order, as_one=False)",
            "return self._signal_each(order, agreed)",
        ),
        Edit("leak-judged-last", "judge.why_void(now) is None and bool", "bool"),
        Edit(
            "leak-judged-last",
            "return await self._carry_out(order, as_one=False)",
            "return self._signal_each(order, agreed)",
        ),
        Edit("leak-whole", 'void = void or "its processes change"', "pass"),
        Edit("whole-void", "judge.why_void(now) is None and bool", "bool"),
        Edit(
            "only-meant",
            "(only is None or each.process in only) and each.process not",
            "each.process not",
        ),
        Edit("void", "        if void is not None:\n", "        if False:\n"),
        Edit("each-judged", " and each.process not in spared", ""),
        Edit("whole-each-judged", " and not judge.spared(now)", ""),
        Edit("whole-empty", " and bool(now)", ""),
        Edit("whole-let-go", "record.inode is None or newest is None:", "record.inode is None:"),
        Edit(
            "whole-let-go", "return whole_cgroup(now", "return newest is None or whole_cgroup(now"
        ),
        Edit("frozen-let-go", "None if again.newest is None else _may_end_all", "_may_end_all"),
        Edit(
            "term-not-whole",
            "at_once = as_one and (sandbox or order.step is ReclaimStep.KILL)",
            "at_once = as_one",
        ),
        Edit(
            "term-first",
            "signal.SIGKILL if order.step is ReclaimStep.KILL else signal.SIGTERM",
            "signal.SIGKILL",
        ),
        Edit(
            "forks-on", "return agreed.whole or bool(agreed.victims)", "return bool(agreed.victims)"
        ),
        Edit("hand-term", "left, grace if sent else 0.0)", "left, 0.0)"),
    ),
    "reclaim/evidence.py": (
        Edit("void", "if judge.why_void(()) is not None:", "if False:"),
        Edit("fence", "if book.locks.get(warrant.lock.device) != warrant.lock:", "if False:"),
        Edit("counted-again", "not view.readable or view.counts(warrant.pod) or has", "has"),
        Edit(
            "answer",
            "return await self.reader.answered_after(self.clock.uptime(), self.question_timeout.value)",
            "await self.reader.answered_after(0.0, 0.0)\n        return self.reader.view.value",
        ),
        Edit(
            "clock-set-forward",
            "now=self.clock.monotonic(),\n            own_pid",
            "now=self.clock.wall(),\n            own_pid",
        ),
        Edit("claimed-again", " or has_claim(book, warrant.pod)", ""),
        Edit(
            "uncounted-anew",
            "        if counted:\n            self._since.pop(pod, None)\n        elif",
            "        if",
        ),
        Edit("mode-of-pod", "terminate=self.may_end(pod),", "terminate=True,"),
        Edit("scan-of-warrant", "scan_complete=not judge.warrant.gap", "scan_complete=True"),
        Edit(
            "graces-anew",
            "        keep_only(pods, self._runtime, self._let_go)\n",
            "        pass\n",
        ),
        Edit("let-go-anew", "if known is None or known[0] != said:", "if known is None:"),
        Edit(
            "let-go-by-another",
            "said = (record.counted_by, record.let_go_at)",
            "said = (None, record.let_go_at)",
        ),
        Edit("unread-checkpoint", "not view.readable or view.counts", "view.counts"),
        Edit("uncounted-unread", "elif counted is False:", "else:"),
        Edit(
            "crowd-judged",
            "if (why := self.why_spare(anybody, telling)) is not None:",
            "if (why := self.why_spare(anybody, telling)) is not None and False:",
        ),
        Edit("uncounted-forgotten", "        keep_only(pods, self._since)\n", "        pass\n"),
    ),
    "reclaim/handrelease.py": (
        Edit(
            "hand-claim",
            "view.counts(lock.pod) or has_claim(book, lock.pod)",
            "view.counts(lock.pod)",
        ),
        Edit("hand-complete", "gap=seen.kernel.gap(),", 'gap="",'),
        Edit(
            "hand-refused",
            "if verdict.grounds is None or lock is None or lock.pod is None:",
            "if lock is None or lock.pod is None:",
        ),
        Edit(
            "hand-no-answer",
            "counted=None if view is None else view",
            "counted=False if view is None else view",
        ),
        Edit("hand-shown", "replace(seen, shown=shown, typed=typed)", "replace(seen, typed=typed)"),
        Edit("hand-at-work", "at_work=may_be_at_work(members, state)", "at_work=None"),
        Edit("hand-moved", "if not draft.is_as(lock):", "if False:"),
    ),
    "reclaim/leaks.py": (
        Edit(
            "leak-complete",
            'return holders, next((gap for each in found.values() if (gap := each.gap())), "")',
            'return holders, ""',
        ),
        Edit(
            "leak-all",
            "for each in locks.values() if each.pod == pod",
            "for each in list(locks.values())[:1] if each.pod == pod",
        ),
        Edit("leak-report", "restart=self._may_restart,", "restart=True,"),
        Edit("leak-mode", "terminate=self.may_end(pod),", "terminate=True,"),
        Edit(
            "leak-start",
            "held_up=WaitingStart(pod=pod, device=device) in self.starts.value,",
            "held_up=True,",
        ),
        Edit(
            "leak-counted", "counted=view.readable and view.counts(pod),", "counted=view.readable,"
        ),
        Edit(
            "leak-unread",
            "counted=view.readable and view.counts(pod),",
            "counted=view.counts(pod),",
        ),
        Edit(
            "leak-grace", "return now - self._leaking_since.setdefault(pod, now)", "return math.inf"
        ),
        Edit(
            "leak-break", "            self._leaking_since.pop(pod, None)\n", "            pass\n"
        ),
        Edit(
            "leak-later-start",
            "        keep_only(waiting, self._leaking_since)\n",
            "        pass\n",
        ),
        Edit("leak-pause", "pause=judge.pause,", "pause=0.0,"),
        Edit(
            "leak-noted",
            "        if not await self._note(warrant, meant):\n            return\n",
            "",
        ),
    ),
    "reclaim/pods.py": (
        Edit("machine-unread", "return Sandbox.MACHINE  # it may run one", "return None  # it"),
        Edit("frozen", "        self.cgroups.freeze(path, inode, frozen=True)\n", ""),
        Edit(
            "frozen", "if not self.cgroups.await_frozen(path, patience=_FREEZE_TIME):", "if False:"
        ),
        Edit("exited-leader", " or any(map(self._leader_has_exited, listed))", ""),
        Edit(
            "frozen-waited",
            "if not self.cgroups.await_frozen(path, patience=_FREEZE_TIME):",
            "if False:",
        ),
        Edit("frozen-slow-disk", "await ask_again()", "may_end"),
        Edit("frozen-asked-again", "if not may_end(members):", "if False:"),
        Edit("judged-last", "if not may_end(listed):", "if False:"),
        Edit("judged-last", "if not as_one(listed) or any", "if any"),
        Edit("unlisted", "            if cgroup.unlisted:\n", "            if False:\n"),
        Edit(
            "thawed",
            "            if noted is not None:\n                await self._thaw(path, noted)\n",
            "            pass\n",
        ),
        Edit("thawed-stopping", "return await seen_through(self.", "return await (self."),
        Edit(
            "thawed-late",
            "            return\n        self._problems",
            "            pass\n        self._problems",
        ),
        Edit("thawed-next", "await self._frozen.keep({**noted, path: new})", "pass"),
        Edit(
            "thawed-own",
            "if path not in noted and await self.lane.run(lambda: self.cgroups.is_frozen(path)):",
            "if False:",
        ),
        Edit("thawed-same", " and self.cgroups.inode(path) == each.inode", ""),
        Edit("thawed-boot", "each.boot == self.ledger.boot and ", ""),
        Edit(
            "frozen-left",
            "            members = await self.members(pod)\n            if not may_end",
            "            members = found\n            if not may_end",
        ),
        Edit("shim-inside-seen", "contains=pid in shims", "contains=False"),
        Edit(
            "ended-while-read",
            "if parent is None and self.procfs.has_ended(facts.process):",
            "if False:",
        ),
        Edit("sandbox-stuck", "return RuntimeState(problem=str(error))", "return RuntimeState()"),
    ),
    "reclaim/reclaimer.py": (
        Edit(
            "word-expires",
            "return grounds if self.clock.monotonic() < until else Grounds.OVER",
            "return grounds",
        ),
        Edit("crowd-tried", "        if look.tried:\n", "        if False:\n"),
        Edit("word-once", "            self._by_hand.pop(lock.pod, None)\n", "            pass\n"),
        Edit(
            "noted-first", "        if lock.state is LockState.RELEASING:\n", "        if False:\n"
        ),
    ),
    "reclaim/resetter.py": (
        Edit("reset-policy", "if self.policy is not ResetPolicy.NEVER:", "if True:"),
        Edit("res-fence", "if it.findings is not None and it.fence != lock.fence:", "if False:"),
        Edit("reset-guarded", "guarded = opened is OpenOutcome.SUCCEEDED", "guarded = True"),
        Edit("reset-idle", "idle = self.idle and self.wanted()", "idle = self.wanted()"),
        Edit("reset-wanted", "idle = self.idle and self.wanted()", "idle = self.idle"),
        Edit(
            "reset-state",
            "now is not None and now.state in FORCED and now.pod",
            "now is not None and now.pod",
        ),
        Edit("reset-pod", "now.state in FORCED and now.pod == lock.pod", "now.state in FORCED"),
        Edit(
            "reset-busy", "            if opened is OpenOutcome.BUSY:\n", "            if False:\n"
        ),
        Edit("reset-refused", "if answer.written is WriteOutcome.FAILED:", "if False:"),
        Edit("reset-dead", "            if problem is not None:\n", "            if False:\n"),
        Edit(
            "reset-unlooked",
            'return Findings(problem=f"{trial.device.name} cannot be checked: {error}")',
            "return Findings()",
        ),
        Edit(
            "reset-again",
            "return it.findings is not None and self.clock.monotonic() - it.ended >= pause",
            "return False",
        ),
        Edit("reset-fresh", "fresh = self.clock.monotonic() - it.ended < _FRESH", "fresh = True"),
        Edit(
            "reset-first",
            "            self._begin(lock, device, facts)\n        return None\n",
            '            self._begin(lock, device, facts)\n        return ""\n',
        ),
        Edit("rebind-allowed", "allowed=self.rebind)", "allowed=True)"),
        Edit("rebind-wanted", "allowed=self.rebind) and self.wanted():", "allowed=self.rebind):"),
    ),
    "reclaim/sightings.py": (
        Edit(
            "sight-empty",
            "elif sighting.populated and (sighting.processes or sighting.unlisted):",
            "else:",
        ),
        Edit(
            "sight-anew",
            "announced = self._announced.difference(again)",
            "announced = self._announced",
        ),
    ),
    "reclaim/users.py": (
        Edit(
            "use-tried",
            "            facts = await self.use.tried(device, facts)\n",
            "            pass\n",
        ),
        Edit("true-owner", "await self.ledger.if_unmoved(lock, prove)", "pass"),
        Edit("free-foreign", "elif is_foreign(facts):", "elif False:"),
    ),
    "reclaim/watcher.py": (
        Edit(
            "late-start",
            "if self.ledger.failing_since is not None:\n            observed",
            "if False:\n            observed",
        ),
        Edit("late-end", "partial(take_in, observed", "partial(reconcile, observed"),
        Edit(
            "gpu-unseen",
            "inventory.may_have(lock.device.resource):",
            "False:",
        ),
        Edit(
            "free-detained",
            "if (reason := await self.resetter.detains(lock))",
            'if (reason := "")',
        ),
        Edit("free-checked", "            if cleared is None:\n                continue\n", ""),
        Edit("free-unmoved", "if draft.is_as(lock):", "if True:"),
        Edit(
            "free-unread",
            "counted = view.counts(lock.pod) if view.readable else None",
            "counted = view.counts(lock.pod)",
        ),
        Edit("free-claim", "if lock.claim is not None:  # kubelet has", "if False:  # kubelet has"),
        Edit(
            "free-later-pod",
            "record is not None and sighting is not None and record.is_former(sighting.inode, boot)",
            "False",
        ),
        Edit(
            "free-unseen",
            "cgroup_seen=record is not None and (record.cgroup is not None or rebooted)",
            "cgroup_seen=True",
        ),
        Edit("free-claims-pods", ").freedom\n            is Freedom.FREE\n", ").freedom\n"),
        Edit(
            "free-unlisted", "listed = facts.pod is None or not facts.pod.unlisted", "listed = True"
        ),
        Edit(
            "held-again",
            "        self.reclaimer.keep(pods - holders, book.locks.keys())\n",
            "",
        ),
        Edit(
            "free-seen-now",
            "to_free={name for name, pod in pods.items() if not _may_live(pod)},",
            "to_free=set(),",
        ),
        Edit("free-untried", "return counted or pod.populated is not False", "return counted"),
        Edit(
            "free-nobodys",
            "lock.pod is None and (lock.state is LockState.FOREIGN or not lock.started)",
            "lock.pod is None",
        ),
    ),
}
