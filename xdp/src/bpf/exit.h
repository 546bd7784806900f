/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The exit watch. A process is *doomed* when the kernel has begun a group exit that nothing can undo:
 *
 *   signal_generate   SIGNAL_GROUP_EXIT is set: SIGKILL, or any fatal signal without a core dump, was accepted. Ignored, blocked or
 *                     handled signals, a namespace's init that shrugs off SIGKILL, and signals to a single exiting thread do not set it.
 *   signal_deliver    a signal is about to take its default action, and that is death: a core dump (it may last seconds), or a signal
 *                     that had been blocked or held by a tracer.
 *   process_exit      a thread leaves a group that is exiting (exit_group), or the last thread leaves: dead.
 *
 * exec from another thread is no death although it ends threads with SIGKILL: that SIGKILL is delivered without the flag.
 *
 * tp_btf programs take only the arguments that all kernels since 5.15 pass, and read the kernel's structures by plain loads, which the verifier
 * checks against BTF and the kernel guards against faults: every exit and signal of the host comes by here.
 */

enum { SIGKILL_ = 9, SIGCHLD_ = 17, SIGCONT_ = 18, SIGSTOP_ = 19, SIGTSTP_ = 20, SIGTTIN_ = 21, SIGTTOU_ = 22, SIGURG_ = 23, SIGWINCH_ = 28 };
#define BIT(s) (1ULL << (s))
/* Default action is not death: ignored, or stopped. */
#define SURVIVED (BIT(SIGCHLD_) | BIT(SIGCONT_) | BIT(SIGSTOP_) | BIT(SIGTSTP_) | BIT(SIGTTIN_) | BIT(SIGTTOU_) | BIT(SIGURG_) | BIT(SIGWINCH_))

#define SEND_SIG_PRIV 1 /* include/linux/sched/signal.h: in the place of a siginfo, for the kernel's own signals */

#define NS_PER_TICK 10000000ULL /* USER_HZ is 100 on every architecture that runs this */

/* The watch of a process, and its number, which report() holds on to. */
static __always_inline struct fide_watch *watch_of(struct task_struct *task, __u32 *app)
{
	__u32 tgid = task->tgid;
	struct fide_watch *w = bpf_map_lookup_elem(&watches, &tgid);

	if (!w)
		return 0;
	*app = *(volatile __u32 *)&w->app;
	if (task->group_leader->start_boottime / NS_PER_TICK != *(volatile __u64 *)&w->start_ticks)
		return 0;
	return w;
}

/* Moves a watch to `state`, once, if it is still this process's: says what it was before, or `state` when there is nothing to report.
 *
 * Several CPUs can see the same death, and the entry itself may change hands under our feet: a hash map reuses the place of a deleted entry
 * at once, while we hold a pointer into it. Number and state are one word, and a number is never given twice in an incarnation, so that
 * the compare-and-swap fails unless the entry still stands for the process it was found for. */
static __always_inline __u32 advance(struct fide_watch *w, __u32 app, __u32 state)
{
	union watch_word {
		struct {
			__u32 app, state;
		};
		__u64 word;
	} is, wanted = { .app = app, .state = state };

	for (int i = 0; i < 4; i++) { /* there are two states to be overtaken by */
		is.word = *(volatile __u64 *)&w->app;
		if (is.app != app || is.state >= state)
			return state;
		if (__sync_val_compare_and_swap((__u64 *)&w->app, is.word, wanted.word) == is.word)
			return is.state;
	}
	return state;
}

static __always_inline __u8 cause_of(__s32 status)
{
	if (status & STATUS_OUT_OF_MEMORY)
		return FIDE_CAUSE_OUT_OF_MEMORY;
	return status & 0x7f ? FIDE_CAUSE_KILLED : FIDE_CAUSE_EXITED;
}

/* Whether the OOM killer ended a process. It sends SIGKILL in the kernel's own name, and then notes the memory that it took (oom_mm). Neither is enough
 * alone: a process that an ordinary SIGKILL ends may be given what is left of the memory while it dies, and is noted so as well. */
static __always_inline bool is_out_of_memory(struct task_struct *task, struct fide_watch *w, __s32 status)
{
	if ((status & 0x7f) != SIGKILL_ || !task->signal->oom_mm)
		return false;
	return *(volatile __u32 *)&w->state == WATCH_ALIVE || *(volatile __s32 *)&w->status & STATUS_BY_KERNEL;
}

