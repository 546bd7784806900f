/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The receive program: one pass over a packet in the driver's poll, before the stack.
 *
 *   not ours -> XDP_PASS          refused -> counted, XDP_DROP
 *   heartbeat -> peers[slot]      its piggyback -> rings of the subscribers; what groups piggyback -> `inbox`
 *   notices -> rings of the subscribers, then `urgent`, one after the other
 *   all else -> `inbox`
 *
 * Piggybacks and notices go the same way at the same time, so that a subscriber hears a process's last words before its crash
 * (fail-consistency, FiDe §4.1), and never after it.
 *
 * What is refused up to the tag and by what stands behind it, and for which reason, is what fide_wire::packet::decode says of the same bytes (a
 * test compares them); who sent it and how fresh it is comes after that, so that nobody without the key can move those counters or use up a number.
 * What another agent sends to ask whether anybody holds the port is none of both: the kernel answers that nobody does as soon as this agent's socket is
 * closed, which it is before this program is gone. While there is one, its filter drops what comes.
 */

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define IPPROTO_UDP 17
#define IPPROTO_TCP 6
#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
#define ICMP_HEADER 8
#define ICMP_ECHOREPLY 0
#define ICMPV6_ECHO_REPLY 129
/* Ethernet, a VLAN tag, IPv6 and UDP. */
#define FIDE_HEADERS_MAX (14 + 4 + 40 + 8)

struct eth { __u8 dst[6], src[6]; __be16 proto; } __attribute__((packed));
struct vlan { __be16 tci, proto; } __attribute__((packed));
struct ip4 { __u8 ver_ihl, tos; __be16 len, id, frag; __u8 ttl, proto; __be16 check; __be32 src, dst; } __attribute__((packed));
struct ip6 { __be32 flow; __be16 len; __u8 next, hops; __u8 src[16], dst[16]; } __attribute__((packed));
struct udp { __be16 src, dst, len, check; } __attribute__((packed));
struct tcp { __be16 src, dst; __be32 seq, ack; __u8 offset, flags; } __attribute__((packed));

/* Such a question, as fide_lane::probe makes it: its length and its first bytes, "FiDp". */
#define PROBE_LEN 20
#define PROBE_MAGIC 0x46694470

/* A question by TCP, as fide_lane::probe makes it: a SYN to our port, which is one of UDP only. Its answer, a reset or whatever else acknowledges it, repeats
 * the number of the question; what is noted of it begins with these bytes, "FiDt". */
#define STEERED_MAGIC 0x46694474
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* The causes that fide_wire::verdict::Cause knows. */
#define CAUSES                                                                                                         \
	(1U << FIDE_CAUSE_EXITED | 1U << FIDE_CAUSE_KILLED | 1U << FIDE_CAUSE_DOOMED | 1U << FIDE_CAUSE_LEFT |         \
	 1U << FIDE_CAUSE_AGENT_LOST | 1U << FIDE_CAUSE_SILENT_HOST | 1U << FIDE_CAUSE_PATH_DOWN |                     \
	 1U << FIDE_CAUSE_CONTRACT_BROKEN | 1U << FIDE_CAUSE_ISOLATED | 1U << FIDE_CAUSE_PATH_UP |                     \
	 1U << FIDE_CAUSE_HUNG | 1U << FIDE_CAUSE_OUT_OF_MEMORY | 1U << FIDE_CAUSE_UNREACHABLE |                       \
	 1U << FIDE_CAUSE_REPLACED | 1U << FIDE_CAUSE_PROGRESSING |                                                    \
	 1U << FIDE_CAUSE_RETURNED | 1U << FIDE_CAUSE_CONTRACT_KEPT | 1U << FIDE_CAUSE_REJOINED |                      \
	 1U << FIDE_CAUSE_OBSERVER_PAUSED | 1U << FIDE_CAUSE_NAME_CLASH | 1U << FIDE_CAUSE_FOREIGN_TRAFFIC |           \
	 1U << FIDE_CAUSE_MONITORED | 1U << FIDE_CAUSE_INTERFACE | 1U << FIDE_CAUSE_LOCAL |                            \
	 1U << FIDE_CAUSE_FENCED | 1U << FIDE_CAUSE_RECOVERED)

/* What fide_receive() does with a packet that was refused: the action in the low byte, one more than the reason above it. */
#define ACTION(result) ((result) & 0xff)
static __always_inline int refuse(__u32 reason)
{
	return XDP_DROP | (int)(reason + 1) << 8;
}

/* Notes where a packet that was not wanted came from. A function of its own, which the verifier walks once, and finds the bounds of the frame by itself. */
__noinline int fide_note(struct xdp_md *ctx, __u32 kind)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 ifindex = ctx->ingress_ifindex, *path = bpf_map_lookup_elem(&path_of, &ifindex), row;
	struct eth *eth = data;
	struct fide_source *source;
	__u64 from[2] = {};
	__u16 proto;
	__u8 ip = 0;
	void *at = eth + 1;

	if (!path || *path >= FIDE_PATHS || kind >= UNWANTED_KINDS || at > data_end)
		return 0;
	row = kind * FIDE_PATHS + *path;
	source = bpf_map_lookup_elem(&unwanted, &row);
	if (!source)
		return 0;
	__sync_fetch_and_add(&source->count, 1);
	proto = load16(&eth->proto);
	if (proto == bpf_htons(ETH_P_8021Q) && at + sizeof(struct vlan) <= data_end) {
		proto = load16(&((struct vlan *)at)->proto);
		at += sizeof(struct vlan);
	}
	if (proto == bpf_htons(ETH_P_IP) && at + sizeof(struct ip4) <= data_end) {
		ip = 4;
		from[0] = load32(&((struct ip4 *)at)->src);
	} else if (proto == bpf_htons(ETH_P_IPV6) && at + sizeof(struct ip6) <= data_end) {
		ip = 6;
		from[0] = load64(((struct ip6 *)at)->src);
		from[1] = load64(((struct ip6 *)at)->src + 8);
	}
	/* The last of those that come at once on several CPUs, or a mixture of them: it is told to a human. */
	source->from[0] = from[0];
	source->from[1] = from[1];
	__builtin_memcpy(source->mac, eth->src, sizeof(source->mac));
	source->ip = ip;
	source->last_ns = bpf_ktime_get_ns();
	return 0;
}

