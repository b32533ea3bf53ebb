/* What all attackers share. Each is started by enter.c, in its cgroup, and says when it is set. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* One line, read once: "holds", "set" (it holds no device), or "skip: why". */
static inline void tell(const char *line) { dprintf(1, "%s\n", line); }

static inline void skip(const char *what) {
  dprintf(1, "skip: cannot %s: %s\n", what, strerror(errno));
  _exit(0);
}

static inline void __attribute__((noreturn)) rest(void) {
  for (;;) pause();
}

static inline int open_node(const char *path) {
  int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) skip("open the node");
  fcntl(fd, F_SETFD, 0);
  return fd;
}

/* As a container has it: the node's number at /dev/accel0, in mounts of its own. */
static inline int open_in_own_dev(const char *path) {
  struct stat facts;
  if (stat(path, &facts)) skip("find the node");
  if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) skip("make a mount namespace");
  if (mount("dev", "/dev", "tmpfs", 0, NULL)) skip("mount its own /dev");
  if (mknod("/dev/accel0", S_IFCHR | 0600, facts.st_rdev)) skip("make a node");
  return open_node("/dev/accel0");
}

static inline void raise_files(void) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static inline int ring_with(const int *files, unsigned count) {
  struct io_uring_params parameters;
  memset(&parameters, 0, sizeof parameters);
  int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
  if (ring < 0) skip("set up an io_uring");
  if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, files, count)) skip("register files");
  return ring;
}

static inline void send_fd(int socket, int fd) {
  char room[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(head), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) < 0) _exit(2);
}

static inline int take_fd(int socket) {
  char room[CMSG_SPACE(sizeof(int))] = {0}, byte;
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  int fd = -1;
  if (recvmsg(socket, &message, 0) < 1 || !CMSG_FIRSTHDR(&message)) _exit(2);
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}
