// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The ends of watched processes, kept for the agent that comes next. The exit watch (exit.h) tells the agent that runs; while none runs, this is what sees how
 * and when a process ended. An object of its own, because its maps and programs are pinned and outlive the agent. Agents of one machine share it: nothing in
 * it is of one of them.
 *
 * xdp/src/ends.rs has a version number: raise it with every change of this file, or the pinned programs of a former agent stay in use. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define NS_PER_TICK 10000000ULL /* USER_HZ is 100 on every architecture that runs this */
#define SIGKILL_ 9
#define SEND_SIG_PRIV 1 /* include/linux/sched/signal.h: in the place of a siginfo, for the kernel's own signals */

/* Who doomed a process, if its end was seen to begin. */
enum { DOOMED_BY_NOBODY, DOOMED_BY_PROCESS, DOOMED_BY_KERNEL };

struct fide_kept_watch {
	__u64 start_ticks; /* field 22 of /proc/PID/stat: another process with this number is not watched */
	__u64 doomed;
};

/* By the number of the process in the first namespace. An entry goes with its process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct fide_kept_watch);
} kept_watches SEC(".maps");

struct fide_instance {
	__u64 pid;
	__u64 start_ticks;
};

struct fide_kept_end {
	__u64 event_ns; /* CLOCK_MONOTONIC */
	__u32 status; /* a wait status */
	__u32 out_of_memory; /* 1: the kernel ended it for want of memory */
};

/* The last ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct fide_instance);
	__type(value, struct fide_kept_end);
} kept_ends SEC(".maps");

static __always_inline struct fide_kept_watch *watch_of(struct task_struct *task)
{
	__u32 tgid = task->tgid;
	struct fide_kept_watch *w = bpf_map_lookup_elem(&kept_watches, &tgid);

	if (!w || task->group_leader->start_boottime / NS_PER_TICK != w->start_ticks)
		return 0;
	return w;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(fide_kept_signal, int sig, void *info, struct task_struct *task)
{
	struct fide_kept_watch *w = watch_of(task);

	if (w && task->signal->flags & SIGNAL_GROUP_EXIT && w->doomed == DOOMED_BY_NOBODY)
		w->doomed = sig == SIGKILL_ && (__u64)info == SEND_SIG_PRIV ? DOOMED_BY_KERNEL : DOOMED_BY_PROCESS;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(fide_kept_exit, struct task_struct *task)
{
	struct fide_kept_watch *w = watch_of(task);
	struct fide_instance instance = {};
	struct fide_kept_end end = {};
	__u32 tgid;

	/* As in exit.h: the last thread leaves. */
	if (!w || task->signal->live.counter != 0)
		return 0;
	end.event_ns = bpf_ktime_get_ns();
	end.status = task->signal->flags & SIGNAL_GROUP_EXIT ? task->signal->group_exit_code : task->group_leader->exit_code;
	end.status &= 0xff7f; /* without the core-dump bit */
	/* The OOM killer notes the memory that it took also of a process that an ordinary SIGKILL ends meanwhile. */
	end.out_of_memory = (end.status & 0x7f) == SIGKILL_ && task->signal->oom_mm && w->doomed != DOOMED_BY_PROCESS;
	tgid = task->tgid;
	instance.pid = tgid;
	instance.start_ticks = w->start_ticks;
	bpf_map_update_elem(&kept_ends, &instance, &end, BPF_ANY);
	bpf_map_delete_elem(&kept_watches, &tgid);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