/* A UDP payload for our port. */
struct payload {
	void *at;  /* 0: the packet is not ours */
	__u32 len; /* as its UDP header says: a frame may be longer than its packet */
	bool fragment;
};

static __always_inline void find_payload(void *data, void *data_end, __u16 port, struct payload *found)
{
	struct eth *eth = data;
	__u16 proto;
	__u32 at = sizeof(*eth);
	struct udp *udp;

	found->at = 0;
	found->len = 0;
	found->fragment = false;
	if ((void *)(eth + 1) > data_end)
		return;
	proto = load16(&eth->proto);
	if (proto == bpf_htons(ETH_P_8021Q)) {
		struct vlan *vlan = data + at;

		if ((void *)(vlan + 1) > data_end)
			return;
		proto = load16(&vlan->proto);
		at += sizeof(*vlan);
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct ip4 *ip = data + at;

		if ((void *)(ip + 1) > data_end || ip->ver_ihl != 0x45 || ip->proto != IPPROTO_UDP)
			return;
		if (load16(&ip->frag) & bpf_htons(0x1fff))
			return; /* no port in it: the stack's business */
		found->fragment = load16(&ip->frag) & bpf_htons(0x2000);
		at += sizeof(*ip);
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ip6 *ip = data + at;

		if ((void *)(ip + 1) > data_end || ip->next != IPPROTO_UDP)
			return;
		at += sizeof(*ip);
	} else {
		return;
	}
	udp = data + at;
	if ((void *)(udp + 1) > data_end || load16(&udp->dst) != bpf_htons(port))
		return;
	found->at = udp + 1;
	found->len = bpf_ntohs(load16(&udp->len));
	found->len = found->len < sizeof(*udp) ? 0 : found->len - sizeof(*udp);
}

/* Whether this frame says that it comes from the interface that it came to. */
static __always_inline bool is_own_mac(struct fide_setup *my, void *data, void *data_end, __u32 ifindex)
{
	struct eth *eth = data;
	__u32 head, *path;
	__u16 tail;

	if ((void *)(eth + 1) > data_end)
		return false;
	head = load32(eth->src);
	tail = load16(eth->src + 4);
	for (__u32 i = 0; i < FIDE_PATHS; i++) {
		struct fide_mac *mac = &my->mac[i];

		if (head != mac->head || tail != mac->tail || !mac->known)
			continue;
		path = bpf_map_lookup_elem(&path_of, &ifindex);
		if (path && *path == i)
			return true;
	}
	return false;
}

/* Whether what an answer from this address carries is what was asked with: `head` and `tail` as they lie there, then the number. */
static __always_inline bool is_asked(__u32 path, __u64 head, __u32 tail, __u64 nonce, __u64 *from)
{
	__u32 place = nonce & (FIDE_QUESTIONS - 1);
	struct fide_question *q = bpf_map_lookup_elem(&questions, &place);

	return q && nonce && *(volatile __u64 *)&q->nonce == nonce && q->head == head && q->tail == tail && q->path == path &&
	       q->from[0] == from[0] && q->from[1] == from[1];
}

/* A packet that is not for our port: is it an answer to this agent? A barrier (SafeTimer §4.1) it is then: it has come out of a receive queue, so whatever
 * came into it before has too. It goes on to the agent's socket, or to nobody (TCP). What only looks like one by echo ends here; by TCP it may be for
 * somebody else on this host. */
static __always_inline int answer(struct xdp_md *ctx, struct fide_setup *my, void *data, void *data_end)
{
	struct eth *eth = data;
	__u32 at = sizeof(*eth), ifindex = ctx->ingress_ifindex, queue = ctx->rx_queue_index, *path_found, path, row, number;
	__u64 *noted, note, from[2] = {};
	__u16 proto;
	__u8 next, *icmp;

	if ((void *)(eth + 1) > data_end)
		return XDP_PASS;
	proto = load16(&eth->proto);
	if (proto == bpf_htons(ETH_P_8021Q)) {
		if (data + at + sizeof(struct vlan) > data_end)
			return XDP_PASS;
		proto = load16(data + at + 2);
		at += sizeof(struct vlan);
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct ip4 *ip = data + at;

		if ((void *)(ip + 1) > data_end || ip->ver_ihl != 0x45)
			return XDP_PASS;
		next = ip->proto;
		if (next == IPPROTO_ICMPV6)
			return XDP_PASS;
		from[0] = load32(&ip->src);
		at += sizeof(*ip);
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ip6 *ip = data + at;

		if ((void *)(ip + 1) > data_end)
			return XDP_PASS;
		next = ip->next;
		if (next == IPPROTO_ICMP)
			return XDP_PASS;
		from[0] = load64(ip->src);
		from[1] = load64(ip->src + 8);
		at += sizeof(*ip);
	} else {
		return XDP_PASS;
	}
	if (next == IPPROTO_TCP) {
		struct tcp *tcp = data + at;

		if ((void *)(tcp + 1) > data_end || load16(&tcp->src) != bpf_htons(my->port) || !(tcp->flags & TCP_ACK) ||
		    !(tcp->flags & (TCP_SYN | TCP_RST)))
			return XDP_PASS;
		number = bpf_ntohl(load32(&tcp->ack)) - 1;
		note = bpf_cpu_to_be64((__u64)STEERED_MAGIC << 32 | number);
		icmp = 0;
	} else if (next == IPPROTO_ICMP || next == IPPROTO_ICMPV6) {
		icmp = data + at;
		if ((void *)icmp + ICMP_HEADER + PROBE_LEN > data_end || (icmp[0] != ICMP_ECHOREPLY && icmp[0] != ICMPV6_ECHO_REPLY) ||
		    load32(icmp + ICMP_HEADER) != bpf_htonl(PROBE_MAGIC) || load16(icmp + 4) != bpf_htons(my->probe_id))
			return XDP_PASS;
		note = load64(icmp + ICMP_HEADER + PROBE_LEN - 8);
		number = 0;
	} else {
		return XDP_PASS;
	}
	path_found = bpf_map_lookup_elem(&path_of, &ifindex);
	if (!path_found)
		return XDP_PASS;
	path = *path_found;
	if (path >= FIDE_PATHS)
		return XDP_PASS;
	if (icmp) {
		icmp += ICMP_HEADER;
		if (icmp[1 - ICMP_HEADER] || !is_asked(path, load64(icmp), load32(icmp + 8), bpf_be64_to_cpu(note), from)) {
			fide_note(ctx, UNWANTED_ECHO);
			return XDP_DROP;
		}
	} else {
		bool asked = false;

		row = path;
		OPAQUE(row);
		for (__u32 i = 0; i < FIDE_ROUNDS; i++)
			asked |= my->rounds[row & (FIDE_PATHS - 1)][i] == (1ULL << 32 | (number & ~0xffU));
		if (!asked) {
			fide_note(ctx, UNWANTED_TCP);
			return XDP_PASS;
		}
	}
	if (queue >= FIDE_QUEUES)
		return XDP_PASS;
	row = path * FIDE_QUEUES + queue;
	noted = bpf_map_lookup_elem(&barriers, &row);
	if (noted) /* a full barrier: the rows written before are seen by who sees this */
		__sync_lock_test_and_set(noted, note);
	return XDP_PASS;
}

