/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the kernel programs and the agent share. xdp/src/layout.rs says the same in Rust; a test compares them. */
#ifndef FIDE_MAPS_H
#define FIDE_MAPS_H

#define FIDE_RINGS 64
#define FIDE_QUEUES 64
#define FIDE_WATCHES 4096
#define FIDE_RING_BYTES (64 * 1024)
#define FIDE_QUESTIONS 4096 /* that may be answered, by the low bits of their numbers */
#define FIDE_ROUNDS 8 /* of questions by TCP, on each path */
#define FIDE_STRANGERS 2048
/* Announcements of one incarnation of an unknown host that reach the agent in a second: what the largest directory takes, four times. */
#define FIDE_INTRODUCTIONS 1024

#define PIGGYBACK_AT (FIDE_BODY_AT + FIDE_ITEM_HEAD + FIDE_PIGGYBACK_HEAD) /* in a heartbeat: its first item */

struct fide_key {
	__u64 k0;
	__u64 k1;
	__u64 valid;
};

/* The address of an Ethernet interface, as it lies in a frame. */
struct fide_mac {
	__u32 head;
	__u16 tail;
	__u16 known;
};

/* One for the whole agent; the agent writes, the programs read (`life`: both, atomically). */
struct fide_setup {
	__u32 cluster;
	__u32 node;
	__u64 life; /* incarnation << 32 | the version of the last change, which goes on through incarnations: one word, so that no notice gets the one without the other */
	__u16 port; /* host byte order */
	__u16 unwoken; /* not 0: a packet lies in `inbox` for which the agent was not woken */
	__u16 reserved[2];
	__u32 sockets; /* not 0: piggybacks are the agent's to deliver */
	__u32 probe_id; /* the ICMP identifier of this agent's questions */
	__u64 not_sent; /* packets of this name that this incarnation did not send */
	__u64 urgent_lost; /* records that found `urgent` full */
	__u64 starts_lost; /* and those that found `started` full */
	struct fide_key keys[16];
	__u64 number_sent; /* by this incarnation, the highest: of heartbeats */
	__u64 event_number_sent; /* and of all else */
	__u64 rests_until_ns; /* the agent wakes by itself then: packets for groups need not wake it before */
	struct fide_mac mac[FIDE_PATHS]; /* of the paths' interfaces */
	__u64 rounds[FIDE_PATHS][FIDE_ROUNDS]; /* of questions by TCP: 1 << 32 | their number without its last byte */
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
	__u32 refused;
	__u32 by_group; /* low half of the number of the last heartbeat that came by multicast */
};

struct fide_peer {
	__u32 node; /* 0: slot free */
	__u32 incarnation;
	__u32 period_ns;
	__u32 condemned; /* this incarnation is over */
	__u16 queue[FIDE_PATHS]; /* that its last heartbeat came by, counted from 1 */
	__u32 table_version; /* the highest version of its table that its heartbeats named, the low half */
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

/* A question by ICMP echo that may be answered: written by the agent before it leaves, cleared when its answer was taken. Nothing else that looks like an
 * answer reaches the agent, so nobody can keep it busy with answers. */
struct fide_question {
	__u64 nonce; /* 0: none; host byte order */
	__u64 head; /* what the packet carries before it, as it lies there */
	__u32 tail;
	__u32 path;
	__u64 from[2]; /* the address that was asked: of IPv4 as one word of 32 bits, of IPv6 as two, as they lie in the packet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIDE_QUESTIONS);
	__type(key, __u32);
	__type(value, struct fide_question);
} questions SEC(".maps");

/* What comes and was not wanted: refused packets by reason, then these. fide_xdp::layout::Unwanted says the same. */
enum fide_unwanted {
	UNWANTED_ECHO = FIDE_REFUSALS, /* an answer to no question of ours */
	UNWANTED_PROBE, /* a question of another agent: an ordinary host asks seldom */
	UNWANTED_TCP, /* an answer by TCP to no question of ours */
	UNWANTED_OWN_MAC, /* a frame with our own MAC: somebody has taken it, or the network loops */
	UNWANTED_KINDS
};

/* By kind and path: how often, and where the last one came from. */
struct fide_source {
	__u64 count;
	__u64 last_ns;
	__u64 from[2]; /* as above */
	__u8 mac[6];
	__u8 ip; /* 4, 6, or 0: another protocol */
	__u8 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, UNWANTED_KINDS * FIDE_PATHS);
	__type(key, __u32);
	__type(value, struct fide_source);
} unwanted SEC(".maps");

/* (node << 32 | incarnation) of those whose announcements introduce them, and of our own name: their highest numbers, so that a recording is heard once, and
 * how many were heard in this second. */
struct fide_stranger {
	__u64 number[FIDE_PATHS];
	__u64 second;
	__u64 heard;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FIDE_STRANGERS);
	__type(key, __u64);
	__type(value, struct fide_stranger);
} strangers SEC(".maps");

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
 * n >> 6. As many as a doom and an end for each of FIDE_WATCHES processes: the copies on the other path may come behind all of them. */
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

