/* SPDX-License-Identifier: Apache-2.0 */
/* A process that does what it is told, line by line: the test says what, and "ok" comes back when it is done.
 *
 *   serve     the main thread listens        worker    another thread listens, the main thread waits
 *   pidns     a new pid namespace's init listens; its pid outside is printed first
 *   clone N   as process N, once that number is free; otherwise as serve
 *   many N    N children wait for their standard input to end, or to be killed; prints their pids, then "PID STATUS" as each is reaped
 *   pause     says "ready" and waits
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t handled;
static int to_main[2];
static char self[4096]; /* /proc/self/exe is gone with the main thread */

static void say(const char *format, long value)
{
	char line[64];
	int n = snprintf(line, sizeof(line), format, value);

	if (write(1, line, n) != n)
		_exit(99);
}

static void on_signal(int sig) { handled = sig; }
static void *nothing(void *arg) { return arg; }

static void seccomp_on_getppid(unsigned action)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		_exit(98);
	syscall(SYS_getppid);
}

static void *seccomp_thread(void *arg)
{
	seccomp_on_getppid(SECCOMP_RET_KILL_THREAD);
	return arg;
}

static int signal_mask(int how, int sig)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, sig);
	return pthread_sigmask(how, &set, 0);
}

static void do_exec(void)
{
	char *argv[] = { "victim", "serve", 0 };

	execv(self, argv);
	_exit(97);
}

static void act(char what, long n)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	pthread_t thread;
	pid_t pid, parent = getpid();
	char *memory;
	char path[64], state;
	FILE *f;

	switch (what) {
	case 'p': break; /* are you there? */
	case 'i': signal(n, SIG_IGN); break;
	case 'h': signal(n, on_signal); break;
	case 'd': signal(n, SIG_DFL); break;
	case 'b': signal_mask(SIG_BLOCK, n); break;
	case 'u': signal_mask(SIG_UNBLOCK, n); break;
	case 'x': exit(n);
	case 'X': syscall(SYS_exit, n); break; /* this thread alone */
	case 's': pthread_create(&thread, 0, nothing, 0); pthread_join(thread, 0); break;
	case 'E': /* the main thread alone ends */
		if (write(to_main[1], &n, sizeof(n)) != sizeof(n))
			_exit(96);
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
		do {
			state = 0;
			if ((f = fopen(path, "r"))) {
				if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
					state = 0;
				fclose(f);
			}
		} while (state && state != 'Z' && state != 'X');
		break;
	case 'a': abort();
	case 'g': *(volatile int *)0 = 1; break;
	case 'r': raise(n); break;
	case 'k': kill(getpid(), n); break;
	case 'f': /* a child kills us */
		if ((pid = fork()) == 0) {
			kill(getppid(), n);
			_exit(0);
		}
		waitpid(pid, 0, 0);
		break;
	case 'F': /* a child that waits */
		if ((pid = fork()) == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() == parent) /* who may have died before the line above */
				for (;;)
					pause();
			_exit(0);
		}
		break;
	case 'P': { /* a child by posix_spawn */
		char *argv[] = { "victim", "pause", 0 };

		if (posix_spawn(&pid, self, 0, 0, argv, 0))
			_exit(95);
		say("child %ld\n", pid);
		break;
	}
	case 'V': /* stays in vfork until the child is gone */
		if (vfork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			say("child %ld\n", syscall(SYS_getpid));
			for (;;)
				pause();
		}
		break;
	case 'e': do_exec(); break;
	case 'S': seccomp_on_getppid(SECCOMP_RET_KILL_PROCESS); break;
	case 'R': pthread_create(&thread, 0, seccomp_thread, 0); pthread_join(thread, 0); break;
	case 'm': /* memory, n megabytes, all touched */
	case 'c': /* the same, and core dumps allowed */
		if (what == 'c')
			setrlimit(RLIMIT_CORE, &unlimited);
		memory = mmap(0, n << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			_exit(94);
		memset(memory, 0x5a, n << 20);
		break;
	case 'w': /* was signal n handled? */
		while (handled != n)
			sched_yield();
		break;
	default: _exit(93);
	}
}

static void serve(void)
{
	char line[32];
	size_t n = 0;

	say("ready\n", 0);
	for (;;) {
		ssize_t got = read(0, line + n, 1);

		if (got < 0 && errno == EINTR)
			continue;
		if (got != 1)
			_exit(0);
		if (line[n++] != '\n')
			continue;
		line[n] = 0;
		n = 0;
		act(line[0], atol(line + 1));
		say("ok\n", 0);
	}
}

static void *serve_thread(void *arg)
{
	serve();
	return arg;
}

static int wait_for_main(void)
{
	long n = 0;

	while (read(to_main[0], &n, sizeof(n)) != sizeof(n))
		;
	return syscall(SYS_exit, n);
}

static int many(int n)
{
	pid_t pid;
	int status;
	char byte;

	for (int i = 0; i < n; i++) {
		pid = fork();
		if (pid == 0) {
			while (read(0, &byte, 1) < 0 && errno == EINTR)
				;
			_exit(3);
		}
		say("child %ld\n", pid);
	}
	say("ready\n", 0);
	signal(SIGTERM, SIG_IGN);
	while ((pid = waitpid(-1, &status, 0)) > 0) {
		char text[64];

		snprintf(text, sizeof(text), "%d %d\n", pid, status);
		say(text, 0);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct rlimit none = { 0, RLIM_INFINITY };
	pthread_t thread;
	const char *mode = argc > 1 ? argv[1] : "serve";

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return 90;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_DUMPABLE, 1);
	setrlimit(RLIMIT_CORE, &none);
	for (int sig = 1; sig < 32; sig++) /* nohup and background jobs of a shell hand down SIGHUP, SIGINT and SIGQUIT ignored */
		signal(sig, SIG_DFL);
	if (pipe(to_main))
		return 92;
	if (!strcmp(mode, "worker")) {
		pthread_create(&thread, 0, serve_thread, 0);
		return wait_for_main();
	}
	if (!strcmp(mode, "pidns") || !strcmp(mode, "clone")) {
		uint64_t number = argc > 2 ? strtoull(argv[2], 0, 10) : 0;
		pid_t wanted = number;
		struct clone_args args = { .exit_signal = SIGCHLD };
		long pid;
		int status;

		if (!strcmp(mode, "pidns")) {
			args.flags = CLONE_NEWPID;
		} else {
			args.set_tid = (uintptr_t)&wanted;
			args.set_tid_size = 1;
		}
		while ((pid = syscall(SYS_clone3, &args, sizeof(args))) < 0 && errno == EEXIST)
			;
		if (pid < 0)
			return 91;
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			serve();
		}
		say("child %ld\n", pid);
		close(0);
		waitpid(pid, &status, 0);
		return 0;
	}
	if (!strcmp(mode, "many"))
		return many(atoi(argv[2]));
	if (!strcmp(mode, "pause")) {
		say("ready\n", 0);
		for (;;)
			pause();
	}
	serve();
	return 0;
}