static __always_inline int jitter_bucket(__u64 ns)
{
	__u64 v = ns >> FIDE_JITTER_UNIT_SHIFT, x = v;
	__u32 e = 0, index;

	if (v < 4)
		return v;
	/* floor(log2(v)) without a count-leading-zeros instruction */
	if (x >> 32) { e += 32; x >>= 32; }
	if (x >> 16) { e += 16; x >>= 16; }
	if (x >> 8) { e += 8; x >>= 8; }
	if (x >> 4) { e += 4; x >>= 4; }
	if (x >> 2) { e += 2; x >>= 2; }
	if (x >> 1) e += 1;
	index = (e - 1) * 4 + ((v >> (e - 2)) & 3);
	return index < FIDE_JITTER_BUCKETS ? index : FIDE_JITTER_BUCKETS - 1;
}

static __always_inline void count_jitter(__u32 slot, __u32 path, struct fide_path *p, __u64 excess)
{
	__u32 row = slot * FIDE_PATHS + path;
	struct fide_jitter *j = bpf_map_lookup_elem(&jitter, &row);
	__u32 bucket = jitter_bucket(excess);

	if (j && bucket < FIDE_JITTER_BUCKETS)
		j->bucket[bucket] += 1;
	if (excess > p->jitter_max_ns)
		p->jitter_max_ns = excess;
}

/* 32 bytes of a packet; false when it has not so many. */
static __always_inline bool copy32(__u8 *to, void *from, void *data_end)
{
	if (from + 32 > data_end)
		return false;
	for (int i = 0; i < 32; i += 8)
		*(__u64 *)(to + i) = load64(from + i);
	return true;
}

/* Copies a packet of `len` bytes, FIDE_BODY_AT to FIDE_PACKET_MAX, into the scratch room at `to`. The last 32 bytes first, then from the start until these
 * are reached: no loop over single bytes for the verifier to walk. */
static __always_inline bool copy_packet(__u8 *to, void *packet, void *data_end, __u32 len)
{
	__u64 last = len - 32;

	OPAQUE(last);
	if (last > FIDE_PACKET_MAX - 32 || !copy32(to + last, packet + last, data_end))
		return false;
	for (__u32 at = 0; at < FIDE_PACKET_MAX - 32; at += 32) {
		if (at >= last || !copy32(to + at, packet + at, data_end))
			break;
	}
	return true;
}

/* Whether notice `n` of this incarnation is seen for the first time. Both paths' copies may be handled at once, on two CPUs. */
static __always_inline bool first_copy(__u32 slot, __u32 node, __u32 incarnation, __u32 n)
{
	struct fide_seen *s = bpf_map_lookup_elem(&seen, &slot);
	__u32 word = n >> 6, top, enters;
	__u64 bit = 1ULL << (n & 63);
	bool first = false;

	if (!s || n == 0) /* notices are numbered from 1 */
		return false;
	bpf_spin_lock(&s->lock);
	top = s->highest >> 6;
	enters = word > top ? word - top : 0;
	if (s->node != node || s->incarnation != incarnation) {
		s->node = node;
		s->incarnation = incarnation;
		s->highest = 0;
		top = 0;
		enters = FIDE_SEEN_WORDS;
	}
	/* The words that enter the window forget what left it. */
	for (__u32 i = 1; i <= FIDE_SEEN_WORDS; i++) {
		if (i > enters)
			break;
		s->window[(top + i) & (FIDE_SEEN_WORDS - 1)] = 0;
	}
	if (n > s->highest)
		s->highest = n;
	if (word + FIDE_SEEN_WORDS <= top) {
		first = true; /* nobody remembers: twice is better than never */
	} else {
		__u64 *w = &s->window[word & (FIDE_SEEN_WORDS - 1)];

		first = !(*w & bit);
		*w |= bit;
	}
	bpf_spin_unlock(&s->lock);
	return first;
}

/* Takes `number` if this incarnation has had none as high, and says what the highest was before. By compare-and-swap: another CPU may hold a
 * packet of the same path, and the agent may begin a new incarnation meanwhile, whose row an old packet must not touch. */
static __always_inline bool is_newer(struct fide_peer *peer, __u32 incarnation, __u64 *highest, __u64 number, __u64 *before)
{
	for (int i = 0; i < 4; i++) {
		__u64 seen = *(volatile __u64 *)highest;

		if (number <= seen || *(volatile __u32 *)&peer->incarnation != incarnation || *(volatile __u32 *)&peer->condemned)
			return false;
		if (__sync_val_compare_and_swap(highest, seen, number) == seen) {
			*before = seen;
			return true;
		}
	}
	return false;
}

/* What was heard of one who is introduced by its announcements. */
static __always_inline struct fide_stranger *stranger_of(__u64 who)
{
	struct fide_stranger *found = bpf_map_lookup_elem(&strangers, &who), fresh = {};

	if (!found) {
		bpf_map_update_elem(&strangers, &who, &fresh, BPF_NOEXIST);
		found = bpf_map_lookup_elem(&strangers, &who);
	}
	return found;
}

