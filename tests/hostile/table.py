"""The attacks. Each has a line that says what it attacks; a review's own have its letter."""

from hostile.attack import Attack, Place

_IN_FLIGHT = "files are in messages on its unix sockets"
_EXITS = "it exits, and may have files that are not closed yet"
_RING = "it has an io_uring, and what that has registered is not read"

_HIDES: tuple[Attack, ...] = (
    Attack(
        name="plain",
        on="nothing: one process has it open",
        run=("holds", "plain", "0"),
    ),
    Attack(
        name="former-plain",
        on="nothing: a process that the pod left behind has it open",
        run=("holds", "plain", "0"),
        place=Place.FORMER,
    ),
    Attack(
        name="fork-300us",
        on="the list of a cgroup's processes: each has ended when it is read",
        run=("chains", "fork", "300"),
        place=Place.FORMER,
        seconds=8.0,
        origin="B3: cg_hop.py, hop.c, test_re_hop_cg.py",
    ),
    Attack(
        name="fork-20ms",
        on="the same, slower",
        run=("chains", "fork", "20000"),
        place=Place.FORMER,
        origin="B3: test_re_hop_cg.py",
    ),
    Attack(
        name="fork-300us-outside",
        on="the list of all processes: the heir is born after it",
        run=("chains", "fork", "300"),
        origin="B3: scan_hop.py, test_re_hop.py",
    ),
    Attack(
        name="fork-20ms-outside",
        on="the same, slower",
        run=("chains", "fork", "20000"),
        origin="B3: scan_hop.py, test_re_hop.py",
    ),
    Attack(
        name="daemonises",
        on="the same, with new sessions and parents",
        run=("chains", "daemonise", "5000"),
    ),
    Attack(
        name="shared-table",
        on="the same, where parent and child have one table of files",
        run=("chains", "shared-table", "3000"),
    ),
    Attack(
        name="exec-chain",
        on="the reading of a process in the middle of execve",
        run=("chains", "exec", "1000"),
    ),
    Attack(
        name="number",
        on="the list of a process's files: the number is another when it is read",
        run=("chains", "number", "0"),
        untold="it opens and closes files faster than they can be looked at",
        origin="B3: hop.c, test_re_hop.py",
    ),
    Attack(
        name="numbers",
        on="the same: 200 numbers stay open, and the node is at another one each 50 us",
        run=("chains", "numbers", "50"),
        wins=True,
    ),
    Attack(
        name="thread-chain",
        on="the list of threads: each has its own table, and ends soon",
        run=("chains", "thread", "3000"),
    ),
    Attack(
        name="message-chain",
        on="files in flight between two processes",
        run=("chains", "message", "200"),
        untold=_IN_FLIGHT,
    ),
    Attack(
        name="message-chain-held",
        on="the same, and whoever takes the file has it open for a while",
        run=("chains", "message-held", "200"),
        untold=_IN_FLIGHT,
    ),
    Attack(
        name="pidfd-chain",
        on="files taken out of another process by pidfd_getfd",
        run=("chains", "pidfd", "500"),
    ),
    Attack(
        name="thread-table",
        on="the leader's files: a thread has its own",
        run=("holds", "thread-table", "0"),
    ),
    Attack(
        name="leader-gone",
        on="the leader's files: it has exited, a thread lives",
        run=("holds", "leader-gone", "0"),
    ),
    Attack(
        name="former-leader-gone",
        on="the same in the pod that is over",
        run=("holds", "leader-gone", "0"),
        place=Place.FORMER,
    ),
    Attack(
        name="ring",
        on="open files: it is registered with an io_uring, and closed",
        run=("holds", "ring", "0"),
        untold=_RING,
        origin="B4: uring.c, uring_test.py, test_re_hop.py",
    ),
    Attack(
        name="former-ring",
        on="the same in the pod that is over",
        run=("holds", "ring", "0"),
        place=Place.FORMER,
    ),
    Attack(
        name="in-flight",
        on="open files: it is in a message that nobody takes",
        run=("holds", "in-flight", "1"),
        untold=_IN_FLIGHT,
    ),
    Attack(
        name="in-flight-twice",
        on="the same, in a message whose socket is in a message",
        run=("holds", "in-flight", "2"),
        untold=_IN_FLIGHT,
    ),
    Attack(
        name="in-flight-among",
        on="a second look at those with messages: 1,000 processes have some",
        run=("holds", "in-flight-among", "1000"),
        untold=_IN_FLIGHT,
    ),
    Attack(
        name="former-in-flight",
        on="the same in the pod that is over",
        run=("holds", "in-flight", "1"),
        place=Place.FORMER,
    ),
    Attack(
        name="mapped",
        on="open files: it is mapped privately, by a node in its own /dev, and closed",
        run=("holds", "mapped", "0"),
        mappable=True,
    ),
    Attack(
        name="mapped-late",
        on="the same, behind 60,000 other mappings",
        run=("holds", "mapped-late", "60000"),
        mappable=True,
    ),
    Attack(
        name="mapping-chain",
        on="the same, handed on by fork each 20 ms",
        run=("chains", "mapping", "20000"),
        mappable=True,
    ),
    Attack(
        name="deleted-node",
        on="names: opened by a node of its own, which is removed",
        run=("holds", "deleted-node", "0"),
        mappable=True,
    ),
    Attack(
        name="reopened",
        on="names: opened by /proc/self/fd of an O_PATH descriptor",
        run=("holds", "reopened", "0"),
    ),
    Attack(
        name="path-only",
        on="open files: O_PATH opens no device, so nobody waits for it",
        run=("holds", "path-only", "0"),
    ),
    Attack(name="vfork", on="a process that waits in vfork", run=("holds", "vfork", "0")),
    Attack(
        name="undumpable",
        on="the right to look: PR_SET_DUMPABLE 0",
        run=("holds", "undumpable", "0"),
    ),
    Attack(name="other-user", on="the right to look", run=("holds", "other-user", "0")),
    Attack(name="chroot", on="names: its root is an empty folder", run=("holds", "chroot", "0")),
    Attack(
        name="pid-namespace",
        on="numbers: it is process 1 of a namespace of its own",
        run=("holds", "pid-namespace", "0"),
    ),
    Attack(
        name="user-namespace",
        on="the right to look: it is root of a namespace of its own",
        run=("holds", "user-namespace", "0"),
    ),
    Attack(
        name="hidden-mounts",
        on="names: /proc and /dev/pts are not mounted for it",
        run=("holds", "hidden-mounts", "0"),
    ),
    Attack(
        name="names",
        on="parsers: escapes, brackets and line ends in comm and arguments",
        run=("holds", "names", "0"),
    ),
    Attack(
        name="long-words",
        on="parsers: 2 MiB of arguments and environment",
        run=("holds", "long-words", "8"),
    ),
    Attack(
        name="deleted-program",
        on="names: its program is removed",
        run=("holds", "deleted-program", "0"),
    ),
)

