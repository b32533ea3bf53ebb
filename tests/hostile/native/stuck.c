/* stuck PIPE NODE FILE: has the node, is called "exe", and its arguments are a page of a file that nobody reads. */
#include "attack.h"

static int told;
static char *file;

/* The page is on the first thread's stack, which therefore rests. */
static void *hide(void *words) {
  void *page = (void *)((uintptr_t)words & ~4095UL);
  int from = open(file, O_RDONLY);
  if (from < 0 || mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, from, 0) != page) _exit(1);
  if (write(told, "!", 1) != 1) _exit(1);
  rest();
}

int main(int count, char **words) {
  if (count < 4) return 2;
  told = atoi(words[1]);
  open_node(words[2]);
  file = strdup(words[3]);
  prctl(PR_SET_NAME, "exe");
  pthread_t made;
  pthread_create(&made, NULL, hide, words[0]);
  rest();
}
