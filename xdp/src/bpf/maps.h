/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the kernel programs and the agent share. xdp/src/layout.rs says the same in Rust; a test compares them. */
#ifndef FIDE_MAPS_H
#define FIDE_MAPS_H

#define FIDE_RINGS 64
#define FIDE_QUEUES 64
#define FIDE_WATCHES 4096
#define FIDE_RING_BYTES (64 * 1024)

#define BODY_MAX (FIDE_PIGGYBACK_HEAD + FIDE_PIGGYBACK_MAX)
#define BODY_AT (FIDE_FIXED_LEN + 2 * FIDE_TAG_LEN) /* in a heartbeat */

struct fide_key {
	__u64 k0;
	__u64 k1;
	__u64 valid;
};

/* One for the whole agent; the agent writes, the programs read (`life`: both, atomically). */
struct fide_setup {
	__u32 cluster;
	__u32 node;
	__u64 life; /* incarnation << 32 | the number the last notice got: one word, so that no notice gets the one without the other */
	__u16 port; /* host byte order */
	__u16 reserved[3];
	__u32 sockets; /* not 0: piggybacks are the agent's to deliver */
	__u32 clash_incarnation; /* what another agent of this name calls itself */
	__u64 clashes;
	__u64 urgent_lost; /* records that found `urgent` full */
	struct fide_key keys[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fide_setup);
} setup SEC(".maps");

/* A cache line for each path of each peer: written by the receive program only. */
struct fide_path {
	__u64 number;
	__u64 sent_ns;
	__u64 arrived_ns;
	__u64 arrived;
	__u64 lost;
	__u64 event_number;
	__u64 jitter_max_ns; /* since the agent last set it to 0 */
	__u64 refused;
};

struct fide_peer {
	__u32 node; /* 0: slot free */
	__u32 incarnation;
	__u32 period_ns;
	__u32 condemned; /* this incarnation is over */
	__u32 queue[FIDE_PATHS]; /* that its last heartbeat came by, counted from 1 */
	__u64 mark[FIDE_PATHS][2]; /* by path, the older first: see set_mark() */
	__u32 told[FIDE_PATHS]; /* low half of the number of its last report that was taken while it was condemned */
	struct fide_path path[FIDE_PATHS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIDE_SLOTS);
	__type(key, __u32);
	__type(value, struct fide_peer);
} peers SEC(".maps");

/* By path and receive queue: the random number of this agent's question whose answer came out of it last. Written when everything that came
 * before it has been. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIDE_PATHS * FIDE_QUEUES);
	__type(key, __u32);
	__type(value, __u64);
} barriers SEC(".maps");

struct fide_jitter {
	__u32 bucket[FIDE_JITTER_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIDE_SLOTS * FIDE_PATHS);
	__type(key, __u32);
	__type(value, struct fide_jitter);
} jitter SEC(".maps");

/* Which notices of a peer's incarnation have been delivered: the last FIDE_SEEN_WORDS * 64 numbers, give or take a word, bit n & 63 of word
 * n >> 6. As many as a sender can have waiting for a confirmation (a doom and an end for each of FIDE_WATCHES processes): when all of a host's
 * processes are killed at once and the first notice is lost on both paths, its repetition must still be told from a duplicate. */
#define FIDE_SEEN_WORDS (2 * FIDE_WATCHES / 64)
struct fide_seen {
	struct bpf_spin_lock lock;
	__u32 node; /* a slot's next owner may have the same incarnation */
	__u32 incarnation;
	__u32 highest;
	__u64 window[FIDE_SEEN_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIDE_SLOTS);
	__type(key, __u32);
	__type(value, struct fide_seen);
} seen SEC(".maps");

/* Which piggybacks have been delivered: the last 64 heartbeats. */
struct fide_beats {
	struct bpf_spin_lock lock;
	__u32 node;
	__u32 incarnation;
	__u32 reserved;
	__u64 highest;
	__u64 window; /* bit i: highest - i */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIDE_SLOTS);
	__type(key, __u32);
	__type(value, struct fide_beats);
} beats SEC(".maps");

