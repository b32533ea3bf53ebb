/* init COMMAND...: runs it as the child of the first process of a PID namespace, which reaps what others leave. */
#include "attack.h"
int main(int count, char **words) {
  int ends[2], status = 3 << 8;
  if (count < 2 || pipe2(ends, O_CLOEXEC)) return 2;
  if (!fork()) {
    pid_t child = fork();
    if (!child) {
      execvp(words[1], words + 1);
      _exit(127);
    }
    waitpid(child, &status, 0);
    _exit(write(ends[1], &status, sizeof status) < 0);
  }
  /* The kernel reaps at once: a loop here has to share the processors with what ends. */
  signal(SIGCHLD, SIG_IGN);
  close(ends[1]);
  if (read(ends[0], &status, sizeof status) < 0) return 2;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
