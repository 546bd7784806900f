/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The start watch: a program that a standing watch may wait for is told of before its first instruction, and a socket when it begins to listen. A process that
 * crashes 50 ms after its start is watched by then; searching /proc for it from time to time would miss it, and cost more.
 *
 * What is told is a guess by names. Whether the process is meant (user, namespaces, whole name) is the agent's to find out.
 */

#define TCP_LISTEN_ 10

/* Names and keys end after FIDE_NAME - 1 bytes. */
static __always_inline bool is_wanted(const void *name)
{
	struct fide_name key = {};

	if (bpf_probe_read_kernel_str(key.bytes, sizeof(key.bytes), name) <= 0)
		return false;
	return bpf_map_lookup_elem(&wanted_names, &key);
}

static __always_inline void tell_start(__u32 kind, __u32 pid, __u32 what)
{
	struct fide_start start = { .kind = kind, .pid = pid, .what = what };
	struct fide_setup *my = the_setup();

	if (bpf_ringbuf_output(&started, &start, sizeof(start), 0) && my)
		__sync_fetch_and_add(&my->starts_lost, 1);
}

/* By the name of the process, of its executable, or of its cgroup (a unit's). And a watched process that runs another program from now on: whether that
 * ends what was watched is the agent's to say, before it looks whether a watch waits for it. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(fide_program_start, struct task_struct *task)
{
	__u32 app;

	if (watch_of(task, &app))
		tell_start(START_EXEC, task->tgid, app);
	if (is_wanted(task->comm) || is_wanted(task->mm->exe_file->f_path.dentry->d_name.name) ||
	    is_wanted(task->cgroups->dfl_cgrp->kn->name))
		tell_start(START_PROGRAM, task->tgid, 0);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(fide_socket_state, struct sock *sk, int before, int after)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 port;

	if (after != TCP_LISTEN_)
		return 0;
	port = sk->__sk_common.skc_num;
	if (bpf_map_lookup_elem(&wanted_ports, &port))
		tell_start(START_LISTENS, task->tgid, port);
	return 0;
}
