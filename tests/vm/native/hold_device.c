/*
 * Holds VFIO devices in the ways that programs do, step by step.
 *
 *     hold_device [-o] [-c CGROUP_FOLDER]... GROUP:ADDRESS[,GROUP:ADDRESS...]|- STEP...
 *
 * -o goes on in a child whose parent ends, so that init becomes its parent; -c moves the process into
 * a cgroup. Each STEP of the command line is done,
 * then one line "READY <pid>" is printed; from then on each line of standard input is one more step,
 * answered by "OK <step>". A step that fails prints "FAILED <step> <errno name or number>" (and ends
 * the program with 3 when it came from the command line). At the end of input the program exits, so
 * that it never outlives the test that started it, except for a process made by `fork`.
 *
 * Steps, each for every group or device named:
 *   container group attach device map     open, set the container and its IOMMU, get the device fds,
 *                                         map the first page of BAR 0
 *   close-container close-group close-device unmap
 *   send        put the device fds in flight over a socket that nobody reads, and close them
 *   fork        a child that inherits everything, ignores the end of input and lives until a signal;
 *               prints "CHILD <pid>"
 *   leader-exit the first thread ends, another one goes on (no step may follow on the command line)
 *   kvm         let a virtual machine's kernel side keep the groups' files
 *   unbind=ADDR ask the kernel to unbind a function, which blocks while somebody else holds it
 *   uid=N       become this user
 *   ignore-term
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/kvm.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 8
#define PAGE 4096
#define MAX_STEP 64

struct held {
	char group[16];
	char address[32];
	int group_fd; /* shared with an earlier entry of the same group */
	int device_fd;
	void *page;
};

static struct held held[MOST];
static int count;
static int container = -1;
static int flight[2] = { -1, -1 };

static int first_of_group(int index)
{
	for (int i = 0; i < index; i++)
		if (!strcmp(held[i].group, held[index].group))
			return i;
	return index;
}

static int open_groups(void)
{
	char path[sizeof "/dev/vfio/" + sizeof held[0].group];

	for (int i = 0; i < count; i++) {
		int first = first_of_group(i);

		if (first != i) {
			held[i].group_fd = held[first].group_fd;
			continue;
		}
		snprintf(path, sizeof path, "/dev/vfio/%.15s", held[i].group);
		held[i].group_fd = open(path, O_RDWR | O_CLOEXEC);
		if (held[i].group_fd < 0)
			return -1;
	}
	return 0;
}

static int attach(void)
{
	for (int i = 0; i < count; i++)
		if (first_of_group(i) == i &&
		    ioctl(held[i].group_fd, VFIO_GROUP_SET_CONTAINER, &container))
			return -1;
	return ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU);
}

static int get_devices(void)
{
	for (int i = 0; i < count; i++) {
		held[i].device_fd = ioctl(held[i].group_fd, VFIO_GROUP_GET_DEVICE_FD, held[i].address);
		if (held[i].device_fd < 0)
			return -1;
	}
	return 0;
}

static int map_bars(void)
{
	for (int i = 0; i < count; i++) {
		struct vfio_region_info region = { .argsz = sizeof region,
						   .index = VFIO_PCI_BAR0_REGION_INDEX };

		if (ioctl(held[i].device_fd, VFIO_DEVICE_GET_REGION_INFO, &region))
			return -1;
		held[i].page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, held[i].device_fd,
				    region.offset);
		if (held[i].page == MAP_FAILED)
			return -1;
	}
	return 0;
}

static int close_groups(void)
{
	for (int i = 0; i < count; i++)
		if (first_of_group(i) == i && close(held[i].group_fd))
			return -1;
	return 0;
}

static int close_devices(void)
{
	for (int i = 0; i < count; i++)
		if (close(held[i].device_fd))
			return -1;
	return 0;
}

static int unmap_bars(void)
{
	for (int i = 0; i < count; i++)
		if (munmap(held[i].page, PAGE))
			return -1;
	return 0;
}

static int send_devices(void)
{
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, flight))
		return -1;
	for (int i = 0; i < count; i++) {
		char control[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
		struct iovec text = { &byte, 1 };
		struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control,
					  .msg_controllen = sizeof control };
		struct cmsghdr *part = CMSG_FIRSTHDR(&message);

		part->cmsg_level = SOL_SOCKET;
		part->cmsg_type = SCM_RIGHTS;
		part->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(part), &held[i].device_fd, sizeof(int));
		if (sendmsg(flight[0], &message, 0) != 1)
			return -1;
	}
	return close_devices();
}

