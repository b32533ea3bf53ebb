/*
 * A kernel that answers with errors, for a program that has this preloaded.
 *
 * $FAULTY_KERNEL is mapped. It has how many of 65536 calls fail; a seed; 16 errors; and how the
 * paths begin that it is about. What is opened there is about it too, and so is every pidfd.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct order {
	unsigned rate, seed;
	int errors[16];
	char path[4000];
} *order;
static char opened[1 << 16];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAILS(folder, path) (is_about(folder, path) && fails())

__attribute__((constructor)) static void begin(void)
{
	int fd = REAL(open64)(getenv("FAULTY_KERNEL"), O_RDWR | O_CLOEXEC);
	order = mmap(NULL, sizeof(*order), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (order == MAP_FAILED)
		abort();
	close(fd);
}

static int is_about(int folder, const char *path)
{
	if (path[0] == '/')
		return !strncmp(path, order->path, strlen(order->path));
	return opened[folder & 0xffff];
}

static int fails(void)
{
	if (rand_r(&order->seed) % 65536 >= (int)order->rate)
		return 0;
	errno = order->errors[rand_r(&order->seed) % 16];
	return 1;
}

int open64(const char *path, int flags, ...)
{
	int fd, about = is_about(-1, path);
	va_list more;

	va_start(more, flags);
	fd = about && fails() ? -1 : REAL(open64)(path, flags, va_arg(more, int));
	va_end(more);
	if (fd >= 0)
		opened[fd & 0xffff] = about;
	return fd;
}

#define ANSWER(type, failed, name, folder, path, parameters, arguments) \
	type name parameters { return FAILS(folder, path) ? failed : REAL(name) arguments; }

ANSWER(int, -1, stat64, -1, path, (const char *path, struct stat64 *to), (path, to))
ANSWER(int, -1, lstat64, -1, path, (const char *path, struct stat64 *to), (path, to))
ANSWER(int, -1, fstatat64, in, path, (int in, const char *path, struct stat64 *to, int how), (in, path, to, how))
ANSWER(int, -1, statx, in, path,
       (int in, const char *restrict path, int how, unsigned what, struct statx *restrict to), (in, path, how, what, to))
ANSWER(ssize_t, -1, readlink, -1, path, (const char *path, char *to, size_t size), (path, to, size))
ANSWER(ssize_t, -1, readlinkat, in, path, (int in, const char *path, char *to, size_t size), (in, path, to, size))
ANSWER(ssize_t, -1, read, fd, "", (int fd, void *to, size_t size), (fd, to, size))
ANSWER(struct dirent64 *, NULL, readdir64, dirfd(folder), "", (DIR *folder), (folder))

DIR *opendir(const char *path)
{
	int about = is_about(-1, path);
	DIR *found = about && fails() ? NULL : REAL(opendir)(path);

	if (found)
		opened[dirfd(found) & 0xffff] = about;
	return found;
}

/* Python's way to pidfd_open(2) and pidfd_send_signal(2). */
long syscall(long number, ...)
{
	long all[6], at;
	va_list more;

	va_start(more, number);
	for (at = 0; at < 6; at++)
		all[at] = va_arg(more, long);
	va_end(more);
	if ((number == SYS_pidfd_open || number == SYS_pidfd_send_signal) && fails())
		return -1;
	return REAL(syscall)(number, all[0], all[1], all[2], all[3], all[4], all[5]);
}

int close(int fd)
{
	opened[fd & 0xffff] = 0;
	return REAL(close)(fd);
}