/* Takes the number of its announcement, each once, and not more of them in a second than a host makes. */
static __always_inline bool may_introduce(struct fide_stranger *stranger, __u64 *highest, __u64 number, __u64 now)
{
	__u64 seen = *(volatile __u64 *)highest, second = now >> 30;

	if (number <= seen || __sync_val_compare_and_swap(highest, seen, number) != seen)
		return false;
	if (stranger->second != second) {
		stranger->second = second;
		stranger->heard = 0;
	}
	return __sync_fetch_and_add(&stranger->heard, 1) < FIDE_INTRODUCTIONS;
}

/* Every 64 heartbeats: when that was, how many had come and how many were lost, in one word that a reader sees whole. An agent that slept for seconds
 * finds in the older one what the last 64 to 128 were like, see fide_wire::marks. */
static __always_inline void set_mark(struct fide_peer *peer, struct fide_path *p, __u32 row, __u64 now)
{
	volatile __u64 *mark;

	OPAQUE(row); /* or the mask would go, because path was compared before: 6.1 has lost that by here */
	mark = peer->mark[row & (FIDE_PATHS - 1)];
	mark[0] = mark[1];
	mark[1] = now >> FIDE_MARK_SHIFT << 32 | (p->arrived & 0xffff) << 16 | (p->lost & 0xffff);
}

static __always_inline void heartbeat(struct fide_peer *peer, struct fide_path *p, __u32 slot, __u32 path, __u64 number, __u64 before,
				      __u64 sent, __u32 period, __u32 version, __u64 now, bool by_group)
{
	__u64 gap = now - p->arrived_ns;

	if (by_group)
		p->by_group = (__u32)number;

	if (before) {
		if (number - before > 1)
			p->lost += number - before - 1;
		else if (p->arrived_ns) /* the row may begin at the number of an announcement */
			count_jitter(slot, path, p, gap > period ? gap - period : 0);
	}
	p->arrived_ns = now;
	p->sent_ns = sent;
	p->arrived += 1;
	if (p->arrived % FIDE_MARK_EVERY == 0)
		set_mark(peer, p, path, now);
	peer->period_ns = period;
	if ((__s32)(version - peer->table_version) > 0)
		peer->table_version = version;
}

/* What is known of a number. */
enum { HANDED_NEVER, HANDED_BEFORE, HANDED_FORGOTTEN };

/* Whether this packet was handed on: both paths carry it. With `note`, it is from now on. `life` is node << 32 | incarnation. A function of its own, which the
 * verifier walks once. */
__noinline int fide_was_handed(__u32 row, __u64 life, __u64 number, __u32 note)
{
	struct fide_handed *h = bpf_map_lookup_elem(&handed, &row);
	__u32 node = life >> 32, incarnation = life;
	int found = HANDED_NEVER;

	if (!h)
		return HANDED_FORGOTTEN;
	bpf_spin_lock(&h->lock);
	if (h->node != node || h->incarnation != incarnation) {
		h->node = node;
		h->incarnation = incarnation;
		h->highest = 0;
		h->window = 0;
	}
	if (number > h->highest) {
		__u64 step = number - h->highest;

		if (note) {
			h->window = step > 63 ? 1 : h->window << step | 1;
			h->highest = number;
		}
	} else if (h->highest - number < 64) {
		__u64 bit = 1ULL << (h->highest - number);

		found = h->window & bit ? HANDED_BEFORE : HANDED_NEVER;
		if (note)
			h->window |= bit;
	} else {
		found = HANDED_FORGOTTEN;
	}
	bpf_spin_unlock(&h->lock);
	return found;
}

/* Delivers the piggyback in the scratch room, `len` bytes with its record. A function of its own, which the verifier walks once. */
__noinline int fide_deliver(struct fide_scratch *s, __u32 len)
{
	__u64 size = len;

	if (!s || size < sizeof(s->record))
		return 0;
	OPAQUE(size);
	if (size > sizeof(s->record) + FIDE_PIGGYBACK_MAX)
		return 0;
	deliver(&s->record, size);
	return 0;
}

/* Gives the agent the packet in the scratch room, and the record before it. A function of its own, which the verifier walks once. */
__noinline int fide_to_inbox(struct fide_scratch *s, __u32 can_wait)
{
	struct fide_setup *my = the_setup();
	__u64 len, wake = 0;

	if (!s || !my)
		return XDP_DROP;
	len = s->len;
	if (len > FIDE_PACKET_MAX)
		return XDP_DROP;
	/* The kernel wakes the agent by itself if it has read all before this packet; behind packets that did not wake it, that takes force. */
	if (can_wait) {
		wake = BPF_RB_NO_WAKEUP;
	} else if (*(volatile __u16 *)&my->unwoken) {
		*(volatile __u16 *)&my->unwoken = 0;
		wake = BPF_RB_FORCE_WAKEUP;
	}
	if (bpf_ringbuf_output(&inbox, (__u8 *)s + INBOX_AT, sizeof(struct fide_record) + len, wake))
		return refuse(FIDE_REFUSED_RING_FULL);
	if (can_wait)
		*(volatile __u16 *)&my->unwoken = 1;
	return XDP_DROP;
}

/* Copies the packet that begins `at` bytes into the frame into the scratch room. A function of its own, which the verifier walks once, and finds the
 * bounds of the frame by itself. */
__noinline int fide_keep(struct xdp_md *ctx, __u32 at, __u32 len)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 from = at;
	__u32 zero = 0;
	struct fide_scratch *s = bpf_map_lookup_elem(&scratch, &zero);

	OPAQUE(from);
	if (!s || from > FIDE_HEADERS_MAX)
		return 0;
	s->len = len;
	return copy_packet((__u8 *)s + PACKET_AT, data + from, data_end, len);
}

/* Whether the packet in the scratch room has the right tag. Read back, the packet's length is a number of which the verifier knows nothing: it need not
 * walk the rest anew for every length copied. */
