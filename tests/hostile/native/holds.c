/* holds NAME NUMBER NODE...: keeps the first node in one way that is hard to see, or hard to end. */
#include "attack.h"

static int fd;

static void *in_a_table_of_its_own(void *path) {
  unshare(CLONE_FILES);
  open_node(path);
  tell("holds");
  rest();
}

static void *lives_on(void *unused) {
  (void)unused;
  usleep(50000); /* until the leader has gone */
  tell("holds");
  rest();
}

static void thread(void *(*what)(void *), void *argument) {
  pthread_t made;
  pthread_create(&made, NULL, what, argument);
}

static void in_flight(int levels) {
  int carried = fd;
  for (int level = 0; level < levels; level++) {
    int ends[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    send_fd(ends[0], carried);
    close(carried);
    if (level + 1 < levels) close(ends[0]);
    carried = ends[1];
  }
}

/* Beside processes that have another file in a message each. */
static void in_flight_among(long others) {
  for (long at = 0; at < others; at++) {
    pid_t one = fork();
    if (one < 0) skip("fork");
    if (one) continue;
    close(fd);
    fd = open("/dev/null", O_RDWR);
    in_flight(1);
    rest();
  }
  in_flight(1);
}

static void mapped(void) {
  if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) == MAP_FAILED) skip("map the node");
  close(fd);
}

static void ignore_all(void) {
  for (int number = 1; number < NSIG; number++) signal(number, SIG_IGN);
}

int main(int count, char **words) {
  if (count < 4) return 2;
  const char *kind = words[1];
  long number = atol(words[2]);
  char *path = words[3];
  if (!strcmp(kind, "again")) { /* executed anew, with the node open already */
    if (number) prctl(PR_SET_NAME, "x) Z 1 1\n\033[2J");
    tell("holds");
    rest();
  }
  signal(SIGHUP, SIG_IGN);
  if (!strcmp(kind, "thread-table")) {
    thread(in_a_table_of_its_own, path);
    rest();
  }
  if (!strcmp(kind, "reopened")) { /* by way of a descriptor that is no open file */
    int way = open(path, O_PATH);
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", way);
    fd = open_node(name);
    close(way);
  } else if (!strcmp(kind, "path-only")) {
    if (open(path, O_PATH) < 0) skip("open a path");
    tell("set");
    rest();
  } else {
    fd = strncmp(kind, "mapped", 6) ? open_node(path) : open_in_own_dev(path);
  }
  if (!strcmp(kind, "leader-gone")) {
    thread(lives_on, NULL);
    syscall(SYS_exit, 0); /* the leader alone */
  }
  if (!strcmp(kind, "ring")) {
    ring_with(&fd, 1);
    close(fd);
  }
  if (!strcmp(kind, "in-flight")) in_flight((int)number);
  if (!strcmp(kind, "in-flight-among")) in_flight_among(number);
  if (!strcmp(kind, "mapped")) mapped();
  if (!strcmp(kind, "mapped-late")) { /* behind many other mappings */
    for (long at = 0; at < number; at++)
      if (mmap(NULL, 4096, at % 2 ? PROT_READ : PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
    mapped();
  }
  if (!strcmp(kind, "undumpable")) prctl(PR_SET_DUMPABLE, 0);
  if (!strcmp(kind, "other-user") && (setgid(65534) || setuid(65534))) skip("be another user");
  if (!strcmp(kind, "stopped")) {
    tell("holds");
    raise(SIGSTOP);
    rest();
  }
  if (!strcmp(kind, "ignores")) ignore_all();
  if (!strcmp(kind, "vfork")) { /* the parent has it, and waits in the kernel for its child */
    tell("holds");
    if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0) {
      close(fd);
      rest();
    }
    rest();
  }
  if (!strcmp(kind, "chroot")) {
    char folder[200];
    snprintf(folder, sizeof folder, "%s/root-XXXXXX", getenv("TMPDIR"));
    if (!mkdtemp(folder) || chroot(folder) || chdir("/")) skip("change the root");
  }
  if (!strcmp(kind, "pid-namespace")) {
    if (unshare(CLONE_NEWPID | CLONE_NEWNS)) skip("make a PID namespace");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) skip("make a mount namespace");
    if (fork()) {
      close(fd);
      rest();
    }
    if (mount("proc", "/proc", "proc", 0, NULL)) skip("mount its own /proc");
  }
  if (!strcmp(kind, "user-namespace") && unshare(CLONE_NEWUSER | CLONE_NEWPID)) skip("make a user namespace");
  if (!strcmp(kind, "hidden-mounts")) {
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) skip("make a mount namespace");
    if (umount2("/proc", MNT_DETACH) || umount2("/dev/pts", MNT_DETACH)) skip("take mounts away");
  }
  if (!strcmp(kind, "names")) { /* to be read as other fields, other lines, other colours */
    execl("/proc/self/exe", "x\033[2J\n0::/\n", "again", "1", "\033]0;owned\a\n\xff\xfe", NULL);
  }
  if (!strcmp(kind, "long-words")) { /* 2 MiB of arguments */
    char *word = malloc(120001), **many = calloc((size_t)number + 5, sizeof *many);
    memset(word, 'x', 120000);
    word[120000] = 0;
    many[0] = "holds", many[1] = "again", many[2] = "0", many[3] = "-";
    for (long at = 0; at < number; at++) many[4 + at] = word;
    execve("/proc/self/exe", many, many + 4);
    skip("execute with long arguments");
  }
  if (!strcmp(kind, "deleted-program")) {
    char copy[200], bytes[65536];
    snprintf(copy, sizeof copy, "%s/program-XXXXXX", getenv("TMPDIR"));
    int from = open("/proc/self/exe", O_RDONLY), to = mkstemp(copy);
    for (ssize_t got; (got = read(from, bytes, sizeof bytes)) > 0;)
      if (write(to, bytes, (size_t)got) != got) skip("copy the program");
    fchmod(to, 0700);
    close(to);
    int child = fork();
    if (!child) {
      execl(copy, copy, "again", "0", "-", NULL);
      _exit(3);
    }
    close(fd);
    usleep(300000);
    unlink(copy);
    rest();
  }
  if (!strcmp(kind, "deleted-node")) { /* opened by another name, which is gone */
    struct stat facts;
    char name[200];
    fstat(fd, &facts);
    close(fd);
    snprintf(name, sizeof name, "%s/node-%d", getenv("TMPDIR"), getpid());
    if (mknod(name, S_IFCHR | 0600, facts.st_rdev)) skip("make a node");
    fd = open_node(name);
    unlink(name);
  }
  tell("holds");
  rest();
}
