/*
 * The shim of a container runtime, as far as a node can tell: a process of that name outside the
 * pod's cgroup, and the parent of whatever outlives the command that it ran.
 *
 *     containerd-shim-runsc-v1 FOLDER
 *
 * FOLDER stands in for /dev/vfio, for it and for what it runs. Each line of standard input is a
 * command for the shell; its end is answered by "DONE <exit status>", or 256 after a signal. At the
 * end of input the shim exits, and what it has started lives on.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t command_pid;
static volatile sig_atomic_t command_status;
static volatile sig_atomic_t command_ended;

/* A sandbox that ended is to be gone: runsc waits for that when it deletes one. */
static void reap(int unused)
{
	pid_t ended;
	int status;

	(void)unused;
	while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
		if (ended == command_pid) {
			command_status = status;
			command_ended = 1;
		}
}

static int run(const char *command)
{
	sigset_t child, before;

	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	command_ended = 0;
	command_pid = fork();
	if (command_pid == 0) {
		sigprocmask(SIG_SETMASK, &before, NULL);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	while (command_pid > 0 && !command_ended)
		sigsuspend(&before);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return command_pid > 0 && WIFEXITED(command_status) ? WEXITSTATUS(command_status) : 256;
}

int main(int argc, char **argv)
{
	struct sigaction reaping = { .sa_handler = reap, .sa_flags = SA_RESTART | SA_NOCLDSTOP };
	char line[4096];

	if (argc != 2 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount(argv[1], "/dev/vfio", NULL, MS_BIND, NULL) || prctl(PR_SET_CHILD_SUBREAPER, 1) ||
	    sigaction(SIGCHLD, &reaping, NULL)) {
		perror("containerd-shim-runsc-v1");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		printf("DONE %d\n", run(line));
	}
	return 0;
}