static __always_inline bool is_true(struct fide_scratch *s, struct fide_key *key)
{
	__u32 len = *(volatile __u32 *)&s->len;

	if (len < FIDE_BODY_AT || len > FIDE_PACKET_MAX)
		return false;
	return fide_tag(s, len - FIDE_BODY_AT, key->k0, key->k1) == bpf_be64_to_cpu(load64((__u8 *)s + PACKET_AT + FIDE_HEADER_LEN));
}

/* The length of the first item of the heartbeat in the scratch room if that is a piggyback, 0 if it is of another service, -1 if it is cut short. */
static __always_inline int piggyback_len(struct fide_scratch *s)
{
	__u8 *item = (__u8 *)s + PACKET_AT + FIDE_BODY_AT;
	__u32 room = *(volatile __u32 *)&s->len - FIDE_BODY_AT - FIDE_ITEM_HEAD, len = bpf_ntohs(load16(item + 1));

	if (room > FIDE_BODY_MAX || len > room)
		return -1;
	return item[0] == FIDE_CHANNEL_PIGGYBACK ? len : 0;
}

/* Whether the first item of the heartbeat in the scratch room is what a group's engine piggybacks: the agent's to read. */
static __always_inline bool is_for_groups(struct fide_scratch *s)
{
	return *((__u8 *)s + PACKET_AT + FIDE_BODY_AT) == FIDE_CHANNEL_GROUPS;
}

/* The piggyback of the heartbeat in the scratch room: written to the rings of the subscribers of the process it is from, once, and not after the process's end
 * was told. */
static __always_inline int piggyback(struct fide_scratch *s, struct fide_record *head, __u32 slot)
{
	int len = piggyback_len(s);
	struct fide_number *number;
	__u32 *ended_in;
	__u64 who;

	if (len == 0)
		return XDP_DROP;
	if (len <= FIDE_PIGGYBACK_HEAD || len > FIDE_PIGGYBACK_HEAD + FIDE_PIGGYBACK_MAX)
		return refuse(FIDE_REFUSED_SHORT);
	if (fide_was_handed(slot * FIDE_HANDED_KINDS + FIDE_HANDED_PIGGYBACK, (__u64)head->node << 32 | head->incarnation, head->number, 1) != HANDED_NEVER)
		return XDP_DROP;
	head->app = bpf_ntohs(load16((__u8 *)s + PACKET_AT + PIGGYBACK_AT - FIDE_PIGGYBACK_HEAD));
	who = (__u64)head->node << 32 | head->app;
	number = bpf_map_lookup_elem(&numbers, &who);
	if (number && number->incarnation == head->incarnation) {
		head->app = number->app;
		who = (__u64)head->node << 32 | head->app;
	}
	ended_in = bpf_map_lookup_elem(&ended, &who);
	if (ended_in && *ended_in == head->incarnation)
		return XDP_DROP;
	s->record = *head;
	s->record.kind = FIDE_RECORD_PIGGYBACK;
	s->record.body_len = len - FIDE_PIGGYBACK_HEAD;
	fide_deliver(s, sizeof(s->record) + len - FIDE_PIGGYBACK_HEAD);
	return XDP_DROP;
}

/* Whether this version can read a change of the sender's own table. */
static __always_inline bool is_notice(struct fide_change *n, __be32 sender)
{
	__u8 cause = n->cause, grade = n->grade;

	return cause <= 31 && CAUSES >> cause & 1 && (grade == FIDE_GRADE_CERTAIN || grade == FIDE_GRADE_INFERRED) &&
	       load32(&n->origin) == sender && !(bpf_be64_to_cpu(load64(&n->version)) >> 32);
}

/* The record of a change, but for what its frame says of all of them. */
static __always_inline void note_change(struct fide_record *record, struct fide_change *n)
{
	record->app = bpf_ntohl(load32(&n->row));
	record->kind = record->app ? FIDE_RECORD_PROCESS : FIDE_RECORD_HOST;
	record->cause = n->cause;
	record->grade = n->grade;
	record->code = bpf_ntohl(load32(&n->code));
	record->flags = bpf_ntohs(load16(&n->flags)) & FIDE_NOTICE_CONFIRMS ? FIDE_RECORD_CONFIRMS : 0;
	record->event_ns = bpf_be64_to_cpu(load64(&n->event_ns));
	record->id = (__u64)record->node << 32 | (__u32)bpf_be64_to_cpu(load64(&n->version));
}

/* Nothing that a process piggybacked is handed on behind its end. One that is hung, or moves again, goes on talking. */
static __always_inline void note_end(struct fide_record *record)
{
	__u64 who = (__u64)record->node << 32 | record->app;
	__u32 incarnation = record->incarnation;

	if (record->app && record->cause != FIDE_CAUSE_HUNG && record->cause != FIDE_CAUSE_PROGRESSING)
		bpf_map_update_elem(&ended, &who, &incarnation, BPF_ANY);
}

/* The change that begins `at` bytes into the body of the frame in the scratch room. */
static __always_inline struct fide_change *change_at(struct fide_scratch *s, __u32 at)
{
	__u64 from = at;

	OPAQUE(from);
	if (from > (FIDE_CHANGES_MAX - 1) * FIDE_CHANGE_LEN)
		return 0;
	return (struct fide_change *)((__u8 *)s + PACKET_AT + FIDE_BODY_AT + from);
}

/* Whether all changes of the frame in the scratch room are of processes, and this version can read them: what is to be done with the frame if not, else 0. A
 * function of its own, which the verifier walks once. */
__noinline int fide_check_changes(struct fide_scratch *s)
{
	__be32 sender;
	__u32 len;

	if (!s)
		return refuse(FIDE_REFUSED_SHORT);
	len = *(volatile __u32 *)&s->len - FIDE_BODY_AT;
	if (!len || len > FIDE_CHANGES_MAX * FIDE_CHANGE_LEN || len % FIDE_CHANGE_LEN)
		return refuse(FIDE_REFUSED_SHORT);
	sender = load32((__u8 *)s + PACKET_AT + __builtin_offsetof(struct fide_header, sender));
	for (__u32 at = 0; at < FIDE_CHANGES_MAX * FIDE_CHANGE_LEN; at += FIDE_CHANGE_LEN) {
		struct fide_change *n;

		if (at >= len)
			break;
		n = change_at(s, at);
		if (!n || !is_notice(n, sender) || !load32(&n->row))
			return refuse(FIDE_REFUSED_KIND);
	}
	return 0;
}