/* Which packets of a peer were handed on: the last 64 of each kind below, of which there are rows for each slot. */
struct fide_handed {
	struct bpf_spin_lock lock;
	__u32 node; /* a slot's next owner may have the same incarnation */
	__u32 incarnation;
	__u32 reserved;
	__u64 highest;
	__u64 window; /* bit i: highest - i */
};

enum {
	FIDE_HANDED_PIGGYBACK, /* to the rings */
	FIDE_HANDED_RIDE, /* heartbeats, to the agent: what a group's engine piggybacks */
	FIDE_HANDED_MESSAGE, /* to the agent, for groups */
	FIDE_HANDED_COPY, /* to the agent, for groups: a row for each path */
	FIDE_HANDED_KINDS = FIDE_HANDED_COPY + FIDE_PATHS
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIDE_SLOTS * FIDE_HANDED_KINDS);
	__type(key, __u32);
	__type(value, struct fide_handed);
} handed SEC(".maps");

/* (node << 32 | app) -> the incarnation in which its end was told. What falls out is long dead: its host stopped piggybacking it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} ended SEC(".maps");

/* (node << 32 | low half of a process's number), as a piggyback names it -> the number, where it is
 * another, and the incarnation in which it is given. */
struct fide_number {
	__u32 app;
	__u32 incarnation;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct fide_number);
} numbers SEC(".maps");

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

/* Whole packets for the agent: announcements, reports, pulls, rows, piggybacks. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} inbox SEC(".maps");

enum fide_watch_state { WATCH_ALIVE = 0, WATCH_DOOMED = 1, WATCH_DEAD = 2 };

/* In a watch's status, beside the wait status: memory had run out; the doom came from the kernel itself. */
enum { STATUS_OUT_OF_MEMORY = 1 << 16, STATUS_BY_KERNEL = 1 << 17 };

struct fide_watch {
	__u64 start_ticks; /* field 22 of /proc/PID/stat: a reused pid does not inherit the watch */
	__u64 settles_ns; /* until then a clean end is no end of a service: it was started, and its child goes on in its place */
	__u32 app; /* with `state` one aligned word, see report() */
	__u32 state; /* enum fide_watch_state, what was reported */
	__s32 status; /* wait status, when reporting `state` failed; and the bits above */
	__u32 unreported; /* it did */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FIDE_WATCHES);
	__type(key, __u32);
	__type(value, struct fide_watch);
} watches SEC(".maps");

/* What began on this host that a standing watch may wait for. */
enum fide_start_kind { START_PROGRAM = 1, START_LISTENS, START_HANDED_OVER, START_EXEC };
struct fide_start {
	__u32 kind; /* enum fide_start_kind */
	__u32 pid;
	__u32 what; /* the port that is listened on; the number of the watched process that ended cleanly before it had settled,
		    * or that runs another program now */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} started SEC(".maps");

/* What standing watches wait for, written by the agent: the beginnings of names of programs and of cgroups, zeros behind them, and ports. */
#define FIDE_NAME 16
struct fide_name {
	char bytes[FIDE_NAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIDE_WATCHES);
	__type(key, struct fide_name);
	__type(value, __u32);
} wanted_names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIDE_WATCHES);
	__type(key, __u32);
	__type(value, __u32);
} wanted_ports SEC(".maps");

/* Room to put a packet behind a record: the whole packet behind the one that goes to `inbox`, or, the packet lying at the same place, a piggyback's
 * message right behind the one that goes to subscribers (which then lies over the packet's header). Used by the receive program alone, which nothing interrupts on its CPU. */
#define PACKET_AT 75
#define INBOX_AT (PACKET_AT - (int)sizeof(struct fide_record))
struct fide_scratch {
	__u8 before[PACKET_AT + PIGGYBACK_AT - sizeof(struct fide_record)];
	struct fide_record record;
	__u8 message[FIDE_PACKET_MAX];
	__u32 len;
	__u32 reserved;
	struct fide_record one; /* of a change; of several in a frame, of each in turn */
};
_Static_assert(__builtin_offsetof(struct fide_scratch, record) % 8 == 0, "the record is aligned");
_Static_assert(__builtin_offsetof(struct fide_scratch, one) % 8 == 0, "the other record is aligned");

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