/* `status` is a wait status: signal in the low seven bits, exit code above, and the bits of fide_watch. False when it was not reported although it had to be. */
static __always_inline bool report(struct task_struct *task, struct fide_watch *w, __u32 app, __u32 state, __s32 status)
{
	struct fide_setup *my = the_setup();
	struct fide_record *r;
	__u32 before;
	__u64 life;
	struct fide_record copy;

	if (!my)
		return true;
	before = advance(w, app, state);
	if (before >= state)
		return true;
	r = bpf_ringbuf_reserve(&urgent, sizeof(*r), 0);
	if (!r) {
		/* Not lost: the agent finds it in the map, and looks there because urgent_lost grew. */
		w->status = status | (w->status & STATUS_BY_KERNEL);
		w->unreported = 1;
		__sync_fetch_and_add(&my->urgent_lost, 1);
		return false;
	}
	__builtin_memset(r, 0, sizeof(*r));
	life = __sync_fetch_and_add(&my->life, 1) + 1;
	r->kind = FIDE_RECORD_PROCESS;
	r->cause = state == WATCH_DOOMED ? FIDE_CAUSE_DOOMED : cause_of(status);
	r->grade = FIDE_GRADE_CERTAIN;
	r->node = my->node;
	r->app = app;
	r->incarnation = life >> 32;
	r->code = status & 0x7f ? status & 0x7f : status >> 8 & 0xff;
	r->flags = FIDE_RECORD_LOCAL | (before == WATCH_DOOMED ? FIDE_RECORD_CONFIRMS : 0);
	r->id = (__u64)my->node << 32 | (life & 0xffffffff);
	r->event_ns = bpf_ktime_get_ns();
	r->received_ns = r->event_ns;
	r->pid = task->tgid;
	copy = *r;
	r->kind = FIDE_RECORD_EXIT;
	bpf_ringbuf_submit(r, 0);
	deliver(&copy, sizeof(copy));
	return true;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(fide_signal_generate, int sig, void *info, struct task_struct *task)
{
	__u32 app;
	struct fide_watch *w = watch_of(task, &app);

	if (!w || !(task->signal->flags & SIGNAL_GROUP_EXIT))
		return 0;
	/* Only the signal that dooms it counts: those that come later find it doomed. */
	if (sig == SIGKILL_ && (__u64)info == SEND_SIG_PRIV && *(volatile __u32 *)&w->state == WATCH_ALIVE)
		w->status = STATUS_BY_KERNEL;
	report(task, w, app, WATCH_DOOMED, task->signal->group_exit_code & 0xff7f);
	return 0;
}

SEC("tp_btf/signal_deliver")
int BPF_PROG(fide_signal_deliver, int sig, void *info, struct k_sigaction *action)
{
	struct task_struct *task = bpf_get_current_task_btf(); /* Linux 5.11 */
	struct fide_watch *w;
	__u32 app, flags;

	if (sig >= 1 && sig < 64 && BIT(sig) & SURVIVED)
		return 0;
	w = watch_of(task, &app);
	if (!w || action->sa.sa_handler)
		return 0;
	flags = task->signal->flags;
	/* SIGKILL sets the flag when it is generated; without it, an exec has ended this thread and the process lives on. */
	if (flags & SIGNAL_UNKILLABLE || (sig == SIGKILL_ && !(flags & SIGNAL_GROUP_EXIT)))
		return 0;
	report(task, w, app, WATCH_DOOMED, flags & SIGNAL_GROUP_EXIT ? task->signal->group_exit_code & 0xff7f : sig & 0x7f);
	return 0;
}

/* A watched process that ends cleanly before it has settled: a server that goes into the background does, and its child goes on. Nobody but the agent's search for
 * that child hears of it. False: it is told as any other end. */
static __always_inline bool hand_over(struct fide_watch *w, __u32 app, __u32 tgid)
{
	struct fide_start start = { .kind = START_HANDED_OVER, .pid = tgid, .what = app };

	if (bpf_ktime_get_ns() >= *(volatile __u64 *)&w->settles_ns)
		return false;
	if (bpf_ringbuf_output(&started, &start, sizeof(start), 0))
		return false;
	return advance(w, app, WATCH_DEAD) < WATCH_DEAD;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(fide_process_exit, struct task_struct *task)
{
	__u32 app, flags, tgid;
	struct fide_watch *w = watch_of(task, &app);
	__s32 status;

	if (!w)
		return 0;
	flags = task->signal->flags;
	status = flags & SIGNAL_GROUP_EXIT ? task->signal->group_exit_code : task->group_leader->exit_code;
	status &= 0xff7f; /* without the core-dump bit */
	if (task->signal->live.counter == 0) {
		tgid = task->tgid;
		if (!status && *(volatile __u32 *)&w->state == WATCH_ALIVE && hand_over(w, app, tgid))
			bpf_map_delete_elem(&watches, &tgid);
		else if (report(task, w, app, WATCH_DEAD, status | (is_out_of_memory(task, w, status) ? STATUS_OUT_OF_MEMORY : 0)))
			bpf_map_delete_elem(&watches, &tgid);
	} else if (flags & SIGNAL_GROUP_EXIT && (status || bpf_ktime_get_ns() >= *(volatile __u64 *)&w->settles_ns)) {
		report(task, w, app, WATCH_DOOMED, status);
	}
	return 0;
}