/* Tells the subscribers of the change whose record is `one`, once: says whether this is its first copy. A function of its own, which the verifier walks once. */
__noinline int fide_tell_change(struct fide_scratch *s, __u32 slot)
{
	if (!s || !first_copy(slot, s->one.node, s->one.incarnation, (__u32)s->one.id))
		return 0;
	note_end(&s->one);
	deliver(&s->one, sizeof(s->one));
	return 1;
}

/* Takes one of the changes of the frame in the scratch room, whose record is begun in `one`: says 1 if the agent does not get it. A function of its own, which
 * the verifier walks once. The other path's copy is none of the agent's business: what it has missed it pulls. */
__noinline int fide_take_change(struct fide_scratch *s, __u32 slot, __u32 at)
{
	struct fide_change *n;

	if (!s)
		return 0;
	n = change_at(s, at);
	if (!n)
		return 0;
	note_change(&s->one, n);
	if (!fide_tell_change(s, slot))
		return 0;
	return bpf_ringbuf_output(&urgent, &s->one, sizeof(s->one), 0) ? 1 : 0;
}

/* Takes the changes of the frame in the scratch room. */
static __always_inline int take_changes(struct fide_scratch *s, struct fide_setup *my, struct fide_record *head, __u32 slot)
{
	__u32 len = *(volatile __u32 *)&s->len - FIDE_BODY_AT, lost = 0;

	s->one = *head;
	for (__u32 at = 0; at < FIDE_CHANGES_MAX * FIDE_CHANGE_LEN; at += FIDE_CHANGE_LEN) {
		if (at >= len)
			break;
		lost += fide_take_change(s, slot, at);
	}
	if (!lost)
		return XDP_DROP;
	__sync_fetch_and_add(&my->urgent_lost, lost);
	return refuse(FIDE_REFUSED_RING_FULL);
}

/* Kinds that mean something here (fide_wire::packet::Kind). */
#define KINDS                                                                                                          \
	(1U << FIDE_KIND_HEARTBEAT | 1U << FIDE_KIND_CHANGE | 1U << FIDE_KIND_HELLO | 1U << FIDE_KIND_INTRODUCTION |   \
	 1U << FIDE_KIND_PATH_REPORT | 1U << FIDE_KIND_PULL | 1U << FIDE_KIND_ROWS | 1U << FIDE_KIND_MESSAGE | \
	 1U << FIDE_KIND_COPY)

