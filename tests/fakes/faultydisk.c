/*
 * A disk that fails, for a program that has this preloaded.
 *
 * It is about the files below $FAULTY_DISK_UNDER. A file in the folder $FAULTY_DISK switches a fault
 * on while it is there:
 *
 *   dead       each write and each sync fails with EIO
 *   full       each write fails with ENOSPC, and so does each request for room
 *   read-only  each write fails with EROFS
 *   hanging    each sync waits until the fault is gone
 *   deaf       each write is reported as done, and nothing is written
 *   nameless   each rename and each link fails with EIO
 *   forgetful  what is read past the kernel's cache is zeros: the disk has kept nothing
 *
 * With $FAULTY_DISK_SYNCED, each sync that succeeds leaves there what the file had at that moment: what
 * a power failure would leave of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int on(const char *fault)
{
	char path[PATH_MAX];
	const char *folder = getenv("FAULTY_DISK");

	if (!folder)
		return 0;
	snprintf(path, sizeof(path), "%s/%s", folder, fault);
	return access(path, F_OK) == 0;
}

/* The path of an open file below the folder that this is about, or NULL. */
static const char *ours(int fd, char *path)
{
	char link[64];
	const char *under = getenv("FAULTY_DISK_UNDER");
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, PATH_MAX - 1);
	if (length < 0 || !under)
		return NULL;
	path[length] = 0;
	return strncmp(path, under, strlen(under)) == 0 ? path : NULL;
}

static void keep_what_is_synced(int fd, const char *path)
{
	char to[PATH_MAX], data[1 << 16];
	const char *folder = getenv("FAULTY_DISK_SYNCED"), *name = strrchr(path, '/');
	ssize_t (*in)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
	off_t at = 0;
	ssize_t count;
	FILE *file;

	if (!folder || !name)
		return;
	snprintf(to, sizeof(to), "%s%s", folder, name);
	file = fopen(to, "w");
	if (!file)
		abort();
	while ((count = in(fd, data, sizeof(data), at)) > 0) {
		if (fwrite(data, 1, count, file) != (size_t)count)
			abort();
		at += count;
	}
	fclose(file);
}

static int synced(int fd, const char *call)
{
	char path[PATH_MAX];
	int (*real)(int) = dlsym(RTLD_NEXT, call);
	int is_ours = ours(fd, path) != NULL, failed;

	while (is_ours && on("hanging"))
		usleep(10000);
	if (is_ours && on("dead")) {
		errno = EIO;
		return -1;
	}
	failed = real(fd);
	if (is_ours && !failed)
		keep_what_is_synced(fd, path);
	return failed;
}

int fsync(int fd)
{
	return synced(fd, "fsync");
}

int fdatasync(int fd)
{
	return synced(fd, "fdatasync");
}

/* The error that a write to this file meets; -1: it is not written and reported as done. */
static int fault_of_write(int fd)
{
	char path[PATH_MAX];

	if (!ours(fd, path))
		return 0;
	return on("dead") ? EIO : on("full") ? ENOSPC : on("read-only") ? EROFS : on("deaf") ? -1 : 0;
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at)
{
	ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
	int fault = fault_of_write(fd);

	if (fault > 0) {
		errno = fault;
		return -1;
	}
	return fault ? (ssize_t)count : real(fd, data, count, at);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
	return pwrite64(fd, data, count, at);
}

int posix_fallocate64(int fd, off64_t at, off64_t length)
{
	int (*real)(int, off64_t, off64_t) = dlsym(RTLD_NEXT, "posix_fallocate64");
	int fault = fault_of_write(fd);

	return fault > 0 ? fault : real(fd, at, length);
}

int posix_fallocate(int fd, off_t at, off_t length)
{
	return posix_fallocate64(fd, at, length);
}

static int nameless(const char *to)
{
	const char *under = getenv("FAULTY_DISK_UNDER");

	return under && strncmp(to, under, strlen(under)) == 0 && on("nameless");
}

int rename(const char *from, const char *to)
{
	int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");

	if (nameless(to)) {
		errno = EIO;
		return -1;
	}
	return real(from, to);
}

int link(const char *from, const char *to)
{
	int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "link");

	if (nameless(to)) {
		errno = EIO;
		return -1;
	}
	return real(from, to);
}

/* As Python reads: the name that glibc has for preadv2 with large offsets. */
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags)
{
	ssize_t (*real)(int, const struct iovec *, int, off64_t, int) = dlsym(RTLD_NEXT, "preadv64v2");
	char path[PATH_MAX];
	ssize_t length = real(fd, parts, count, at, flags);

	if (length > 0 && count == 1 && fcntl(fd, F_GETFL) & O_DIRECT && ours(fd, path) && on("forgetful"))
		memset(parts[0].iov_base, 0, length);
	return length;
}
