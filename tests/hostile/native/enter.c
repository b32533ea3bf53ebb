/* enter PROGRAM WORDS...: starts it as an orphan of the first process, once it is in its cgroup. */
#include "attack.h"

int main(int count, char **words) {
  char go;
  if (count < 2 || read(0, &go, 1) != 1) return 2;
  if (fork()) return 0;
  setsid();
  if (fork()) return 0;
  execvp(words[1], words + 1);
  skip("start the attack");
}
