/* tied COMMAND...: runs it, and has the kernel end it when who started it ends, however that happens. */
#include "attack.h"

int main(int count, char **words) {
  pid_t parent = getppid();
  if (count < 2 || prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent) return 2;
  execvp(words[1], words + 1);
  return 127;
}
