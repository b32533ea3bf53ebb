"""What removes the guards in all packages but host, model and reclaim."""

from guards.guard import Edit

PART_EDITS = {
    "allocation/allocator.py": (
        Edit("rule-leaving-late", "if reason := self._refusal(device):", 'if reason := "":'),
    ),
    "allocation/gate.py": (
        Edit("stale-caller", "if start.caller.pod is None:", "if False:"),
        Edit(
            "unrecorded-caller",
            "if self.ledger.may_lack((passage.resource, passage.asked)):",
            "if False:",
        ),
        Edit("stale-caller", "self.reader.view.value, readable=False)", "self.reader.view.value)"),
    ),
    "allocation/entry.py": (
        Edit("reset-at-work", "if doing := self.resetter.at_work(rights.keys):", 'if doing := "":'),
        Edit("claim-in-use", "    if not blocked:\n", "    if True:\n"),
    ),
    "apiserver/client.py": (Edit("claim-gone", " and status.is_gone", ""),),
    "app/daemon.py": (
        Edit(
            "thawed-start", '    supervisor.start("frozen cgroups", parts.reclaim.pods.run())\n', ""
        ),
    ),
    "app/reload.py": (
        Edit("reload-whole", "except SettingsError as error:", "except TimeoutError as error:"),
        Edit("reload-whole", "except Exception as error:", "except TimeoutError as error:"),
        Edit("reload-pod", "if pod := keys.get(TakeUp.POD):", "if pod := ():"),
        Edit("reload-hangs", "if calls := sorted(self.parts.stuck_calls()):", "if calls := ():"),
    ),
    "app/wiring/dra.py": (
        Edit(
            "gpu-claim-moved",
            "GrantBuilder(discovery.sources, None, by_claim=True)",
            "GrantBuilder(discovery.sources, None)",
        ),
    ),
    "app/wiring/live.py": (
        Edit(
            "rule-observe",
            "{self._mode_on(name) or general for name in had} or {general}",
            "{general}",
        ),
    ),
    "app/wiring/parts.py": (
        Edit("gpu-on-vfio-first", "partial(place, found=found.cards)", "partial(place, found={})"),
    ),
    "discovery/scanner.py": (Edit("first-scan", ", unseen=unseen)", ")"),),
    "dra/claimdoor.py": (
        Edit("claim-ends-once", "another = turn is not None and turn.locked()", "another = False"),
    ),
    "dra/preparation.py": (
        Edit("claim-on-its-way", "another or self.record.joined_lately(claim.uid)", "another"),
        Edit(
            "claim-shared-since",
            "pods = frozenset(wish.pods)",
            "pods = self.ledger.book.value.claims[wish.ref.uid].pods",
        ),
    ),
    "dra/specs.py": (
        Edit(
            "claim-spec-astray",
            "leads_to_others(nodes_in(self.folder.content(name)), keys, nodes)",
            "0",
        ),
        Edit("claim-spec-moved", "if seen and node.path in paths:", "if False:"),
    ),
    "dra/records.py": (
        Edit(
            "claim-running-first",
            "sorted(state.contents, key=lambda each: each.pods.isdisjoint(living))",
            "state.contents",
        ),
        Edit(
            "claim-spec-parts",
            "has.union(*(device.keys for each in recorded",
            "has.union(*(device.keys for each in ()",
        ),
        Edit("claim-spec-over", "phase_of(book, record) is ClaimPhase.PREPARED", "True"),
        Edit("claim-spec-same", "whole and well and same", "whole and well"),
        Edit("claim-spec-whole", "whole and well and same", "well and same"),
        Edit("claim-spec-left-out", "(*inventory.devices, *left_out)", "inventory.devices"),
        Edit("claim-spec-admin", "*(record.admin.values() if record is not None else ()),", ""),
        Edit("claim-taken-over-again", "if each.phase is Phase.ACTIVE or not running", ""),
        Edit("claim-left", "if same and claim in claims", "if claim in claims"),
        Edit("claim-traces", "gone -= frozenset(await self.sight.with_cgroup(gone))", "pass"),
        Edit(
            "claim-joined-meanwhile", "pod for pod, populated in cgroups.items() if populated", "()"
        ),
        Edit("claim-reserved", "else OnServer.THERE\n", "else OnServer.ELSEWHERE\n"),
        Edit("claim-called-before", " or called_before(each.name, known.values())", ""),
    ),
    "inuse/deviceuse.py": (
        Edit("late-look", "self._note_late(found, locks, turn.awaited)", "pass"),
        Edit(
            "late-lock",
            "return late if same else None",
            "return late",
        ),
        Edit("late-named", "late.lock in {lock, replace(lock, pod=None)}", "late.lock == lock"),
        Edit(
            "late-enable",
            "same = proven or enabled[each.name] == before.facts.enabled",
            "same = True",
        ),
        Edit("late-driver", "pids=()) if drivers else {}", "pids=()) if False else {}"),
        Edit("late-old", "self.clock.monotonic() - late.ended >= _COUNTS_FOR", "False"),
        Edit("late-old", "            del self._late[name]\n", "            pass\n"),
        Edit("look-holders-gaps", "                gaps=seen.facts.gaps,\n", ""),
        Edit(
            "use-seen-now",
            "if to_free and not (facts.holders or (seen.to_free and (enabled or facts.gaps))):",
            "if False:",
        ),
        Edit(
            "use-enable",
            "if enabled != facts.enabled or facts.holders is None:",
            "if facts.holders is None:",
        ),
        Edit("use-shared", "to_free=name in to_free", "to_free=bool(to_free)"),
        Edit(
            "use-released",
            "            self._seen[device] = replace(seen, to_free=False)\n",
            "            pass\n",
        ),
        Edit(
            "use-whole",
            "if one is not None and one.whole",
            "if one is not None",
        ),
        Edit("use-nobody-among", "if not _is_kept(found[device.name]):", "if False:"),
        Edit(
            "use-group-busy", "await self.look.open(device)) if facts.gaps", "facts.opened) if True"
        ),
        Edit("use-group-busy-again", "told = found.keys() - vague", "told = {*found}"),
        Edit("use-beside", "if name not in found or name in vague]", "if name not in found]"),
        Edit("use-enable-after", "_enabled_since(facts, now[device.name])", "facts"),
        Edit("use-enable-before", "enabled=(*facts.enabled, *more)", "enabled=more"),
        Edit(
            "use-open-outdated",
            "outdated = more and facts.opened is OpenOutcome.SUCCEEDED",
            "outdated = False",
        ),
        Edit("use-unread", "elif facts.unread & followed[device.name]:", "elif False:"),
        Edit(
            "use-next-look",
            "            self._next = None  # who asks",
            "            pass  # who asks",
        ),
    ),
    "kubelet/plugin.py": (
        Edit("claim-plugin-starts", "ungated=by_claims - unstarted,", "ungated=by_claims,"),
        Edit("rule-readmitted", "        self._parts.emptied.registered()\n", ""),
        Edit("kubelet-picks", "        self._count(context)\n        began", "        began"),
    ),
    "ledger/ledger.py": (Edit("unseen-record", " or self.book.value is not self.store.book", ""),),
    "settings/reloading.py": (
        Edit(
            "reload-api",
            'return tuple("devices[].api" if path == "devices" else path for path in paths)',
            "return paths",
        ),
    ),
    "vendors/nvidia/driver.py": (
        Edit("nvml-anew", "if self._anew and library.in_use:", "if False:"),
    ),
    "vendors/nvidia/gpus.py": (
        Edit("gpu-claim-specs", "bool(on.ledger.book.value.claims)", "False"),
        Edit("gpu-claim-index", "if by_claim else self._rules", "if False else self._rules"),
        Edit(
            "gpu-nameless", "RESOURCES if hides_some(driver.last) else frozenset()", "frozenset()"
        ),
    ),
    "vendors/nvidia/health.py": (
        Edit("gpu-health-restart", "self._kept.value.items()", "dict[str, GpuState]().items()"),
    ),
}
