// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* For how long a thread's processor worked on softirqs while the thread was the current one. A kernel without CONFIG_IRQ_TIME_ACCOUNTING counts that as time
 * of the thread: of an agent that sends through veth devices it is mostly the receiving of all other hosts, which a network's own hardware does. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* By thread: ns so far. Only threads that are there are counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} softirq_ns SEC(".maps");

/* Since when this processor works on one, 0: it does not. Softirqs do not nest. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} since_ns SEC(".maps");

SEC("tp_btf/softirq_entry")
int fide_softirq_in(void *context)
{
	__u32 zero = 0, thread = (__u32)bpf_get_current_pid_tgid();
	__u64 *since = bpf_map_lookup_elem(&since_ns, &zero);

	if (since)
		*since = bpf_map_lookup_elem(&softirq_ns, &thread) ? bpf_ktime_get_ns() : 0;
	return 0;
}

SEC("tp_btf/softirq_exit")
int fide_softirq_out(void *context)
{
	__u32 zero = 0, thread = (__u32)bpf_get_current_pid_tgid();
	__u64 *since = bpf_map_lookup_elem(&since_ns, &zero), *sum;

	if (!since || !*since)
		return 0;
	sum = bpf_map_lookup_elem(&softirq_ns, &thread);
	if (sum)
		__sync_fetch_and_add(sum, bpf_ktime_get_ns() - *since);
	*since = 0;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