/* (node << 32 | app) -> the incarnation in which its end was told. What falls out is long dead: its host stopped piggybacking it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} ended SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FIDE_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} slot_of SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u32);
} path_of SEC(".maps"); /* interface index -> path */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIDE_REFUSALS);
	__type(key, __u32);
	__type(value, __u64);
} refused SEC(".maps");

/* (node << 32 | app) -> bit set of rings; app 0: all of a node; 0: everything. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u64);
} subscribers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, FIDE_RINGS);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_RINGBUF);
		__uint(max_entries, FIDE_RING_BYTES);
	});
} rings SEC(".maps");

/* Records that found a subscriber's ring full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIDE_RINGS);
	__type(key, __u32);
	__type(value, __u64);
} ring_lost SEC(".maps");

/* What must go out or be judged at once: exits of this host, notices of others. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} urgent SEC(".maps");

/* Whole packets for the agent: announcements, reports, confirmations, piggybacks. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} inbox SEC(".maps");

enum fide_watch_state { WATCH_ALIVE = 0, WATCH_DOOMED = 1, WATCH_DEAD = 2 };

struct fide_watch {
	__u64 start_ticks; /* field 22 of /proc/PID/stat: a reused pid does not inherit the watch */
	__u32 app; /* with `state` one aligned word, see report() */
	__u32 state; /* enum fide_watch_state, what was reported */
	__s32 status; /* wait status, when reporting `state` failed */
	__u32 unreported; /* it did */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FIDE_WATCHES);
	__type(key, __u32);
	__type(value, struct fide_watch);
} watches SEC(".maps");

/* Room to put a packet behind a record: the whole packet behind the one that goes to `inbox`, or, the packet lying at the same place, a piggyback's
 * message right behind the one that goes to subscribers. Used by the receive program alone, which nothing interrupts on its CPU. */
#define PACKET_AT 74
#define INBOX_AT (PACKET_AT - (int)sizeof(struct fide_record))
struct fide_scratch {
	__u8 before[PACKET_AT + BODY_AT + FIDE_PIGGYBACK_HEAD - sizeof(struct fide_record)];
	struct fide_record record;
	__u8 message[FIDE_PACKET_MAX];
	__u32 len;
};
_Static_assert(__builtin_offsetof(struct fide_scratch, record) % 8 == 0, "the record is aligned");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fide_scratch);
} scratch SEC(".maps");

static __always_inline struct fide_setup *the_setup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&setup, &zero);
}

/* Writes `len` bytes to every ring of the set that exists. Full rings lose it, which is counted: the agent tells the reader. Returns how many
 * did not get it. */
static __always_inline int write_rings(__u64 mask, void *bytes, __u64 len)
{
	int missed = 0;

	for (__u32 i = 0; i < FIDE_RINGS; i++) {
		__u32 index = i;
		__u64 *lost;
		void *ring;

		if (!mask)
			break;
		if (mask & 1) {
			ring = bpf_map_lookup_elem(&rings, &index);
			if (!ring) {
				missed += 1;
			} else if (bpf_ringbuf_output(ring, bytes, len, 0)) {
				missed += 1;
				lost = bpf_map_lookup_elem(&ring_lost, &index);
				if (lost)
					__sync_fetch_and_add(lost, 1);
			}
		}
		mask >>= 1;
	}
	return missed;
}

/* Writes a record of `len` bytes, its body included, to every ring that subscribed to this process, its node, or everything. */
static __always_inline void deliver(struct fide_record *record, __u64 len)
{
	__u64 key = (__u64)record->node << 32 | record->app;
	__u64 mask = 0, *found;

	found = bpf_map_lookup_elem(&subscribers, &key);
	if (found)
		mask |= *found;
	key &= ~0xffffffffULL;
	found = bpf_map_lookup_elem(&subscribers, &key);
	if (found)
		mask |= *found;
	key = 0;
	found = bpf_map_lookup_elem(&subscribers, &key);
	if (found)
		mask |= *found;
	write_rings(mask, record, len);
}

#endif
