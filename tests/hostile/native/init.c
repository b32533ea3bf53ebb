/* init COMMAND...: runs it as the first process of a PID namespace, and reaps what others leave. */
#include "attack.h"
int main(int count, char **words) {
  if (count < 2) return 2;
  pid_t child = fork();
  if (!child) {
    execvp(words[1], words + 1);
    _exit(127);
  }
  for (;;) {
    int status;
    pid_t dead = waitpid(-1, &status, 0);
    if (dead == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    if (dead < 0 && errno == ECHILD) return 3;
  }
}
