"""The guards of a look that calls a device free: nobody outruns it, hides from it or is left out."""

from guards.guard import Edit, Guard

_STUCK = "tests/contract/test_stuck_processes.py"
_SURVEY = "daemon/holdfast/host/use/survey.py"
_LOOK = "daemon/holdfast/host/use/look.py"
_GRIPS = "daemon/holdfast/host/proc/grips.py"
_HOLDERS = "daemon/holdfast/host/use/holders.py"
_MAPPINGS = "daemon/holdfast/host/proc/mappings.py"
_OPEN_FILES = "daemon/holdfast/host/proc/openfiles.py"
_VISITS = "daemon/holdfast/host/proc/visits.py"
_USE = "daemon/holdfast/inuse/deviceuse.py"
_MEMORY = "tests/contract/test_one_memory.py"
_FREE = "daemon/holdfast/model/use/free.py"
_OUTRUN = "tests/contract/test_scans_not_outrun.py"
_HELD = "tests/contract/test_host_holders.py"
_LOOKS = "tests/contract/test_look.py"
_FREE_RULE = "tests/unit/test_free_rule.py"

LOOK_GUARDS = (
    Guard(
        name="look-born-since",
        why="who is born while the others are looked at is looked at as well",
        edits=(Edit(_SURVEY, "            if not new:\n", "            if self.processes:\n"),),
        tests=(
            f"{_OUTRUN}::test_a_process_that_was_born_since_the_others_were_listed_is_looked_at",
        ),
    ),
    Guard(
        name="look-handed-on",
        why="where a holder ended meanwhile, anybody may have what it had open",
        edits=(Edit(_SURVEY, "            if not ended:\n", "            if True:\n"),),
        tests=(
            f"{_OUTRUN}::test_whoever_was_looked_at_before_is_looked_at_again_where_a_holder_has_ended",
        ),
    ),
    Guard(
        name="look-ended-in-sight",
        why="who had the device and ended while it was looked at may have handed it on",
        edits=(
            Edit(
                _SURVEY,
                "                return self._ended(pid, use)\n",
                "                return None\n",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_what_a_process_had_that_ended_while_it_was_looked_at_is_looked_for_again",
        ),
    ),
    Guard(
        name="look-in-flight",
        why="a file in a message that nobody takes is in no process's list",
        edits=(Edit(_SURVEY, "self._refused(pid, _IN_FLIGHT)", "pass"),),
        tests=(
            f"{_OUTRUN}::test_a_file_in_a_message_that_nobody_takes_is_a_gap_until_it_is_taken",
        ),
    ),
    Guard(
        name="look-own-time",
        why="on a busy node a process that has little open would be one that has too much",
        edits=(
            Edit(_SURVEY, "self._began = time.thread_time()", "self._began = now"),
            Edit(_SURVEY, "return time.thread_time() -", "return time.monotonic() -"),
        ),
        tests=(f"{_OUTRUN}::test_time_that_others_take_on_a_busy_node_is_not_a_process_s_own",),
    ),
    Guard(
        name="look-no-longer",
        why="a look at a process that waits for something would take as long as that likes",
        edits=(Edit(_SURVEY, "(now > self._latest or ", "("),),
        tests=(f"{_OUTRUN}::test_a_process_is_not_waited_for_as_long_as_it_likes",),
    ),
    Guard(
        name="look-exits",
        why="a process that hangs in its exit shows no files, and may have some",
        edits=(Edit(_SURVEY, "self._refused(pid, _EXITING)", "pass"),),
        tests=(f"{_OUTRUN}::test_a_process_that_exits_and_shows_no_files_is_a_gap",),
    ),
    Guard(
        name="look-settles",
        why="where processes come faster than they can be looked at, not everybody was seen",
        edits=(
            Edit(_SURVEY, "        for pid in new:\n", "        for pid in ():\n"),
            Edit(_SURVEY, "        for each in ended:\n", "        for each in ():\n"),
        ),
        tests=(f"{_OUTRUN}::test_what_never_settles_is_a_gap",),
    ),
    Guard(
        name="look-too-much",
        why="a process with too much to be read in time is a gap",
        edits=(
            Edit(_SURVEY, "self._refused(pid, _TOO_MUCH)", "pass"),
            Edit(_SURVEY, "_ProcessLook(unseen=_TOO_MUCH if self._extra else _NO_TIME)", "None"),
        ),
        tests=(f"{_OUTRUN}::test_many_open_files_of_others_are_a_gap_of_these_alone",),
    ),
    Guard(
        name="look-stuck",
        why="a few processes that give no answer hide nobody else",
        edits=(Edit(_VISITS, "_MOST = 64", "_MOST = 16"),),
        tests=(f"{_OUTRUN}::test_processes_that_give_no_answer_blind_nobody_to_another",),
    ),
    Guard(
        name="look-io-uring",
        why="a file that an io_uring has registered is open without a number",
        edits=(Edit(_GRIPS, "elif text == RING:", "elif False:"),),
        tests=(f"{_OUTRUN}::test_what_a_ring_has_is_seen_or_it_is_a_gap",),
    ),
    Guard(
        name="look-io-uring-untold",
        why="a ring that does not tell what it has may have the device",
        edits=(
            Edit(
                _OPEN_FILES,
                "    if place is None:\n        return None\n",
                "    if place is None:\n        return ()\n",
            ),
        ),
        tests=(f"{_OUTRUN}::test_what_a_ring_has_is_seen_or_it_is_a_gap",),
    ),
    Guard(
        name="look-enable-unread",
        why="a function may be in use whose enable cannot be read",
        edits=(
            Edit(
                _LOOK,
                "gaps=(*seen[device.name].gaps, *enabled[device.name].gaps),",
                "gaps=seen[device.name].gaps,",
            ),
        ),
        tests=(f"{_LOOKS}::test_an_enable_that_cannot_be_read_proves_nothing",),
    ),
    Guard(
        name="look-accel-mapped",
        why="an accel chip is in use also by memory of it that is mapped",
        edits=(
            Edit(
                _LOOK,
                "maps = all(device.kind is DeviceKind.ACCEL for device in devices)",
                "maps = False",
            ),
            Edit(
                _LOOK, "        if device.kind is DeviceKind.ACCEL:\n            return True\n", ""
            ),
        ),
        tests=(f"{_LOOKS}::test_an_accel_chip_that_is_only_mapped_is_in_use",),
    ),
    Guard(
        name="look-gaps",
        why="without a holder, a look that could not see everybody proves nothing",
        edits=(
            Edit(
                _FREE,
                "    if facts.gaps:\n        return unknown(",
                "    if False:\n        return unknown(",
            ),
        ),
        tests=(f"{_FREE_RULE}::test_the_kernel_shows_whether_somebody_uses_a_device",),
    ),
    Guard(
        name="look-maps-gaps",
        why="where mappings cannot be read that alone would show a use, nobody was seen not to have it",
        edits=(Edit(_LOOK, "            seen.update(dict.fromkeys(names, scan))\n", ""),),
        tests=(
            f"{_LOOKS}::test_mappings_that_cannot_be_read_are_a_gap_of_whom_only_they_would_show",
        ),
    ),
    Guard(
        name="look-busy-maps",
        why="who only has it mapped is looked for where a device is enabled, or may be",
        edits=(
            Edit(
                _LOOK, "return device.name in busy and not holders.get(device.name)", "return False"
            ),
        ),
        tests=(
            f"{_LOOKS}::test_who_only_has_it_mapped_is_looked_for_where_a_device_may_be_in_use",
        ),
    ),
    Guard(
        name="look-busy-unread",
        why="a device whose enable cannot be read may be",
        edits=(Edit(_LOOK, "if each.above or each.unread)", "if each.above)"),),
        tests=(
            f"{_LOOKS}::test_who_only_has_it_mapped_is_looked_for_where_a_device_may_be_in_use",
        ),
    ),
    Guard(
        name="look-holders-gaps",
        why="a look at the known holders alone sees nothing of all others",
        edits=(
            Edit(
                _USE,
                "                gaps=seen.facts.gaps,\n",
                "",
            ),
        ),
        tests=(f"{_MEMORY}::test_gaps_stay_gaps_while_the_known_holders_alone_are_looked_at",),
    ),
    Guard(
        name="look-unlisted",
        why="where the processes cannot be listed, nobody was seen not to have it",
        edits=(Edit(_HOLDERS, "failed = (str(error),)", "failed = ()"),),
        tests=(f"{_LOOKS}::test_where_processes_cannot_be_listed_nothing_is_free",),
    ),
    Guard(
        name="look-empty-list",
        why="a list without a process is that of no node",
        edits=(Edit(_SURVEY, "        if not now:\n", "        if False:\n"),),
        tests=(f"{_LOOKS}::test_where_processes_cannot_be_listed_nothing_is_free",),
    ),
    Guard(
        name="look-pid-anew",
        why="a pid is looked at again once it is another process's",
        edits=(Edit(_SURVEY, "if self._known.get(pid) != inode)", "if pid not in self._known)"),),
        tests=(
            f"{_OUTRUN}::test_a_pid_that_is_another_processs_since_the_others_were_listed_is_looked_at",
        ),
    ),
    Guard(
        name="look-born-last",
        why="of a chain of forks that is faster than a look the last one is looked at",
        edits=(Edit(_SURVEY, "        self._chase()\n", ""),),
        tests=(
            f"{_OUTRUN}::test_where_births_never_end_a_look_does_and_whoever_was_born_last_is_looked_at",
        ),
    ),
    Guard(
        name="look-lists",
        why="births without end keep no look going",
        edits=(Edit(_SURVEY, "_MOST_PASSES = 16", "_MOST_PASSES = 10**9"),),
        tests=(
            f"{_OUTRUN}::test_where_births_never_end_a_look_does_and_whoever_was_born_last_is_looked_at",
        ),
    ),
    Guard(
        name="look-time",
        why="nor does anything else for longer than others can wait",
        edits=(Edit(_SURVEY, "_LONGEST = 5.0", "_LONGEST = 1e9"),),
        tests=(f"{_OUTRUN}::test_who_comes_when_a_look_has_taken_too_long_is_a_gap",),
    ),
    Guard(
        name="look-granted-first",
        why="what a stranger has open takes no time from the pods that have the devices",
        edits=(Edit(_SURVEY, "return pod not in self._owners, size", "return True, size"),),
        tests=(
            f"{_OUTRUN}::test_of_those_that_have_much_open_the_owners_come_first_and_then_the_smallest",
        ),
    ),
    Guard(
        name="look-smallest-first",
        why="nor from those that have less open",
        edits=(
            Edit(
                _SURVEY,
                "return pod not in self._owners, size",
                "return pod not in self._owners, 0",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_of_those_that_have_much_open_the_owners_come_first_and_then_the_smallest",
        ),
    ),
    Guard(
        name="look-no-answer",
        why="a process that gives no answer about its files may have the device",
        edits=(Edit(_SURVEY, "            self._refused(pid, _LATE)\n", "            pass\n"),),
        tests=(f"{_OUTRUN}::test_a_process_that_gives_no_answer_about_its_files_is_a_gap",),
    ),
    Guard(
        name="look-takes",
        why="what one process takes out of another is in neither when both are looked at once",
        edits=(Edit(_SURVEY, " or (self.takes and self.uses is None)", ""),),
        tests=(f"{_OUTRUN}::test_what_one_takes_out_of_another_after_it_was_looked_at_is_found",),
    ),
    Guard(
        name="look-in-flight-again",
        why="two that pass a file to and fro are each without it, and without a message, when they are looked at",
        edits=(Edit(_SURVEY, "        self._glance()\n", ""),),
        tests=(f"{_OUTRUN}::test_what_comes_by_a_socket_after_its_process_was_looked_at_is_seen",),
    ),
    Guard(
        name="look-in-flight-taken",
        why="who has taken it by then has it",
        edits=(
            Edit(
                _SURVEY,
                "                    self._hiding[pid] = answer\n                if answer.uses is not None:\n                    self.found[pid] = answer.uses\n",
                "                    self._hiding[pid] = answer\n",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_who_has_a_socket_and_one_more_file_than_when_it_was_looked_at_is_looked_at_again",
        ),
    ),
    Guard(
        name="look-in-flight-count",
        why="who has more files than before may have taken it",
        edits=(
            Edit(
                _OPEN_FILES,
                "if self.files is not None and _size(self.folder) > self.files:",
                "if False:",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_a_table_with_a_socket_tells_of_a_file_that_came_since_and_of_none_that_went",
        ),
    ),
    Guard(
        name="look-in-flight-once",
        why="messages in many processes hide no other: there may be time for one more look at them, and no second",
        edits=(Edit(_SURVEY, "flights[pid] >= min(_OFTEN, looks)", "flights[pid] >= _OFTEN"),),
        tests=(
            f"{_OUTRUN}::test_messages_in_more_processes_than_can_be_looked_at_twice_again_are_gaps",
        ),
    ),
    Guard(
        name="look-in-flight-silent",
        why="who gives no answer any more has the messages that it had",
        edits=(Edit(_SURVEY, "for pid in (*answers, *unread):", "for pid in answers:"),),
        tests=(f"{_OUTRUN}::test_a_message_in_a_process_that_gives_no_answer_any_more_is_a_gap",),
    ),
    Guard(
        name="look-in-flight-much",
        why="so has who takes too long to be read again",
        edits=(
            Edit(
                _SURVEY,
                "shown = hiding[pid] if answer.unseen and not answer.hides else answer",
                "shown = answer",
            ),
        ),
        tests=(f"{_OUTRUN}::test_a_message_in_a_process_that_takes_long_to_read_is_a_gap",),
    ),
    Guard(
        name="look-exited-table",
        why="who has exited has nothing, though its table is that of any other that has",
        edits=(Edit(_GRIPS, " and self._has_files(pid)", ""),),
        tests=(
            f"{_HELD}::test_who_has_exited_has_nothing_of_what_another_had_that_has_exited_too",
        ),
    ),
    Guard(
        name="look-moves",
        why="a file that is never where it was listed may be the device",
        edits=(
            Edit(
                _GRIPS,
                '        use.unseen = "it opens and closes files faster than they can be looked at"\n',
                "",
            ),
        ),
        tests=(f"{_OUTRUN}::test_a_file_that_is_never_where_it_was_listed_is_a_gap",),
    ),
    Guard(
        name="look-moves-on",
        why="nor has one that a list does not have been closed: it may have moved on while the list was made",
        edits=(Edit(_GRIPS, "quiet = 2 if", "quiet = 1 if"),),
        tests=(f"{_OUTRUN}::test_a_file_that_moves_on_while_a_list_is_made_is_in_the_next_one",),
    ),
    Guard(
        name="look-moves-down",
        why="a list that has fewer files than the kernel counts has missed one that moved meanwhile",
        edits=(Edit(_GRIPS, "self._counts and has_more(folder, listed)", "False"),),
        tests=(
            f"{_OUTRUN}::test_a_file_that_moves_to_a_number_that_a_list_has_passed_is_seen_by_the_count",
        ),
    ),
    Guard(
        name="look-removed-maps",
        why="a node may be made anywhere, mapped privately, and removed",
        edits=(Edit(_MAPPINGS, "mapping.removed or named", "named"),),
        tests=(
            f"{_HELD}::TestOnATree::test_device_memory_of_a_node_that_was_made_elsewhere_and_is_gone_is_a_gap",
        ),
    ),
    Guard(
        name="look-moves-back",
        why="one that was closed when its number was asked for, and is back when its name is, was not looked at",
        edits=(
            Edit(
                _GRIPS,
                "or not _text(opened, name):\n                    return False\n",
                "or not _text(opened, name):\n                    return True\n",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_a_device_that_goes_to_and_fro_between_two_numbers_is_seen_at_each_look",
        ),
    ),
    Guard(
        name="look-io-uring-removed",
        why="a removed file of a ring is not what is called like it now",
        edits=(Edit(_GRIPS, "rdev = None if gone else self", "rdev = self"),),
        tests=(
            f"{_OUTRUN}::test_a_file_whose_name_is_that_of_a_removed_one_is_not_what_a_ring_has",
        ),
    ),
    Guard(
        name="look-io-uring-short",
        why="the last part of its name tells a device fd of a ring",
        edits=(Edit(_GRIPS, '{VFIO_DEVICE, VFIO_DEVICE.partition(b":")[2]}', "{VFIO_DEVICE}"),),
        tests=(f"{_OUTRUN}::test_a_device_fd_that_a_ring_has_is_one",),
    ),
    Guard(
        name="look-hidden",
        why="of an accel chip also the signs of what no process shows count",
        edits=(Edit(_LOOK, "hidden=maps,", "hidden=False,"),),
        tests=(f"{_LOOKS}::test_a_message_that_nobody_takes_may_have_an_accel_chip",),
    ),
    Guard(
        name="look-hidden-beside",
        why="also in a look that is at other devices as well",
        edits=(Edit(_LOOK, "maps=True, hidden=hidden, owners", "maps=True, hidden=False, owners"),),
        tests=(f"{_LOOKS}::test_a_message_that_nobody_takes_may_have_an_accel_chip",),
    ),
    Guard(
        name="look-granted",
        why="which pods have the devices is told by the locks on their hardware",
        edits=(Edit(_LOOK, "if lock.pod is not None and lock.keys & keys", "if lock.pod is None"),),
        tests=(
            f"{_LOOKS}::test_what_the_pod_that_has_the_device_has_open_is_read_before_what_others_have",
        ),
    ),
    Guard(
        name="look-granted-alone",
        why="who has other devices is looked at for no longer than any pod",
        edits=(
            Edit(
                _LOOK,
                "if lock.pod is not None and lock.keys & keys",
                "if lock.pod is not None",
            ),
        ),
        tests=(
            f"{_LOOKS}::test_what_the_pod_that_has_the_device_has_open_is_read_before_what_others_have",
        ),
    ),
    Guard(
        name="look-crowd",
        why="a pod with thousands of processes holds up nobody who waits for the look",
        edits=(
            Edit(
                _SURVEY,
                "if pod is not None and shares.are_used_up(pod):",
                "if pod is not None and shares.are_used_up(pod) is None:",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_of_a_pod_with_more_processes_than_can_be_looked_at_in_time_the_rest_is_a_gap",
        ),
    ),
    Guard(
        name="look-crowd-told",
        why="who is left out for that may have the device",
        edits=(Edit(_SURVEY, '            self.gaps.add(pid, "", reason)\n', ""),),
        tests=(
            f"{_OUTRUN}::test_who_is_born_in_a_pod_that_has_too_many_keeps_no_look_from_its_end",
        ),
    ),
    Guard(
        name="look-crowd-owner",
        why="of the pod that has the device all are looked at, however many",
        edits=(Edit(_SURVEY, "return None if pod in self._owners else pod", "return pod"),),
        tests=(
            f"{_OUTRUN}::test_of_a_pod_with_more_processes_than_can_be_looked_at_in_time_the_rest_is_a_gap",
        ),
    ),
    Guard(
        name="look-crowd-births",
        why="nor does one whose processes are born as fast as they are left out",
        edits=(
            Edit(
                _SURVEY,
                "            if not self._pass(new):\n                return True\n",
                "            self._pass(new)\n",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_who_is_born_in_a_pod_that_has_too_many_keeps_no_look_from_its_end",
        ),
    ),
    Guard(
        name="look-threads",
        why="a pod that leaves no room for one more thread does not end the daemon",
        edits=(
            Edit(_VISITS, "except RuntimeError as error:", "except ZeroDivisionError as error:"),
        ),
        tests=(f"{_OUTRUN}::test_where_no_thread_can_be_started_that_is_a_gap_and_no_end",),
    ),
    Guard(
        name="look-threads-met",
        why="who was met before that has the device",
        edits=(
            Edit(
                _HOLDERS,
                "            failed = (str(error),)\n",
                "            return Scan(gaps=(str(error),))\n",
            ),
        ),
        tests=(f"{_OUTRUN}::test_who_was_met_before_a_look_had_to_end_has_the_device",),
    ),
    Guard(
        name="look-crowd-waits",
        why="nor one whose processes give no answer",
        edits=(Edit(_VISITS, "min(patience, waits.most(at)) if at else patience", "patience"),),
        tests=(
            f"{_OUTRUN}::test_those_of_one_pod_that_give_no_answer_are_waited_for_no_longer_than_others_are_read",
        ),
    ),
    Guard(
        name="look-unread",
        why="who could not be read is known: such a holder has not let go",
        edits=(
            Edit(
                _LOOK,
                "                unread=seen[device.name].unread,\n",
                "",
            ),
        ),
        tests=(f"{_LOOKS}::test_who_cannot_be_read_is_named",),
    ),
    Guard(
        name="look-learn",
        why="the level at which a function was left enabled is learned where everybody was seen",
        edits=(
            Edit(
                _LOOK,
                "if opened is OpenOutcome.SUCCEEDED and learn:",
                "if opened is OpenOutcome.SUCCEEDED:",
            ),
        ),
        tests=(
            f"{_LOOKS}::TestLeftEnabled::test_it_is_not_learned_by_a_look_that_missed_somebody",
        ),
    ),
    Guard(
        name="look-open-idle",
        why="what is not enabled any more is not opened: a program may just start on it",
        edits=(
            Edit(
                _LOOK, "if not self._enabling(device).above or not are_groups", "if not are_groups"
            ),
        ),
        tests=(f"{_LOOKS}::TestLeftEnabled::test_what_is_not_enabled_any_more_is_left_alone",),
    ),
    Guard(
        name="look-open-group",
        why="what can be opened proves something only of a VFIO group",
        edits=(Edit(_LOOK, " or not are_groups(self._root, device.nodes):", ":"),),
        tests=(
            f"{_LOOKS}::TestLeftEnabled::test_where_the_group_cannot_be_opened_it_is_never_called_free",
        ),
    ),
    Guard(
        name="look-open-kind",
        why="the node of an accel chip is for one process: to open it would fail a program that starts",
        edits=(Edit(_LOOK, "if device.kind is not DeviceKind.VFIO:", "if False:"),),
        tests=(f"{_LOOKS}::test_only_a_vfio_group_is_opened_to_see_whether_it_can_be",),
    ),
    Guard(
        name="look-own-node",
        why="a function has a VFIO node of its own beside its group's",
        edits=(
            Edit(
                _LOOK,
                "            rdevs.update(self._sysfs.vfio_devices(address))\n",
                "            pass\n",
            ),
        ),
        tests=(f"{_LOOKS}::test_a_holder_of_a_functions_own_vfio_node_is_a_holder_of_the_device",),
    ),
    Guard(
        name="look-same-process",
        why="what a pid had is not that of the process that has the pid next",
        edits=(Edit(_SURVEY, " or not same()", ""),),
        tests=(
            f"{_HELD}::TestOnATree::test_what_a_pid_had_is_not_blamed_on_the_process_that_has_the_pid_next",
        ),
    ),
    Guard(
        name="look-follows",
        why="a process that lives has another folder in procfs after memory was short",
        edits=(
            Edit(
                _GRIPS,
                "            inode = os.fstat(kept).st_ino\n",
                "            inode = os.fstat(kept).st_ino\n            os.close(kept)\n"
                '            kept = os.open("/", os.O_PATH)\n',
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_one_that_lives_is_the_same_process_when_the_kernel_drops_its_folder",
        ),
    ),
    Guard(
        name="look-maps-left-out",
        why="whose mappings were not read because that could hang may have the device mapped",
        edits=(Edit(_GRIPS, 'use.unseen = "no answer in time of what it has mapped"', "pass"),),
        tests=(
            f"{_STUCK}::test_a_process_whose_mappings_cannot_be_read_is_a_gap_and_all_others_are_seen",
        ),
    ),
    Guard(
        name="look-born-last-found",
        why="of who was born last it counts what it has",
        edits=(
            Edit(
                _SURVEY,
                "                self.found[pid] = answer.uses\n                return\n\n    def _born",
                "                return\n\n    def _born",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_where_births_never_end_a_look_does_and_whoever_was_born_last_is_looked_at",
        ),
    ),
    Guard(
        name="look-hides-later",
        why="who may hide files is looked at again",
        edits=(
            Edit(
                _SURVEY,
                "            if answer.hides:\n                self._hiding[pid] = answer\n",
                "",
            ),
        ),
        tests=(f"{_OUTRUN}::test_a_process_that_exits_and_shows_no_files_is_a_gap",),
    ),
    Guard(
        name="look-sight",
        why="what the daemon itself lacks to see everybody is a gap",
        edits=(Edit(_HOLDERS, "gaps=(*self._sight.hides, *failed,", "gaps=(*failed,"),),
        tests=(f"{_HELD}::TestOnATree::test_a_foreign_pid_namespace_is_a_gap",),
    ),
    Guard(
        name="look-removed-mapped",
        why="so is a mapping of a removed file that may be the device",
        edits=(Edit(_HOLDERS, "*of_unread, *dict.fromkeys(survey.unexplained)),", "*of_unread),"),),
        tests=(
            f"{_HELD}::TestOnATree::test_a_mapping_of_a_removed_node_makes_the_scan_incomplete",
        ),
    ),
    Guard(
        name="look-alike",
        why="however many of one pod have a device, a holder of another pod is named",
        edits=(Edit(_HOLDERS, "alike = (device, each, where, kind)", "alike = (device, each)"),),
        tests=(
            f"{_HELD}::test_however_many_of_a_pod_have_a_device_another_pods_holder_is_told_of",
        ),
    ),
)
