"""What removes the guards in `holdfast.host`."""

from guards.guard import Edit

HOST_EDITS = {
    "host/cgroup/cgroups.py": (
        Edit("kill-inode", "if os.fstat(folder).st_ino != inode:", "if False:"),
        Edit("sight-share", "self.pod(uid, seconds=most)", "self.pod(uid, seconds=share)"),
        Edit("cgroup-untold", "            return _UNREADABLE\n", '            return ""\n'),
        Edit(
            "populated-read",
            "populated, problem = _populated(folder)",
            'populated, problem = bool(pids), ""',
        ),
        Edit("populated-v1", "if not pids and not unlisted:", "if False:"),
        Edit(
            "populated-v1-hidden",
            "if not pids and namespace not in {None, INIT_PID_NAMESPACE}:",
            "if False:",
        ),
    ),
    "host/files/kernelfile.py": (
        Edit(
            "not-absent",
            'raise HostError(f"cannot look at {path}: {error.strerror}") from error',
            "return None",
        ),
    ),
    "host/nvidia/nvml/answers.py": (
        Edit("nvml-one-library", "not now.users and now.file", "now.file"),
    ),
    "host/nvidia/nvml/library.py": (
        Edit("gpu-lists", '("v3", "v2")', '("v3",)'),
        Edit("gpu-not-told", "supported(ask) if asked in _OPTIONAL else ask()", "supported(ask)"),
    ),
    "host/nvidia/use.py": (
        Edit(
            "gpu-hangs", 'GpuUse(problem=f"NVML does not answer who uses it: {reason}")', "GpuUse()"
        ),
    ),
    "host/proc/access.py": (
        Edit("look-io-uring", "        elif text == RING:\n            self._note_ring(use)\n", ""),
        Edit("look-exited-table", " and self._has_files(pid)", ""),
        Edit(
            "look-moves",
            '        use.unseen = "it opens and closes files faster than they can be looked at"\n',
            "",
        ),
        Edit("look-moves-on", "quiet = 2 if", "quiet = 1 if"),
        Edit(
            "look-maps-left-out",
            'use.unseen = "what it has mapped could not be read in time"',
            "pass",
        ),
        Edit("look-moves-down", "self._counts and has_more(folder, listed)", "False"),
        Edit(
            "look-moves-back",
            "or not _text(opened, name):\n                    return False\n",
            "or not _text(opened, name):\n                    return True\n",
        ),
        Edit(
            "look-follows",
            "            inode = os.fstat(kept).st_ino\n",
            '            inode = os.fstat(kept).st_ino\n            os.close(kept)\n            kept = os.open("/", os.O_PATH)\n',
        ),
        Edit(
            "open-threads",
            "        self._other_tables(folder, pid, use, compare=not careful, exited=exited, beat=beat)\n",
            "",
        ),
        Edit(
            "open-thread-exits",
            "        self._note_exit(folder, thread, names, use)\n",
            "",
        ),
        Edit(
            "open-thread-heirs", "                    ended = True\n", "                    pass\n"
        ),
        Edit("open-same-table", "if same and self._folder(other) == inode and", "if same and"),
        Edit("mapped-ring", "if found.ring:", "if False:"),
        Edit(
            "open-refused", '            if text.startswith(b"/dev/"):\n', "            if False:\n"
        ),
        Edit(
            "open-device-fd",
            "        use.unnamed.add(DeviceAccess.DEVICE_FD)\n        use.unnamed_fds += 1\n\n    def _mappings",
            "        use.unnamed_fds += 1\n\n    def _mappings",
        ),
        Edit("open-neither", "return digits.isdigit() and", "return True or"),
        Edit("open-more-fds", "if self.unnamed_fds <= sum(self.groups.values()):", "if True:"),
        Edit(
            "mapped-vfio",
            "            use.unnamed.add(DeviceAccess.MAPPED)\n",
            "            pass\n",
        ),
        Edit(
            "mapped-exited",
            "        if found is None:  # the leader has exited",
            "        if False:  # the leader has exited",
        ),
    ),
    "host/proc/mappings.py": (
        Edit("look-removed-maps", "mapping.removed or named", "named"),
        Edit("mapped-elsewhere", "elsewhere or mapping.removed", "mapping.removed"),
        Edit(
            "mapped-own-root",
            "own_root(folder)\n",
            'f"{folder}/root".encode().__add__\n',
        ),
        Edit(
            "mapped-memory",
            'match["own"] is None or self._memory in {',
            "True or self._memory in {",
        ),
        Edit("mapped-newline", "None if _NEWLINE in mapping.path else ", ""),
        Edit(
            "mapped-same",
            "same = at is not None and (at.filesystem, at.inode) == mapping.file",
            "same = at is not None",
        ),
        Edit(
            "mapped-long",
            "                else:\n                    raise TooMuchError\n",
            "                else:\n                    return\n",
        ),
        Edit(
            "mapped-left",
            "                    self._leave_unexplained(pid, each.path)\n",
            "                    pass\n",
        ),
        Edit(
            "mapped-root",
            "            at = self._numbers.file_at(bytes(self._root.node(os.fsdecode(mapping.path))))\n",
            "            pass\n",
        ),
    ),
    "host/proc/openfiles.py": (
        Edit(
            "look-in-flight-locks", "return 1 if len(info) == _MOST_INFO else None", "return None"
        ),
        Edit(
            "look-in-flight-count",
            "if self.files is not None and _size(self.folder) > self.files:",
            "if False:",
        ),
    ),
    "host/proc/pidfd.py": (
        Edit("start-time", "gone = self._procfs.has_ended(process)", "gone = False"),
        Edit("same-process", "gone = self._procfs.has_ended(process)", "gone = False"),
    ),
    "host/proc/procfs.py": (
        Edit(
            "unread-member",
            'return process_at(f"{self._proc}/{pid}", pid)',
            'return _facts(text_or_empty(f"{self._proc}/{pid}/stat").encode(), pid)',
        ),
        Edit("look-empty-list", "        if not found:\n", "        if False:\n"),
        Edit("young-parent", " or parent.process.start_ticks > child.process.start_ticks", ""),
        Edit(
            "machine",
            "return Sandbox.MACHINE if self._procfs.runs_a_machine(pid) else None",
            "return None",
        ),
        Edit(
            "machine-many-files",
            "return len(names) > _FEW and self._maps_a_cpu(pid)",
            "return False",
        ),
        Edit(
            "parent-kernel",
            "init = parent.ppid == 0 and not parent.kernel_thread",
            "init = parent.ppid == 0",
        ),
        Edit(
            "parent-reused",
            "if now is None or now.process != child.process or now.ppid == child.ppid:",
            "if now is None or now.ppid == child.ppid:",
        ),
        Edit(
            "shim-apart-unread",
            "        return facts is not None and facts.can_act\n    return theirs",
            "        return False\n    return theirs",
        ),
        Edit(
            "shim-moved",
            " for child in children[pid] | procfs.children(pid))",
            " for child in children[pid])",
        ),
        Edit("shim-namespace-unread", "in {None, INIT_PID_NAMESPACE}]", "== INIT_PID_NAMESPACE]"),
        Edit(
            "machine-refused",
            '            raise HostError(f"cannot list {folder}: {error.strerror}") from error\n        if any',
            "            return False\n        if any",
        ),
        Edit(
            "machine-long",
            "        except OSError:\n            return None\n        return None\n\n    def uid",
            "        except OSError:\n            return None\n        return False\n\n    def uid",
        ),
    ),
    "host/proc/visits.py": (
        Edit("look-stuck", "_MOST = 64", "_MOST = 16"),
        Edit("look-threads", "except RuntimeError as error:", "except ZeroDivisionError as error:"),
        Edit("look-crowd-waits", "min(patience, waits.most(at)) if at else patience", "patience"),
        Edit(
            "visit-unread",
            "                self.unread.append(pid)\n            return None",
            "            return None",
        ),
        Edit(
            "visit-unread",
            "                self.unread.append(pid)\n            else:",
            "                pass\n            else:",
        ),
        Edit("visit-waits", " or self.waits.left <= 0", ""),
        Edit("visit-starved", 'return call not in (b"running", _FUTEX)', "return True"),
        Edit("visit-turn", 'not in (b"running", _FUTEX)', '!= b"running"'),
        Edit(
            "visit-again",
            "                self._left.append((pid, True))\n",
            "                pass\n",
        ),
    ),
    "host/use/holders.py": (
        Edit("look-unlisted", "failed = (str(error),)", "failed = ()"),
        Edit(
            "look-threads-met",
            "            failed = (str(error),)\n",
            "            return Scan(gaps=(str(error),))\n",
        ),
        Edit("look-sight", "gaps=(*self._sight.hides, *failed,", "gaps=(*failed,"),
        Edit(
            "look-removed-mapped",
            "*of_unread, *unexplained),",
            "*of_unread),",
        ),
        Edit("look-alike", "alike = (device, each, where, kind)", "alike = (device, each)"),
    ),
    "host/use/look.py": (
        Edit(
            "look-open-hangs",
            "            return OpenOutcome.BUSY\n        try:",
            "            return OpenOutcome.UNAVAILABLE\n        try:",
        ),
        Edit(
            "look-open-hangs",
            "except LaneStuckError:\n            return OpenOutcome.BUSY",
            "except LaneStuckError:\n            return OpenOutcome.UNAVAILABLE",
        ),
        Edit("gpu-other-nodes", "(*device.nodes, *device.other_nodes)", "device.nodes"),
        Edit(
            "look-enable-unread",
            "gaps=(*seen[device.name].gaps, *enabled[device.name].gaps),",
            "gaps=seen[device.name].gaps,",
        ),
        Edit(
            "look-accel-mapped",
            "maps = all(device.kind is DeviceKind.ACCEL for device in devices)",
            "maps = False",
        ),
        Edit(
            "look-accel-mapped",
            "            if device.kind is DeviceKind.ACCEL\n            or (",
            "            if (",
        ),
        Edit("look-maps-gaps", "            seen.update(dict.fromkeys(names, scan))\n", ""),
        Edit(
            "look-busy-maps",
            "            or (device.name in busy and not holders.get(device.name))\n",
            "",
        ),
        Edit("look-busy-unread", "if each.above or each.unread)", "if each.above)"),
        Edit("look-hidden", "hidden=maps,", "hidden=False,"),
        Edit(
            "look-hidden-beside",
            "maps=True, hidden=hidden, owners",
            "maps=True, hidden=False, owners",
        ),
        Edit("look-granted", "*(pods_of(lock) for", "*(frozenset[PodUid]() for"),
        Edit("look-granted-alone", "in locks.values() if lock.keys & keys", "in locks.values()"),
        Edit("look-claims-pods", "self.book().pods_of", "Book().pods_of"),
        Edit(
            "look-puzzling-locks", "again = attribute(scan, busy,", "again = attribute(scan, names,"
        ),
        Edit("look-unread", "                unread=seen[device.name].unread,\n", ""),
        Edit(
            "look-learn",
            "if opened is OpenOutcome.SUCCEEDED and learn:",
            "if opened is OpenOutcome.SUCCEEDED:",
        ),
        Edit(
            "look-open-idle",
            "if not above or not are_groups",
            "if not are_groups",
        ),
        Edit("look-open-group", " or not are_groups(self.root, device.nodes):", ":"),
        Edit("look-open-kind", "if device.kind is not DeviceKind.VFIO:", "if False:"),
        Edit(
            "look-own-node",
            "            rdevs.update(self._sysfs.vfio_devices(address))\n",
            "            pass\n",
        ),
    ),
    "host/use/survey.py": (
        Edit("look-born-since", "            if not new:\n", "            if self.processes:\n"),
        Edit("look-handed-on", "            if not ended:\n", "            if True:\n"),
        Edit(
            "look-in-flight-handed-on",
            "for pid, each in self._hiding.items() if each.in_flight",
            "for pid in ()",
        ),
        Edit(
            "look-ended-in-sight",
            '                return _ProcessLook(uses=self._survey.uses(ended, "ended", "/", use))\n',
            "                return None\n",
        ),
        Edit("look-in-flight", "self._refused(pid, _IN_FLIGHT)", "pass"),
        Edit("look-own-time", "self._began = time.thread_time()", "self._began = now"),
        Edit("look-own-time", "return time.thread_time() -", "return time.monotonic() -"),
        Edit("look-no-longer", "(now > self._latest or ", "("),
        Edit("look-exits", "self._refused(pid, _EXITING)", "pass"),
        Edit("look-settles", "        for pid in new:\n", "        for pid in ():\n"),
        Edit("look-settles", "        for pid in ended:\n", "        for pid in ():\n"),
        Edit("look-too-much", "self._refused(pid, _TOO_MUCH)", "pass"),
        Edit(
            "look-too-much", "_ProcessLook(unseen=_TOO_MUCH if self._extra else _NO_TIME)", "None"
        ),
        Edit("look-pid-anew", "if self._known.get(pid) != inode)", "if pid not in self._known)"),
        Edit("look-born-last", "        self._chase()\n", ""),
        Edit("look-lists", "_MOST_PASSES = 16", "_MOST_PASSES = 10**9"),
        Edit("look-time", "_LONGEST = 5.0", "_LONGEST = 1e9"),
        Edit("look-granted-first", "return pod not in self.owners, size", "return True, size"),
        Edit(
            "look-smallest-first",
            "return pod not in self.owners, size",
            "return pod not in self.owners, 0",
        ),
        Edit("look-no-answer", "            self._refused(pid, _LATE)\n", "            pass\n"),
        Edit("look-takes", " or (self.takes and self.uses is None)", ""),
        Edit("look-in-flight-again", "        self._glance()\n", ""),
        Edit(
            "look-in-flight-taken",
            "                    self._hiding[pid] = answer\n                if answer.uses is not None:\n                    self.found[pid] = answer.uses\n",
            "                    self._hiding[pid] = answer\n",
        ),
        Edit("look-in-flight-once", "flights[pid] >= min(_OFTEN, looks)", "flights[pid] >= _OFTEN"),
        Edit("look-in-flight-silent", "for pid in (*answers, *unread):", "for pid in answers:"),
        Edit(
            "look-in-flight-much",
            "shown = hiding[pid] if answer.unseen and not answer.hides else answer",
            "shown = answer",
        ),
        Edit(
            "look-crowd",
            "(pod is not None and shares.are_used_up(pod)):",
            "(pod is not None and shares.are_used_up(pod) is None):",
        ),
        Edit("look-crowd-told", '            self.gaps.add(pid, "", reason)\n', ""),
        Edit("look-crowd-owner", "return None if pod in self._owners else pod", "return pod"),
        Edit(
            "look-crowd-births",
            "            if not self._pass(new):\n                return True\n",
            "            self._pass(new)\n",
        ),
        Edit("look-same-process", " or not same()", ""),
        Edit(
            "look-born-last-found",
            "                self.found[pid] = answer.uses\n                return\n\n    def _born",
            "                return\n\n    def _born",
        ),
        Edit(
            "look-hides-later",
            "            if answer.hides:\n                self._hiding[pid] = answer\n",
            "",
        ),
    ),
}
