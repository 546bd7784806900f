/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The exit watch. A process is *doomed* when the kernel has begun a group exit that nothing can undo:
 *
 *   signal_generate   SIGNAL_GROUP_EXIT is set: SIGKILL, or any fatal signal without a core dump, was accepted. Ignored, blocked or
 *                     handled signals, a namespace's init that shrugs off SIGKILL, and signals to a single exiting thread do not set it.
 *   signal_deliver    a signal with a core dump is about to take its default action (the dump may last seconds).
 *   process_exit      a thread leaves a group that is exiting (exit_group), or the last thread leaves: dead.
 *
 * exec from another thread ends threads without that flag; it is no death. tp_btf programs take only the arguments that all
 * kernels since 5.15 pass. */

enum { SIGCHLD_ = 17, SIGCONT_ = 18, SIGSTOP_ = 19, SIGTSTP_ = 20, SIGTTIN_ = 21, SIGTTOU_ = 22, SIGURG_ = 23, SIGWINCH_ = 28 };
#define BIT(s) (1ULL << (s))
/* Default action is not death: ignored, or stopped. */
#define SURVIVED (BIT(SIGCHLD_) | BIT(SIGCONT_) | BIT(SIGSTOP_) | BIT(SIGTSTP_) | BIT(SIGTTIN_) | BIT(SIGTTOU_) | BIT(SIGURG_) | BIT(SIGWINCH_))

#define NS_PER_TICK 10000000ULL /* USER_HZ is 100 on every architecture that runs this */

static __always_inline struct fide_watch *watch_of(struct task_struct *task)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);
	struct fide_watch *w = bpf_map_lookup_elem(&watches, &tgid);

	if (!w)
		return 0;
	if (BPF_CORE_READ(task, group_leader, start_boottime) / NS_PER_TICK != w->start_ticks)
		return 0;
	return w;
}

/* `status` is a wait status: signal in the low seven bits, exit code above. */
static __always_inline bool report(struct task_struct *task, struct fide_watch *w, __u32 state, __s32 status)
{
	struct fide_setup *my = the_setup();
	struct fide_record *r;
	__u32 before = w->state, notice;
	struct fide_record copy;

	if (!my || before >= state)
		return true;
	/* Two threads can see the same death; one of them reports it. */
	if (__sync_val_compare_and_swap(&w->state, before, state) != before)
		return true;
	r = bpf_ringbuf_reserve(&urgent, sizeof(*r), 0);
	if (!r) {
		/* Not lost: the agent finds the state in the map. */
		w->status = status;
		__sync_fetch_and_add(&my->urgent_lost, 1);
		return false;
	}
	__builtin_memset(r, 0, sizeof(*r));
	notice = __sync_fetch_and_add(&my->next_notice, 1) + 1;
	r->kind = FIDE_RECORD_PROCESS;
	r->cause = state == WATCH_DOOMED ? FIDE_CAUSE_DOOMED : status & 0x7f ? FIDE_CAUSE_KILLED : FIDE_CAUSE_EXITED;
	r->grade = FIDE_GRADE_CERTAIN;
	r->node = my->node;
	r->app = w->app;
	r->incarnation = my->incarnation;
	r->code = status & 0x7f ? status & 0x7f : status >> 8 & 0xff;
	r->flags = FIDE_RECORD_LOCAL | (before == WATCH_DOOMED ? FIDE_RECORD_CONFIRMS : 0);
	r->id = (__u64)my->node << 32 | notice;
	r->event_ns = bpf_ktime_get_ns();
	r->received_ns = r->event_ns;
	r->pid = BPF_CORE_READ(task, tgid);
	copy = *r;
	r->kind = FIDE_RECORD_EXIT;
	bpf_ringbuf_submit(r, 0);
	deliver(&copy);
	return true;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(fide_signal_generate, int sig, void *info, struct task_struct *task)
{
	struct fide_watch *w = watch_of(task);

	if (w && BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT)
		report(task, w, WATCH_DOOMED, BPF_CORE_READ(task, signal, group_exit_code) & 0xff7f);
	return 0;
}

SEC("tp_btf/signal_deliver")
int BPF_PROG(fide_signal_deliver, int sig, void *info, struct k_sigaction *action)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fide_watch *w;

	if (sig >= 1 && sig < 64 && BIT(sig) & SURVIVED)
		return 0;
	w = watch_of(task);
	if (!w || BPF_CORE_READ(action, sa.sa_handler) || BPF_CORE_READ(task, signal, flags) & SIGNAL_UNKILLABLE)
		return 0;
	report(task, w, WATCH_DOOMED, sig & 0x7f);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(fide_process_exit, struct task_struct *task)
{
	struct fide_watch *w = watch_of(task);
	__u32 flags, tgid;
	__s32 status;

	if (!w)
		return 0;
	flags = BPF_CORE_READ(task, signal, flags);
	status = flags & SIGNAL_GROUP_EXIT ? BPF_CORE_READ(task, signal, group_exit_code) : BPF_CORE_READ(task, group_leader, exit_code);
	status &= 0xff7f; /* without the core-dump bit */
	if (BPF_CORE_READ(task, signal, live.counter) == 0) {
		tgid = BPF_CORE_READ(task, tgid);
		if (report(task, w, WATCH_DEAD, status))
			bpf_map_delete_elem(&watches, &tgid);
	} else if (flags & SIGNAL_GROUP_EXIT) {
		report(task, w, WATCH_DOOMED, status);
	}
	return 0;
}