static __always_inline int receive(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct fide_setup *my = the_setup();
	struct fide_scratch *s;
	struct payload payload;
	struct fide_header *f;
	struct fide_change *n = 0;
	struct fide_peer *peer = 0;
	struct fide_path *p = 0; /* its row, if it counts there */
	struct fide_key *key;
	struct fide_record record = {};
	__u32 *path_found, *slot_found, *told = 0, slot = 0, path, kind, sender, incarnation, len, zero = 0, queue, ifindex = ctx->ingress_ifindex;
	struct fide_stranger *stranger = 0;
	bool is_kept = false, own = false, is_once = false, more, by_group;
	__u64 word, number, before, now, row, *highest;
	int result;

	s = bpf_map_lookup_elem(&scratch, &zero);
	if (!my || !s)
		return XDP_PASS;
	if (is_own_mac(my, data, data_end, ifindex))
		fide_note(ctx, UNWANTED_OWN_MAC);
	find_payload(data, data_end, my->port, &payload);
	if (!payload.at)
		return answer(ctx, my, data, data_end);
	path_found = bpf_map_lookup_elem(&path_of, &ifindex);
	if (!path_found)
		return XDP_PASS;
	path = *path_found;
	now = bpf_ktime_get_ns();
	by_group = data + 1 <= data_end && *(__u8 *)data & 1; /* of an Ethernet address */

	if (payload.fragment)
		return refuse(FIDE_REFUSED_FRAGMENT);
	f = payload.at;
	len = payload.len;
	if (len > data_end - (void *)f)
		return refuse(FIDE_REFUSED_SHORT);
	if (len == PROBE_LEN && (void *)f + PROBE_LEN <= data_end && load32(f) == bpf_htonl(PROBE_MAGIC)) {
		fide_note(ctx, UNWANTED_PROBE);
		return XDP_PASS;
	}
	if (len < FIDE_BODY_AT || (void *)f + FIDE_BODY_AT > data_end)
		return refuse(FIDE_REFUSED_SHORT);
	if (len > FIDE_PACKET_MAX)
		return refuse(FIDE_REFUSED_OVERSIZE);
	if (load16(&f->magic) != bpf_htons(FIDE_MAGIC))
		return refuse(FIDE_REFUSED_MAGIC);
	if (f->version_flags >> 4 != FIDE_VERSION)
		return refuse(FIDE_REFUSED_VERSION);
	if (load32(&f->cluster) != bpf_htonl(my->cluster))
		return refuse(FIDE_REFUSED_CLUSTER);
	key = &my->keys[f->path_key & 15];
	if (!key->valid)
		return refuse(FIDE_REFUSED_KEY);
	word = bpf_be64_to_cpu(load64(&f->kind_channel_number));
	kind = word >> 56;
	number = word & ((1ULL << 48) - 1);
	/* What comes often and matters at once is looked at in place: heartbeats that carry nothing, and a change. */
	if (len == FIDE_BODY_AT) {
		if (siphash_frame(f, 0, key->k0, key->k1) != bpf_be64_to_cpu(load64(f + 1)))
			return refuse(FIDE_REFUSED_MAC);
	} else if (len == FIDE_BODY_AT + FIDE_CHANGE_LEN && (void *)f + FIDE_BODY_AT + FIDE_CHANGE_LEN <= data_end) {
		if (siphash_frame(f, FIDE_CHANGE_LEN / 8, key->k0, key->k1) != bpf_be64_to_cpu(load64(f + 1)))
			return refuse(FIDE_REFUSED_MAC);
		if (kind == FIDE_KIND_CHANGE)
			n = (void *)f + FIDE_BODY_AT;
	} else {
		if (!fide_keep(ctx, (__u32)((void *)f - data), len))
			return refuse(FIDE_REFUSED_OVERSIZE);
		if (!is_true(s, key))
			return refuse(FIDE_REFUSED_MAC);
		is_kept = true;
	}
	if (kind > 31 || !(KINDS >> kind & 1))
		return refuse(FIDE_REFUSED_KIND);
	/* Another service's, which this version has not got. */
	if ((kind == FIDE_KIND_MESSAGE || kind == FIDE_KIND_COPY) && (word >> 48 & 0xff) != FIDE_CHANNEL_GROUPS)
		return refuse(FIDE_REFUSED_KIND);
	sender = bpf_ntohl(load32(&f->sender));
	if (n && !is_notice(n, load32(&f->sender)))
		return refuse(FIDE_REFUSED_KIND);
	if (kind == FIDE_KIND_CHANGE && !n) {
		result = is_kept ? fide_check_changes(s) : refuse(FIDE_REFUSED_SHORT);
		if (result)
			return result;
	}
	if (!n && !is_kept && (kind != FIDE_KIND_HEARTBEAT || len != FIDE_BODY_AT)) {
		if (!fide_keep(ctx, (__u32)((void *)f - data), len))
			return refuse(FIDE_REFUSED_OVERSIZE);
		is_kept = true;
	}
	if (kind == FIDE_KIND_HEARTBEAT && is_kept && piggyback_len(s) < 0)
		return refuse(FIDE_REFUSED_SHORT);

	if (f->path_key >> 4 != path || path >= FIDE_PATHS)
		return refuse(FIDE_REFUSED_WRONG_PATH);
	incarnation = bpf_ntohl(load32(&f->incarnation));
	if (sender == my->node) {
		/* Our own, that came back or was sent again; or another agent has our name. That takes more than a packet to show: its announcements are
		 * the agent's to look at. */
		if (incarnation != my->life >> 32 || number > (kind == FIDE_KIND_HEARTBEAT ? my->number_sent : my->event_number_sent))
			__sync_fetch_and_add(&my->not_sent, 1);
		if (kind != FIDE_KIND_INTRODUCTION)
			return refuse(FIDE_REFUSED_OWN);
		own = true;
	}

	record.node = sender;
	record.incarnation = incarnation;
	record.path = path;
	record.sent_ns = bpf_be64_to_cpu(load64(&f->sent_ns));
	record.received_ns = now;
	record.number = number;

	/* How fresh is it? */
	row = path;
	OPAQUE(row); /* or the mask would go, because path was compared before: in another register */
	row &= FIDE_PATHS - 1;
	slot_found = own ? 0 : bpf_map_lookup_elem(&slot_of, &sender);
	if (!slot_found) {
		if (kind != FIDE_KIND_INTRODUCTION && kind != FIDE_KIND_HELLO)
			return refuse(FIDE_REFUSED_UNKNOWN_SENDER);
	} else {
		slot = *slot_found;
		peer = bpf_map_lookup_elem(&peers, &slot);
		if (!peer)
			return refuse(FIDE_REFUSED_UNKNOWN_SENDER);
		p = &peer->path[row];
		if (incarnation != peer->incarnation || peer->condemned) {
			/* A newer incarnation is the agent's to begin. Any may ask, also that of a host whose clock and files went back: the answer is
			 * worth nothing to a recording. Who was given up may have given us up: only its report says so, and unless we heed it both wait
			 * for the other one for ever. Its row is not touched but for that, so that a replay is one. */
			if (incarnation == peer->incarnation && kind == FIDE_KIND_PATH_REPORT)
				told = &peer->told[row];
			else if (kind != FIDE_KIND_HELLO && (incarnation <= peer->incarnation || kind != FIDE_KIND_INTRODUCTION))
				return refuse(FIDE_REFUSED_OLD_INCARNATION);
			p = 0;
		}
	}
	if (p && kind == FIDE_KIND_COPY) {
		/* One that is refused stops its receiver, so a frame of another receive queue may overtake it: each is taken once, in any order. */
		if (fide_was_handed(slot * FIDE_HANDED_KINDS + FIDE_HANDED_COPY + row, (__u64)sender << 32 | incarnation, number, 1) != HANDED_NEVER) {
			p->refused += 1;
			return refuse(FIDE_REFUSED_OLD_NUMBER);
		}
		goto whole_packet;
	}
	/* So may a message, which is handed on once, too. */
	if (p && kind == FIDE_KIND_MESSAGE) {
		__u64 last = *(volatile __u64 *)&p->event_number;

		if (number && number <= last && number + 64 > last &&
		    fide_was_handed(slot * FIDE_HANDED_KINDS + FIDE_HANDED_MESSAGE, (__u64)sender << 32 | incarnation, number, 0) == HANDED_NEVER) {
			is_once = true;
			goto whole_packet;
		}
	}
	highest = !p ? 0 : kind == FIDE_KIND_HEARTBEAT ? &p->number : &p->event_number;
	if (!p && !told) {
		stranger = stranger_of((__u64)sender << 32 | incarnation);
		if (!stranger)
			return refuse(own ? FIDE_REFUSED_OWN : FIDE_REFUSED_RATE_LIMITED);
		highest = &stranger->number[row];
	}
	/* The copy by unicast of a heartbeat that multicast has brought is no replay. */
	if (p && kind == FIDE_KIND_HEARTBEAT && !by_group && number == *(volatile __u64 *)highest)
		return XDP_DROP;
	if (highest ? number <= *(volatile __u64 *)highest : told && (__u32)number <= *(volatile __u32 *)told) {
		if (p)
			p->refused += 1;
		return refuse(own ? FIDE_REFUSED_OWN : FIDE_REFUSED_OLD_NUMBER);
	}
	if (told) {
		__u32 seen = *(volatile __u32 *)told;

		if ((__u32)number <= seen || __sync_val_compare_and_swap(told, seen, (__u32)number) != seen)
			return refuse(FIDE_REFUSED_OLD_NUMBER);
		goto whole_packet;
	}
	if (stranger) {
		if (!may_introduce(stranger, highest, number, now))
			return refuse(own ? FIDE_REFUSED_OWN : FIDE_REFUSED_RATE_LIMITED);
		goto whole_packet;
	}
	if (!is_newer(peer, incarnation, highest, number, &before)) {
		p->refused += 1;
		return refuse(FIDE_REFUSED_OLD_NUMBER);
	}
	if (kind == FIDE_KIND_HEARTBEAT) {
		heartbeat(peer, p, slot, path, number, before, record.sent_ns, bpf_ntohl(load32(&f->period_ns)),
			  bpf_ntohl(load32(&f->table_version)), now, by_group);
		queue = ctx->rx_queue_index + 1;
		if (peer->queue[row] != queue)
			peer->queue[row] = queue;
		if (!is_kept)
			return XDP_DROP;
		if (is_for_groups(s)) {
			is_once = true;
			goto whole_packet;
		}
		if (my->sockets)
			goto whole_packet; /* somebody's ring is a socket, which only the agent can write: it serves all of them, in order */
		return piggyback(s, &record, slot);
	}
	if (kind == FIDE_KIND_CHANGE && !n)
		return take_changes(s, my, &record, slot);
	if (!n) {
		is_once = kind == FIDE_KIND_MESSAGE;
		goto whole_packet;
	}

	note_change(&record, n);
	s->one = record;
	/* Of an agent that says that it will be back its observers tell, if it is not. */
	if (!(record.kind == FIDE_RECORD_HOST && record.code > 0) && !fide_tell_change(s, slot))
		record.flags |= FIDE_RECORD_DUPLICATE;
	/* When this fails the agent sees by the version of the next heartbeat that it lacks something, and pulls it. */
	if (bpf_ringbuf_output(&urgent, &record, sizeof(record), 0)) {
		__sync_fetch_and_add(&my->urgent_lost, 1);
		return refuse(FIDE_REFUSED_RING_FULL);
	}
	return XDP_DROP;

whole_packet:
	/* Another copy would wake the agent for nothing. What is forgotten it knows by its number. */
	slot = slot * FIDE_HANDED_KINDS + (kind == FIDE_KIND_MESSAGE ? FIDE_HANDED_MESSAGE : FIDE_HANDED_RIDE);
	if (is_once && fide_was_handed(slot, (__u64)sender << 32 | incarnation, number, 0) == HANDED_BEFORE)
		return XDP_DROP;
	record.kind = FIDE_RECORD_PACKET;
	record.body_len = *(volatile __u32 *)&s->len;
	for (int i = 0; i < (int)sizeof(record); i += 8)
		*(__u64 *)((__u8 *)s + INBOX_AT + i) = load64((__u8 *)&record + i);
	/* Of frames that follow each other at once only the last one wakes the agent: one that is lost costs the time until its next deadline, a period at
	 * most. What is for groups also waits while the agent could do nothing with it. */
	more = *((__u8 *)s + PACKET_AT + __builtin_offsetof(struct fide_header, version_flags)) & FIDE_MORE;
	result = fide_to_inbox(s, is_once && (more || now < *(volatile __u64 *)&my->rests_until_ns));
	if (is_once && result == XDP_DROP)
		fide_was_handed(slot, (__u64)sender << 32 | incarnation, number, 1);
	return own && result == XDP_DROP ? refuse(FIDE_REFUSED_OWN) : result;
}

