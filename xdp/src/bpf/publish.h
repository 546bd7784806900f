/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How the agent writes into a subscriber's ring: a ring has one producer, the kernel, so that inferred verdicts and piggybacks reach the
 * application in the same order and by the same descriptor as certain ones. */

/* The agent puts the record here (one at a time: its loop is one thread), then runs the program. */
struct fide_outgoing {
	struct fide_record record;
	__u8 body[FIDE_PIGGYBACK_MAX + 6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fide_outgoing);
} outgoing SEC(".maps");

struct fide_publish {
	__u64 rings; /* bit set */
	__u32 len; /* of record and body together */
	__u32 reserved;
};

/* Says how many of the rings did not get it. */
SEC("syscall")
int fide_publish(struct fide_publish *p)
{
	__u64 len = p->len;
	__u32 zero = 0;
	struct fide_outgoing *o = bpf_map_lookup_elem(&outgoing, &zero);

	if (!o || len < sizeof(o->record))
		return -22;
	OPAQUE(len);
	if (len > sizeof(o->record) + FIDE_PIGGYBACK_MAX)
		return -22;
	return write_rings(p->rings, o, len);
}
