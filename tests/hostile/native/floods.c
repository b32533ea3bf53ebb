/* floods NAME NUMBER TIMES NODE...: much of one thing, so that whoever looks at it takes long. */
#include "attack.h"

static void births(long times) {
  for (long at = 1; at < times; at++) {
    pid_t child = fork();
    if (child < 0) skip("fork so often");
    if (!child) rest();
  }
}

/* The same, each called as virtual machines are, and no two alike. */
static void births_of_machines(long times) {
  char name[16];
  for (long at = 1; at < times; at++) {
    pid_t child = fork();
    if (child < 0) skip("fork so often");
    if (child) continue;
    snprintf(name, sizeof name, "qemu-%ld", at);
    prctl(PR_SET_NAME, name);
    rest();
  }
}

/* A file whose path has 252 bytes for each folder, on a filesystem that ends with this process. */
static int file_below(long folders) {
  char name[252] = {0};
  memset(name, 'd', sizeof name - 1);
  const char *top = getenv("TMPDIR");
  if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) skip("make a mount namespace");
  if (mount("deep", top, "tmpfs", 0, NULL) || chdir(top)) skip("mount a filesystem of its own");
  for (long at = 0; at < folders; at++)
    if (mkdir(name, 0700) || chdir(name)) skip("make so many folders");
  int fd = open("file", O_RDWR | O_CREAT, 0600);
  if (fd < 0) skip("make a file");
  return fd;
}

static void *idle(void *own_table) {
  if (own_table) unshare(CLONE_FILES);
  rest();
}

int main(int count, char **words) {
  if (count < 4) return 2;
  const char *kind = words[1];
  long number = atol(words[2]), times = atol(words[3]);
  signal(SIGCHLD, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  raise_files();
  int pipes[2];
  if (pipe(pipes)) skip("make a pipe");
  if (!strcmp(kind, "files")) {
    for (long at = 5; at < number; at++)
      if (dup(pipes[0]) < 0) skip("open so many files (the hard limit of open files is lower)");
    births(times);
  } else if (!strcmp(kind, "processes")) {
    births(number);
  } else if (!strcmp(kind, "zombies")) { /* they have ended, and nobody reaps them */
    signal(SIGCHLD, SIG_DFL);
    for (long at = 0; at < number; at++) {
      pid_t child = fork();
      if (child < 0) skip("fork so often");
      if (!child) _exit(0);
    }
  } else if (!strcmp(kind, "holders")) {
    for (int at = 4; at < count; at++) open_node(words[at]);
    births_of_machines(number);
    tell("holds");
    rest();
  } else if (!strcmp(kind, "orphans")) { /* the first has the node, and all are init's */
    if (count > 4) open_node(words[4]);
    for (long at = 0; at < number; at++)
      if (!fork()) {
        if (!fork()) rest();
        _exit(0);
      }
    tell("holds");
    rest();
  } else if (!strcmp(kind, "threads")) { /* with so many files; each thread may have its own table */
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    for (long at = 0; at < times; at++)
      if (dup(pipes[0]) < 0) skip("open so many files");
    for (long at = 0; at < number; at++) {
      pthread_t made;
      if (pthread_create(&made, &small, idle, times ? &small : NULL)) skip("start so many threads");
    }
  } else if (!strcmp(kind, "mappings")) {
    for (long at = 0; at < number; at++)
      if (mmap(NULL, 4096, at % 2 ? PROT_READ : PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
    births(times);
  } else if (!strcmp(kind, "rings")) { /* rings with long tables of registered files */
    int *files = malloc((size_t)number * sizeof *files);
    for (long at = 0; at < number; at++) files[at] = pipes[0];
    for (long at = 0; at < times; at++) ring_with(files, (unsigned)number);
  } else if (!strcmp(kind, "ring-paths")) { /* one file, so many folders down, registered so often */
    int *files = malloc((size_t)number * sizeof *files), fd = file_below(times);
    for (long at = 0; at < number; at++) files[at] = fd;
    ring_with(files, (unsigned)number);
  } else if (!strcmp(kind, "burners")) {
    for (long at = 1; at < number; at++)
      if (!fork()) break;
    tell("set");
    for (volatile unsigned long turn = 0;; turn++) {}
  } else if (!strcmp(kind, "bomb")) { /* bounded: never more than so many at a time */
    open_node(words[4]);
    tell("holds");
    for (long at = 1; at < number; at++)
      if (!fork()) break;
    for (;;) {
      usleep(2000);
      pid_t heir = fork();
      if (heir > 0) _exit(0);
    }
  } else {
    return 2;
  }
  tell("set");
  rest();
}