_MOVES: tuple[Attack, ...] = (
    Attack(
        name="cgroup-hop",
        on="the walk through a pod's cgroups: between two of them each 1 ms",
        run=("cgroups", "between", "1000"),
        place=Place.FORMER,
    ),
    Attack(
        name="cgroup-deep",
        on="the same: 40 levels down",
        run=("cgroups", "deep", "40"),
        place=Place.FORMER,
    ),
    Attack(
        name="cgroup-many",
        on="the same: the last of 1,000",
        run=("cgroups", "many", "1000"),
        place=Place.FORMER,
    ),
    Attack(
        name="cgroup-20000",
        on="the same: the last of 20,000, and it is to be ended",
        run=("cgroups", "many", "20000"),
        place=Place.FORMER,
        mode="terminate",
        seconds=30.0,
    ),
    Attack(
        name="cgroup-deepest",
        on="the same: where no path leads, for it would be longer than 4 KiB",
        run=("cgroups", "deepest", "20"),
        place=Place.FORMER,
        mode="terminate",
        seconds=5.0,
    ),
    Attack(
        name="cgroup-churn",
        on="the same, while 100 are made and removed",
        run=("cgroups", "churn", "100"),
        place=Place.FORMER,
    ),
    Attack(
        name="cgroup-threaded",
        on="the list of processes: a threaded cgroup has none",
        run=("cgroups", "threaded", "0"),
        place=Place.FORMER,
    ),
    Attack(
        name="cgroup-left",
        on="the pod's cgroup: it has left it, with the device",
        run=("cgroups", "leaves", "0"),
        place=Place.FORMER,
    ),
)

_LASTS: tuple[Attack, ...] = (
    Attack(
        name="leader-gone-ended",
        on="the end of what a pod left: cgroup.kill does not reach it, its first thread has exited",
        run=("holds", "leader-gone", "0"),
        place=Place.FORMER,
        mode="terminate",
        seconds=5.0,
    ),
    Attack(
        name="ignores-signals",
        on="the same: it ignores every signal",
        run=("holds", "ignores", "0"),
        place=Place.FORMER,
        mode="terminate",
    ),
    Attack(
        name="stopped",
        on="the same: SIGSTOP",
        run=("holds", "stopped", "0"),
        place=Place.FORMER,
        mode="terminate",
    ),
    Attack(
        name="frozen",
        on="the same: its cgroup is frozen",
        run=("cgroups", "frozen", "0"),
        place=Place.FORMER,
        mode="terminate",
    ),
    Attack(
        name="bomb-300",
        on="the same: 300 processes, each a new one every 2 ms",
        run=("floods", "bomb", "300", "1"),
        place=Place.FORMER,
        mode="terminate",
        seconds=5.0,
    ),
    Attack(
        name="former-chain-ended",
        on="the same: handed on by fork each 300 us",
        run=("chains", "fork", "300"),
        place=Place.FORMER,
        mode="terminate",
        seconds=5.0,
    ),
    Attack(
        name="orphans-1000",
        on="the same: 1,000 processes, of which one has it",
        run=("floods", "orphans", "1000", "1"),
        place=Place.FORMER,
        mode="terminate",
        seconds=6.0,
        origin="B2: members_cost.py, test_re_emfile.py",
    ),
    Attack(
        name="files-left-240000",
        on="the look at what a pod left: 12 processes with 19,900 files",
        run=("floods", "files", "19900", "12"),
        place=Place.FORMER,
        mode="terminate",
        seconds=6.0,
        origin="B2: test_re_manyfds.py, machine_cost.py",
    ),
    Attack(
        name="files-forced-1200000",
        on="one look for all pods: 60 processes with 19,900 files, deleted by force",
        run=("floods", "files", "19900", "60"),
        place=Place.FORMER,
        mode="terminate",
        seconds=8.0,
        forced=True,
        origin="B2: test_re_lane.py",
    ),
)