SEC("xdp")
int fide_receive(struct xdp_md *ctx)
{
	int result = receive(ctx);
	__u32 reason = (__u32)result >> 8;
	__u64 *count;

	if (reason) {
		reason -= 1;
		count = bpf_map_lookup_elem(&refused, &reason);
		if (count)
			*count += 1; /* per CPU */
		fide_note(ctx, reason);
	}
	return ACTION(result);
}

/* On the agent's raw sockets, for hosts where the receive program is not attached and for what passes it: an answer to a question of this agent, or nothing. Sockets
 * of ICMP begin at the IP header, those of ICMPv6 behind it. */
SEC("socket")
int fide_answers(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, *path = bpf_map_lookup_elem(&path_of, &ifindex), row;
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct fide_setup *my = the_setup();
	struct fide_source *source;
	struct {
		__u8 type, code;
		__be16 check, id, sequence;
		__u64 head;
		__u32 tail;
		__be32 nonce[2];
	} icmp;
	__u64 from[2] = {};
	__u8 ver_ihl = 0;
	__u32 at = 0;

	if (!my || !path || *path >= FIDE_PATHS)
		return 0;
	if (!ipv6) {
		if (bpf_skb_load_bytes(skb, 0, &ver_ihl, 1))
			return 0;
		at = (ver_ihl & 15) * 4;
	}
	if (bpf_skb_load_bytes(skb, at, &icmp, ICMP_HEADER + PROBE_LEN))
		return 0;
	if (icmp.type != (ipv6 ? ICMPV6_ECHO_REPLY : ICMP_ECHOREPLY) || icmp.id != bpf_htons(my->probe_id))
		return 0;
	if (ipv6 ? bpf_skb_load_bytes_relative(skb, __builtin_offsetof(struct ip6, src), from, 16, BPF_HDR_START_NET) :
		   bpf_skb_load_bytes_relative(skb, __builtin_offsetof(struct ip4, src), from, 4, BPF_HDR_START_NET))
		return 0;
	if (!icmp.code && is_asked(*path, icmp.head, icmp.tail, (__u64)bpf_ntohl(icmp.nonce[0]) << 32 | bpf_ntohl(icmp.nonce[1]), from))
		return skb->len;
	row = UNWANTED_ECHO * FIDE_PATHS + *path;
	source = bpf_map_lookup_elem(&unwanted, &row);
	if (source) {
		__sync_fetch_and_add(&source->count, 1);
		source->from[0] = from[0];
		source->from[1] = from[1];
		__builtin_memset(source->mac, 0, sizeof(source->mac));
		source->ip = ipv6 ? 6 : 4;
		source->last_ns = bpf_ktime_get_ns();
	}
	return 0;
}
