/* chains NAME MICROSECONDS NODE: the node is always open, and never long in one process, thread or number. */
#include "attack.h"
#include <linux/types.h>

static long pause_us;
static int node;
static char **arguments;

static void wait_a_little(void) {
  if (pause_us) usleep(pause_us);
}

/* Each process forks its heir and ends. "-" as the node: there is none, only the births. */
static void by_fork(int kind) {
  for (;;) {
    wait_a_little();
    pid_t heir = kind == 's' ? (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0) : fork();
    if (heir > 0 && kind == 'd') { /* daemonises: two forks and a new session */
      _exit(0);
    }
    if (heir > 0) _exit(0);
    if (heir < 0) usleep(100);
    if (heir == 0 && kind == 'd') {
      setsid();
      pid_t second = fork();
      if (second > 0) _exit(0);
      if (second == 0 && chdir("/")) _exit(1);
    }
  }
}

static void by_number(void) {
  int at = node;
  for (unsigned long turn = 0;; turn++) {
    int next = 200 + (int)(turn % 2000);
    if (next == at) next++;
    dup2(at, next);
    close(at);
    at = next;
    wait_a_little();
  }
}

/* All numbers stay open, with another file: what is listed is right, and none is closed. */
static void among_numbers(int many) {
  int other = open("/dev/null", O_RDONLY), first = 100, at = first;
  for (int number = 0; number < many; number++) dup2(other, first + number);
  dup2(node, at);
  close(node);
  for (;;) {
    int next = first + rand() % many;
    if (next == at) continue;
    dup2(at, next);
    dup2(other, at);
    at = next;
    wait_a_little();
  }
}

/* Each thread has a table of its own with the node, starts the next thread and ends. */
static void *thread_step(void *at) {
  int fd = (int)(intptr_t)at;
  if (unshare(CLONE_FILES)) _exit(2);
  wait_a_little();
  pthread_attr_t kind;
  pthread_t next;
  pthread_attr_init(&kind);
  pthread_attr_setdetachstate(&kind, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&kind, 65536);
  while (pthread_create(&next, &kind, thread_step, (void *)(intptr_t)fd)) usleep(100);
  usleep(200); /* the heir's copy of the table is made when it unshares */
  return NULL;
}

/* A socket's two ends in two processes: the node is in flight most of the time, or *held* by one of them. */
static void by_message(int held) {
  int ends[2];
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  int mine = fork() ? 0 : 1;
  close(ends[!mine]);
  if (mine == 0) send_fd(ends[0], node);
  close(node);
  for (;;) {
    int fd = take_fd(ends[mine]);
    if (held) wait_a_little();
    send_fd(ends[mine], fd);
    close(fd);
    if (!held) wait_a_little();
  }
}

/* Two processes: each takes the file out of the other, which then closes it. */
static void by_pidfd(void) {
  int ends[2];
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  pid_t parent = getpid(), child = fork();
  int other_fd = (int)syscall(SYS_pidfd_open, child ? child : parent, 0);
  int end = ends[child ? 0 : 1], fd = -1, number;
  if (!child) close(node);
  if (child) {
    fd = node;
    if (write(end, &fd, sizeof fd) < 0) _exit(2);
  }
  for (;;) {
    if (read(end, &number, sizeof number) != sizeof number) _exit(2);
    if (number < 0) { /* it has been taken */
      close(fd);
      continue;
    }
    fd = (int)syscall(SYS_pidfd_getfd, other_fd, number, 0);
    if (fd < 0) _exit(3);
    int taken = -1;
    if (write(end, &taken, sizeof taken) < 0) _exit(2);
    wait_a_little();
    if (write(end, &fd, sizeof fd) < 0) _exit(2);
  }
}

/* Only the mapping is handed on: no process has the file open. */
static void map_and_close(void) {
  void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, node, 0);
  if (at == MAP_FAILED) skip("map the node");
  close(node);
}

static void by_exec(void) {
  char number[16], wait[24];
  snprintf(number, sizeof number, "%d", node);
  snprintf(wait, sizeof wait, "%ld", pause_us);
  wait_a_little();
  execl("/proc/self/exe", arguments[0], "exec-on", wait, number, NULL);
  _exit(3);
}

int main(int count, char **words) {
  if (count < 4) return 2;
  const char *kind = words[1];
  pause_us = atol(words[2]);
  arguments = words;
  if (!strcmp(kind, "exec-on")) {
    node = atoi(words[3]);
    by_exec();
  }
  signal(SIGCHLD, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  int births = !strcmp(kind, "births");
  if (!strcmp(kind, "mapping")) {
    node = open_in_own_dev(words[3]);
    map_and_close();
  } else if (!births) {
    node = open_node(words[3]);
  }
  tell(births ? "set" : "holds");
  if (!strcmp(kind, "births"))
    for (int more = 0; more < 7; more++)
      if (!fork()) break;
  if (!strcmp(kind, "fork") || !strcmp(kind, "births") || !strcmp(kind, "mapping") || !strcmp(kind, "daemonise") ||
      !strcmp(kind, "shared-table")) {
    by_fork(*kind == 'd' ? 'd' : *kind == 's' ? 's' : 'f');
  }
  if (!strcmp(kind, "number")) by_number();
  if (!strcmp(kind, "numbers")) among_numbers(200);
  if (!strcmp(kind, "message")) by_message(0);
  if (!strcmp(kind, "message-held")) by_message(1);
  if (!strcmp(kind, "pidfd")) by_pidfd();
  if (!strcmp(kind, "exec")) by_exec();
  if (!strcmp(kind, "thread")) {
    pthread_t first;
    pthread_create(&first, NULL, thread_step, (void *)(intptr_t)node);
    unshare(CLONE_FILES);
    usleep(2000);
    close(node);
    rest();
  }
  return 2;
}