_FLOODS: tuple[Attack, ...] = (
    Attack(
        name="files-5000000",
        on="the look at open files: 250 processes with 19,900 each",
        run=("floods", "files", "19900", "250"),
        seconds=8.0,
        origin="B1: fds.c, fds_scan.py, test_re_flood.py",
    ),
    Attack(
        name="files-1000000-in-one",
        on="the same in one process",
        run=("floods", "files", "1000000", "1"),
        seconds=6.0,
        origin="B1",
    ),
    Attack(
        name="births",
        on="a list that is read until nothing new comes: 8 chains of forks without a pause",
        run=("chains", "births", "0", "-"),
        nodes=0,
        seconds=6.0,
    ),
    Attack(
        name="processes-10000",
        on="the look at all processes",
        run=("floods", "processes", "10000", "1"),
        seconds=8.0,
    ),
    Attack(
        name="zombies-10000",
        on="the same: they have ended, and their parent reaps nobody",
        run=("floods", "zombies", "10000", "1"),
        nodes=0,
        seconds=6.0,
    ),
    Attack(
        name="threads-10000",
        on="the look at threads",
        run=("floods", "threads", "10000", "0"),
        seconds=5.0,
    ),
    Attack(
        name="tables-2000",
        on="the same: 2,000 threads, each with its own table of 1,000 files",
        run=("floods", "threads", "2000", "1000"),
        seconds=5.0,
    ),
    Attack(
        name="mappings-1500000",
        on="the look at mappings: 25 processes with 60,000",
        run=("floods", "mappings", "60000", "25"),
        seconds=6.0,
    ),
    Attack(
        name="rings-450000",
        on="the look at rings: 30 with 15,000 registered files",
        run=("floods", "rings", "15000", "30"),
        seconds=5.0,
    ),
    Attack(
        name="ring-paths",
        on="memory: a ring with 1,000 registered files, each with a path of 100 KiB",
        run=("floods", "ring-paths", "1000", "400"),
    ),
    Attack(
        name="burners",
        on="the processor: 8 processes that never wait",
        run=("floods", "burners", "8", "1"),
        seconds=4.0,
    ),
    Attack(
        name="connections",
        on="the HTTP server: three processes that connect and hang up",
        run=("connections", "flood", "{port}"),
        nodes=0,
        seconds=4.0,
        origin="test_re_http.py",
    ),
    Attack(
        name="holders-2000",
        on="memory: 2,000 processes with 8 devices, each named as another virtual machine, asked for each second",
        run=("floods", "holders", "2000", "1"),
        nodes=8,
        chips=10,
        seconds=8.0,
        asks=True,
        origin="B7: test_re_mem.py",
    ),
    Attack(
        name="holders-20000",
        on="the same: 20,000 processes",
        run=("floods", "holders", "20000", "1"),
        nodes=8,
        chips=10,
        seconds=20.0,
        asks=True,
        origin="B7: mem_holders.py, test_re_mem.py",
    ),
)

_HANGS: tuple[Attack, ...] = (
    Attack(
        name="arguments-20",
        on="command lines: 20 holders called exe, whose arguments are in a file that does not answer",
        run=("frozenfiles", "arguments", "20"),
        seconds=5.0,
        origin="B6: argv_stuck.py",
    ),
    Attack(
        name="frozen-files-1",
        on="open files: one of a file system that does not answer",
        run=("frozenfiles", "only", "1"),
    ),
    Attack(
        name="frozen-files-20",
        on="the same in 20 processes, which are then looked at less closely",
        run=("frozenfiles", "holds", "20"),
        seconds=5.0,
        origin="B5: careful.py",
    ),
    Attack(
        name="frozen-exit",
        on="a process that hangs in its exit with the device: it has no list of files any more",
        run=("frozenfiles", "exits", "1"),
        untold=_EXITS,
    ),
    Attack(
        name="former-frozen-exit",
        on="the same in the pod that is over",
        run=("frozenfiles", "exits", "1"),
        place=Place.FORMER,
        mode="terminate",
    ),
)

ATTACKS = _HIDES + _MOVES + _LASTS + _HANGS + _FLOODS
SHORT = ("former-plain", "thread-table", "former-leader-gone", "cgroup-hop", "ignores-signals")
"""Those of `make test`."""