static int fork_child(void)
{
	pid_t child = fork();

	if (child < 0)
		return -1;
	if (child == 0) {
		/* The pipes belong to the parent: keeping one open would hide the parent's end. */
		close(STDIN_FILENO);
		close(STDOUT_FILENO);
		for (;;)
			pause();
	}
	printf("CHILD %d\n", child);
	return 0;
}

static int give_to_kvm(void)
{
	struct kvm_create_device device = { .type = KVM_DEV_TYPE_VFIO };
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	int machine = kvm < 0 ? -1 : ioctl(kvm, KVM_CREATE_VM, 0);

	if (machine < 0 || ioctl(machine, KVM_CREATE_DEVICE, &device))
		return -1;
	for (int i = 0; i < count; i++) {
		struct kvm_device_attr add = { .group = KVM_DEV_VFIO_GROUP,
					       .attr = KVM_DEV_VFIO_GROUP_ADD,
					       .addr = (unsigned long)&held[i].group_fd };

		if (first_of_group(i) == i && ioctl(device.fd, KVM_SET_DEVICE_ATTR, &add))
			return -1;
	}
	return 0;
}

static int unbind(const char *address)
{
	int fd = open("/sys/bus/pci/drivers/vfio-pci/unbind", O_WRONLY | O_CLOEXEC);

	return fd < 0 || write(fd, address, strlen(address)) < 0 ? -1 : close(fd);
}

static int become(const char *number)
{
	uid_t uid = (uid_t)atoi(number);

	if (setgroups(0, NULL) || setgid(uid) || setuid(uid))
		return -1;
	/* As a program that this user started: else its files in /proc would stay root's. */
	return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

static int step(const char *name)
{
	if (!strcmp(name, "container"))
		return (container = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC)) < 0 ? -1 : 0;
	if (!strcmp(name, "group"))
		return open_groups();
	if (!strcmp(name, "attach"))
		return attach();
	if (!strcmp(name, "device"))
		return get_devices();
	if (!strcmp(name, "map"))
		return map_bars();
	if (!strcmp(name, "unmap"))
		return unmap_bars();
	if (!strcmp(name, "close-container"))
		return close(container);
	if (!strcmp(name, "close-group"))
		return close_groups();
	if (!strcmp(name, "close-device"))
		return close_devices();
	if (!strcmp(name, "send"))
		return send_devices();
	if (!strcmp(name, "fork"))
		return fork_child();
	if (!strcmp(name, "kvm"))
		return give_to_kvm();
	if (!strncmp(name, "unbind=", 7))
		return unbind(name + 7);
	if (!strncmp(name, "uid=", 4))
		return become(name + 4);
	if (!strcmp(name, "ignore-term"))
		return signal(SIGTERM, SIG_IGN) == SIG_ERR ? -1 : 0;
	errno = ENOSYS;
	return -1;
}

static int do_step(const char *name)
{
	errno = 0;
	int result = step(name);

	if (result)
		printf("FAILED %s %s\n", name, strerrorname_np(errno));
	return result;
}

static void *serve(void *unused)
{
	char line[MAX_STEP];

	(void)unused;
	printf("READY %d\n", getpid());
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!do_step(line))
			printf("OK %s\n", line);
	}
	exit(0);
}

static void enter_cgroup(const char *folder)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/cgroup.procs", folder);
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "0", 1) != 1) {
		printf("FAILED cgroup %s\n", strerrorname_np(errno));
		exit(3);
	}
	close(fd);
}

static void leave_parent(void)
{
	pid_t parent = getpid(), child = fork();

	if (child < 0)
		exit(3);
	if (child > 0)
		_exit(0);
	while (getppid() == parent)
		usleep(1000);
}

int main(int argc, char **argv)
{
	int at = 1, leader_exits = 0;
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (at < argc && !strcmp(argv[at], "-o")) {
		leave_parent();
		at++;
	}
	for (; at + 1 < argc && !strcmp(argv[at], "-c"); at += 2)
		enter_cgroup(argv[at + 1]);
	if (at >= argc)
		return 2;
	for (char *part = strtok(argv[at], ","); part && count < MOST; part = strtok(NULL, ",")) {
		if (!strcmp(part, "-"))
			break;
		if (sscanf(part, "%15[0-9]:%31s", held[count].group, held[count].address) != 2)
			return 2;
		count++;
	}
	while (++at < argc) {
		if (!strcmp(argv[at], "leader-exit"))
			leader_exits = 1;
		else if (do_step(argv[at]))
			return 3;
	}
	if (!leader_exits)
		serve(NULL);
	if (pthread_create(&thread, NULL, serve, NULL))
		return 3;
	pthread_exit(NULL);
}
