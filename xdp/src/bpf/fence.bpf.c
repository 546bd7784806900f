// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The fence: SafeTimer's `safetimer_intercept_sending` (§4.2, Fig. 3). A packet passes a gate only while the clock has not gone past the
 * gate's t_valid. Two programs ask the same question at two places: on an interface, and in a cgroup. xdp/src/fence.rs moves t_valid.
 *
 * An object of its own, because its maps and programs are pinned and outlive the agent: one that dies must leave its gates to run out.
 *
 * What it needs, and since which Linux: cmpxchg 5.12; storage shared by all programs of a cgroup 5.9; memory-mapped arrays 5.5. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

#define FIDE_GATES 256
#define FIDE_BELOW 65536
#define HOST_GATE 0

/* Values of valid_ns that are no time. */
#define GATE_SHUT 0ULL /* by order */
#define GATE_FENCED 1ULL /* run out, and found so: for good */
#define GATE_NOT_ARMED (~0ULL)

/* A cache line. The programs write it once, when it runs out, so that every processor keeps its copy while packets flow. */
struct fide_gate {
	__u64 valid_ns; /* the whole state of the gate, in one word: whoever changes it does so by compare-and-swap */
	__u64 fenced_ns; /* when it was found to have run out */
	__u64 first_blocked_ns; /* the first packet it has blocked since it was closed */
	__u64 cgroup; /* whose it is; 0: nobody's, or the host's */
	__u64 made; /* the owner's mark that a new map, which is all zeros and so all shut, was set up */
	__u64 apart; /* it was shut for a reason of its own, which says nothing of the owner's other gates (Apart in fence.rs); 0: it was not */
	__u64 pid; /* the process that it was closed for, and its start: kept until another one may be heard; 0: none */
	__u64 start_ticks;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIDE_GATES);
	__type(key, __u32);
	__type(value, struct fide_gate);
} gates SEC(".maps");

struct fide_gate_count {
	__u64 passed;
	__u64 blocked;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIDE_GATES);
	__type(key, __u32);
	__type(value, struct fide_gate_count);
} gate_counts SEC(".maps");

/* The gate of the cgroup that a program is attached to; 0 until it is told. The key is the cgroup's id. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, __u64);
} gate_of SEC(".maps");

/* The cgroups below that of a gate, also those that were removed since: what was sent by their sockets may wait behind the gate. Gates may be around each
 * other. No program asks; kept here because it must live as long as the gates. */
struct fide_below {
	__u64 gate; /* the cgroup of the gate */
	__u64 cgroup;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIDE_BELOW);
	__type(key, struct fide_below);
	__type(value, __u64);
} gate_within SEC(".maps");

static __always_inline bool passes(__u32 slot)
{
	struct fide_gate *gate = bpf_map_lookup_elem(&gates, &slot);
	struct fide_gate_count *count = bpf_map_lookup_elem(&gate_counts, &slot);
	if (!gate || !count)
		return false; /* no such gate */
	__u64 valid = *(volatile __u64 *)&gate->valid_ns;
	__u64 now = 0;

	/* The clock is read after t_valid: what is decided here is the latest that can be known. */
#pragma clang loop unroll(full)
	for (int i = 0; i < 2; i++) {
		if (valid == GATE_NOT_ARMED)
			goto pass;
		now = bpf_ktime_get_ns();
		if (valid <= GATE_FENCED)
			goto block;
		if (now <= valid)
			goto pass;
		/* Run out. Either this closes the gate, and then no extension can open it; or an extension came first, and then it
		 * is as if this packet had come after it. */
		__u64 found = __sync_val_compare_and_swap(&gate->valid_ns, valid, GATE_FENCED);
		if (found == valid) {
			gate->fenced_ns = now;
			gate->first_blocked_ns = now;
			goto block;
		}
		valid = found;
	}
	/* Extended twice while we looked, to times that were past already: closed is the safe side. */
	if (valid > GATE_FENCED) {
		__sync_lock_test_and_set(&gate->valid_ns, GATE_FENCED);
		gate->fenced_ns = now;
	}
block:
	if (!gate->first_blocked_ns)
		__sync_val_compare_and_swap(&gate->first_blocked_ns, 0, now);
	__sync_fetch_and_add(&count->blocked, 1); /* atomic: a softirq may interrupt the cgroup's program on the same processor */
	return false;
pass:
	__sync_fetch_and_add(&count->passed, 1);
	return true;
}

/* Every packet that leaves by a guarded interface, whatever it is and whoever sends it: ARP and echo replies too, and what is forwarded.
 * Other filters of the interface decide on what passes. */
SEC("tc")
int fide_fence_host(struct __sk_buff *skb)
{
	enum { TC_ACT_UNSPEC = -1, TC_ACT_SHOT = 2 };
	return passes(HOST_GATE) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* Every IP packet of the sockets made in a cgroup or below, also to this host itself. The sender gets EPERM. */
SEC("cgroup_skb/egress")
int fide_fence_group(struct __sk_buff *skb)
{
	__u64 *slot = bpf_get_local_storage(&gate_of, 0);
	if (!*slot)
		return 1; /* attached a moment ago; its gate is not armed yet anyway */
	return passes(*slot);
}

/* As in fide.bpf.c. */
char LICENSE[] SEC("license") = "GPL";
