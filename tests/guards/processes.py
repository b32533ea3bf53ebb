"""The guards of what is read of one process: what it has open or mapped, and whose child it is."""

from guards.guard import Edit, Guard

_GRIPS = "daemon/holdfast/host/proc/grips.py"
_MAPPED = "daemon/holdfast/host/proc/mappings.py"
_VISITS = "daemon/holdfast/host/proc/visits.py"
_PROCFS = "daemon/holdfast/host/proc/procfs.py"
_OUTRUN = "tests/contract/test_scans_not_outrun.py"
_HELD = "tests/contract/test_host_holders.py"
_STUCK = "tests/contract/test_stuck_processes.py"
_PARENTS = "tests/contract/test_host_parents.py"
_MACHINES = "tests/contract/test_host_machines.py"
_SIGNALS = "tests/integration/test_signals_hit_nobody_else.py"

PROCESS_GUARDS = (
    Guard(
        name="open-threads",
        why="a thread can have open files of its own, and has them when its leader has exited",
        edits=(
            Edit(
                _GRIPS,
                "        self._other_tables(folder, pid, use, compare=not careful, exited=exited, beat=beat)\n",
                "",
            ),
        ),
        tests=(
            f"{_HELD}::TestOnRealProcesses::test_threads_of_a_leader_that_exited_are_looked_at",
            f"{_HELD}::TestOnRealProcesses::test_a_thread_with_a_file_table_of_its_own_is_found_by_any_look",
        ),
    ),
    Guard(
        name="open-thread-exits",
        why="one that hangs in its exit shows no files, and may have some",
        edits=(
            Edit(
                _GRIPS,
                '                self._note_exit(f"{folder}/task/{thread}", thread, names, use)\n',
                "",
            ),
        ),
        tests=(
            f"{_OUTRUN}::test_a_thread_with_files_of_its_own_that_exits_and_shows_none_is_a_gap",
        ),
    ),
    Guard(
        name="open-same-table",
        why="what one had is not what a process has that shares files with the next of its pid",
        edits=(Edit(_GRIPS, "if same and self._folder(other) == inode and", "if same and"),),
        tests=(
            f"{_HELD}::test_what_a_process_had_is_not_that_of_one_that_shares_files_with_the_next_of_its_pid",
        ),
    ),
    Guard(
        name="open-ring-roots",
        why="of who share all files the rings are looked at in the root of each",
        edits=(Edit(_GRIPS, "if use.has_rings or inode is None:", "if inode is None:"),),
        tests=(f"{_HELD}::test_the_files_of_a_ring_are_told_apart_in_each_processs_own_root",),
    ),
    Guard(
        name="open-refused",
        why="a device that a security module does not show is one that is not seen",
        edits=(
            Edit(_GRIPS, '            if text.startswith(b"/dev/"):\n', "            if False:\n"),
        ),
        tests=(f"{_HELD}::TestOnATree::test_an_open_device_that_cannot_be_looked_at_is_a_gap",),
    ),
    Guard(
        name="open-ring-gone",
        why="so is a removed file that a ring has",
        edits=(
            Edit(
                _GRIPS,
                '                    use.unseen = f"its io_uring has {name}, which is gone: it cannot be told apart"\n',
                "                    pass\n",
            ),
        ),
        tests=(f"{_OUTRUN}::test_what_a_ring_has_is_seen_or_it_is_a_gap",),
    ),
    Guard(
        name="open-ring-named",
        why="and one of which an old kernel tells the last part of the name",
        edits=(
            Edit(
                _GRIPS,
                '                use.unseen = "its io_uring has a file with the name of a device"\n',
                "                pass\n",
            ),
        ),
        tests=(f"{_OUTRUN}::test_the_last_part_of_a_devices_name_is_all_that_old_kernels_tell",),
    ),
    Guard(
        name="open-device-fd",
        why="a device fd whose function the kernel does not tell is somebody's all the same",
        edits=(
            Edit(
                _GRIPS,
                "        use.unnamed.add(Grip.DEVICE_FD)\n        use.unnamed_fds += 1\n\n    def _mappings",
                "        use.unnamed_fds += 1\n\n    def _mappings",
            ),
        ),
        tests=(f"{_HELD}::TestOnATree::test_a_device_fd_without_any_node_is_unattributed",),
    ),
    Guard(
        name="open-more-fds",
        why="group nodes explain no more device fds than they have functions",
        edits=(Edit(_GRIPS, "if self.unnamed_fds <= sum(self.groups.values()):", "if True:"),),
        tests=(
            f"{_HELD}::TestOnATree::test_more_device_fds_than_the_open_nodes_explain_stay_unattributed",
        ),
    ),
    Guard(
        name="mapped-vfio",
        why="a mapping of a VFIO device is a use of it",
        edits=(Edit(_GRIPS, "            use.unnamed.add(Grip.MAPPED)\n", "            pass\n"),),
        tests=(
            f"{_HELD}::TestOnATree::test_the_mappings_of_an_exited_leader_are_read_from_a_thread",
        ),
    ),
    Guard(
        name="mapped-exited",
        why="of a process whose leader has exited a thread shows the mappings",
        edits=(
            Edit(
                _GRIPS,
                "        if found is None:  # the leader has exited",
                "        if False:  # the leader has exited",
            ),
        ),
        tests=(
            f"{_HELD}::TestOnATree::test_the_mappings_of_an_exited_leader_are_read_from_a_thread",
        ),
    ),
    Guard(
        name="mapped-same",
        why="what is at a path now need not be what was mapped by it",
        edits=(
            Edit(
                _MAPPED,
                "same = at is not None and (at.filesystem, at.inode) == mapping.file",
                "same = at is not None",
            ),
        ),
        tests=(
            f"{_HELD}::TestOnATree::test_what_is_at_a_path_now_need_not_be_what_was_mapped_by_it",
        ),
    ),
    Guard(
        name="mapped-left",
        why="what cannot be told apart is a gap",
        edits=(
            Edit(
                _MAPPED,
                "                    self._leave_unexplained(pid, each.path)\n",
                "                    pass\n",
            ),
        ),
        tests=(
            f"{_HELD}::TestOnATree::test_device_memory_of_a_removed_node_is_a_gap_and_is_told_in_plain_letters",
        ),
    ),
    Guard(
        name="mapped-root",
        why="a process may have been given a node that its own root does not show",
        edits=(
            Edit(
                _MAPPED,
                "            at = self._numbers.file_at(bytes(self._root.node(os.fsdecode(mapping.path))))\n",
                "            pass\n",
            ),
        ),
        tests=(
            f"{_HELD}::TestOnATree::test_a_mapped_node_is_looked_for_on_the_node_where_the_processs_root_does_not_show_it",
        ),
    ),
    Guard(
        name="visit-unread",
        why="who gives no answer at all is named",
        edits=(
            Edit(
                _VISITS,
                "                self.unread.append(pid)\n            return None",
                "            return None",
            ),
            Edit(
                _VISITS,
                "                self.unread.append(pid)\n            else:",
                "                pass\n            else:",
            ),
        ),
        tests=(
            f"{_STUCK}::test_one_that_cannot_even_be_looked_at_carefully_is_left_out_for_as_long_as_it_hangs",
        ),
    ),
    Guard(
        name="visit-waits",
        why="many that hang for a moment each would keep all others waiting",
        edits=(Edit(_VISITS, " or self.waits.left <= 0", ""),),
        tests=(f"{_STUCK}::test_once_a_look_has_waited_enough_the_rest_is_looked_at_carefully",),
    ),
    Guard(
        name="visit-starved",
        why="on a busy node a thread that waits for a processor would pass for one that hangs",
        edits=(
            Edit(_VISITS, 'return not stat.rpartition(b") ")[2].startswith(b"R")', "return True"),
        ),
        tests=(f"{_STUCK}::test_what_a_look_waits_for_a_processor_takes_none_of_its_time",),
    ),
    Guard(
        name="visit-again",
        why="who gave no answer is looked at once more, for what cannot hang",
        edits=(
            Edit(
                _VISITS,
                "                self._left.append((pid, True))\n",
                "                pass\n",
            ),
        ),
        tests=(
            f"{_STUCK}::test_a_process_whose_mappings_cannot_be_read_is_a_gap_and_all_others_are_seen",
        ),
    ),
    Guard(
        name="parent-kernel",
        why="a kernel thread without a parent is not init, whose children are orphans",
        edits=(
            Edit(
                _PROCFS,
                "init = parent.ppid == 0 and not parent.kernel_thread",
                "init = parent.ppid == 0",
            ),
        ),
        tests=(f"{_PARENTS}::test_a_kernel_thread_without_a_parent_is_not_init",),
    ),
    Guard(
        name="parent-reused",
        why="the parent of who has a pid now is not that of who had it",
        edits=(
            Edit(
                _PROCFS,
                "if now is None or now.process != child.process or now.ppid == child.ppid:",
                "if now is None or now.ppid == child.ppid:",
            ),
        ),
        tests=(f"{_PARENTS}::test_of_a_pid_that_was_given_away_meanwhile_no_parent_is_told",),
    ),
    Guard(
        name="shim-apart-unread",
        why="a child whose mounts cannot be read may be a container",
        edits=(
            Edit(
                _PROCFS,
                "return theirs is None or theirs !=",
                "return theirs is not None and theirs !=",
            ),
        ),
        tests=(
            f"{_PARENTS}::test_a_shim_is_who_has_a_child_in_other_mounts_and_is_in_no_container",
        ),
    ),
    Guard(
        name="shim-moved",
        why="a container can be moved out of its pod's cgroup",
        edits=(
            Edit(
                _PROCFS,
                " for child in children[pid] | procfs.children(pid))",
                " for child in children[pid])",
            ),
        ),
        tests=(f"{_PARENTS}::test_a_child_counts_also_where_it_was_moved_out_of_the_pod",),
    ),
    Guard(
        name="shim-namespace-unread",
        why="who may be in the node's own pid namespace may be a shim",
        edits=(Edit(_PROCFS, "in {None, INIT_PID_NAMESPACE}]", "== INIT_PID_NAMESPACE]"),),
        tests=(
            f"{_PARENTS}::test_a_shim_is_who_has_a_child_in_other_mounts_and_is_in_no_container",
        ),
    ),
    Guard(
        name="machine-refused",
        why="a process whose files cannot be listed may run a virtual machine",
        edits=(
            Edit(
                _PROCFS,
                '            raise HostError(f"cannot list {folder}: {error.strerror}") from error\n        if any',
                "            return False\n        if any",
            ),
        ),
        tests=(
            f"{_SIGNALS}::test_a_process_that_may_run_a_machine_for_all_that_can_be_read_is_spared",
        ),
    ),
    Guard(
        name="machine-long",
        why="so may one that has more mapped than is read",
        edits=(
            Edit(
                _PROCFS,
                "        except OSError:\n            return None\n        return None\n\n    def uid",
                "        except OSError:\n            return None\n        return False\n\n    def uid",
            ),
        ),
        tests=(f"{_MACHINES}::test_more_mappings_than_are_read_are_no_answer",),
    ),
)
