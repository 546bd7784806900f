/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The receive program: one pass over a packet in the driver's poll, before the stack.
 *
 *   not ours -> XDP_PASS          refused -> counted, XDP_DROP
 *   heartbeat -> peers[slot]      its piggyback -> rings of the subscribers
 *   notice -> rings of the subscribers, then `urgent`
 *   all else -> `inbox`
 *
 * Piggybacks and notices go the same way at the same time, so that a subscriber hears a process's last words before its crash
 * (fail-consistency, FiDe §4.1), and never after it.
 *
 * What is refused before the tag is checked, and for which reason, is what fide_wire::packet::decode says of the same bytes (a test
 * compares them); who sent it and how fresh it is comes after the tag, so that nobody without the key can move those counters.
 * What another agent sends to ask this host's kernel whether it is there is none of both: dropped, not counted.
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
	 1U << FIDE_CAUSE_HUNG | 1U << FIDE_CAUSE_PROGRESSING |                                                        \
	 1U << FIDE_CAUSE_RETURNED | 1U << FIDE_CAUSE_CONTRACT_KEPT | 1U << FIDE_CAUSE_REJOINED |                      \
	 1U << FIDE_CAUSE_OBSERVER_PAUSED | 1U << FIDE_CAUSE_NAME_CLASH | 1U << FIDE_CAUSE_FOREIGN_TRAFFIC |           \
	 1U << FIDE_CAUSE_MONITORED | 1U << FIDE_CAUSE_INTERFACE | 1U << FIDE_CAUSE_LOCAL |                            \
	 1U << FIDE_CAUSE_FENCED | 1U << FIDE_CAUSE_RECOVERED)

static __always_inline int refuse(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&refused, &reason);

	if (count)
		*count += 1; /* per CPU */
	return XDP_DROP;
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

/* A barrier (SafeTimer §4.1): the answer to a question of this agent has come out of a receive queue, so whatever came into it before has too. It
 * goes on to the agent's socket, or to nobody (TCP); somebody else's answer is noted as well and means nothing to the agent, who looks for its own number. */
static __always_inline void note_barrier(void *data, void *data_end, __u32 ifindex, __u32 queue, __u16 port)
{
	struct eth *eth = data;
	__u32 at = sizeof(*eth), *path, row;
	__u64 *noted, number;
	__u16 proto;
	__u8 next, *icmp;

	if ((void *)(eth + 1) > data_end)
		return;
	proto = load16(&eth->proto);
	if (proto == bpf_htons(ETH_P_8021Q)) {
		if (data + at + sizeof(struct vlan) > data_end)
			return;
		proto = load16(data + at + 2);
		at += sizeof(struct vlan);
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct ip4 *ip = data + at;

		if ((void *)(ip + 1) > data_end || ip->ver_ihl != 0x45)
			return;
		next = ip->proto;
		if (next == IPPROTO_ICMPV6)
			return;
		at += sizeof(*ip);
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ip6 *ip = data + at;

		if ((void *)(ip + 1) > data_end)
			return;
		next = ip->next;
		if (next == IPPROTO_ICMP)
			return;
		at += sizeof(*ip);
	} else {
		return;
	}
	if (next == IPPROTO_TCP) {
		struct tcp *tcp = data + at;

		if ((void *)(tcp + 1) > data_end || load16(&tcp->src) != bpf_htons(port) || !(tcp->flags & TCP_ACK) ||
		    !(tcp->flags & (TCP_SYN | TCP_RST)))
			return;
		number = bpf_cpu_to_be64((__u64)STEERED_MAGIC << 32 | (__u32)(bpf_ntohl(load32(&tcp->ack)) - 1));
	} else if (next == IPPROTO_ICMP || next == IPPROTO_ICMPV6) {
		icmp = data + at;
		if ((void *)icmp + ICMP_HEADER + PROBE_LEN > data_end || (icmp[0] != ICMP_ECHOREPLY && icmp[0] != ICMPV6_ECHO_REPLY) ||
		    load32(icmp + ICMP_HEADER) != bpf_htonl(PROBE_MAGIC))
			return;
		number = load64(icmp + ICMP_HEADER + PROBE_LEN - 8);
	} else {
		return;
	}
	path = bpf_map_lookup_elem(&path_of, &ifindex);
	if (!path || queue >= FIDE_QUEUES)
		return;
	row = *path * FIDE_QUEUES + queue;
	noted = bpf_map_lookup_elem(&barriers, &row);
	if (noted) /* a full barrier: the rows written before are seen by who sees this */
		__sync_lock_test_and_set(noted, number);
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

/* Copies a packet of `len` bytes, 44 to FIDE_PACKET_MAX, into the scratch room at `to`. The last 32 bytes first, then from the start until these
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
				      __u64 sent, __u32 period, __u64 now)
{
	__u64 gap = now - p->arrived_ns;

	if (before) {
		if (number - before > 1)
			p->lost += number - before - 1;
		else
			count_jitter(slot, path, p, gap > period ? gap - period : 0);
	}
	p->arrived_ns = now;
	p->sent_ns = sent;
	p->arrived += 1;
	if (p->arrived % FIDE_MARK_EVERY == 0)
		set_mark(peer, p, path, now);
	peer->period_ns = period;
}

/* Whether the piggyback of heartbeat `number` is seen for the first time: both paths carry it. */
static __always_inline bool first_beat(__u32 slot, __u32 node, __u32 incarnation, __u64 number)
{
	struct fide_beats *b = bpf_map_lookup_elem(&beats, &slot);
	bool first = false;

	if (!b)
		return false;
	bpf_spin_lock(&b->lock);
	if (b->node != node || b->incarnation != incarnation) {
		b->node = node;
		b->incarnation = incarnation;
		b->highest = 0;
		b->window = 0;
	}
	if (number > b->highest) {
		__u64 step = number - b->highest;

		b->window = step > 63 ? 1 : b->window << step | 1;
		b->highest = number;
		first = true;
	} else if (b->highest - number < 64) {
		__u64 bit = 1ULL << (b->highest - number);

		first = !(b->window & bit);
		b->window |= bit;
	}
	bpf_spin_unlock(&b->lock);
	return first;
}

/* Delivers the record in the scratch room, `len` bytes with its body. A function of its own, which the verifier walks once. */
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
__noinline int fide_to_inbox(struct fide_scratch *s)
{
	__u64 len;

	if (!s)
		return XDP_DROP;
	len = s->len;
	if (len > FIDE_PACKET_MAX)
		return XDP_DROP;
	if (bpf_ringbuf_output(&inbox, (__u8 *)s + INBOX_AT, sizeof(struct fide_record) + len, 0))
		return refuse(FIDE_REFUSED_RING_FULL);
	return XDP_DROP;
}

/* A heartbeat's body, copied to behind the scratch record: checked, then written to the rings of the subscribers of the process it is from, once,
 * and not after the process's end was told. */
static __always_inline int piggyback(struct fide_scratch *s, struct fide_record *head, __u32 slot, struct fide_key *key, __u32 body_len)
{
	__u8 *body = (__u8 *)&s->record + sizeof(s->record) - FIDE_PIGGYBACK_HEAD;
	__u32 *ended_in;
	__u64 who;

	if (fide_body_tag(s, body_len, key->k0, key->k1) != bpf_be64_to_cpu(load64(body - FIDE_TAG_LEN)))
		return refuse(FIDE_REFUSED_BODY_MAC);
	if (!first_beat(slot, head->node, head->incarnation, head->number))
		return XDP_DROP;
	head->app = bpf_ntohs(load16(body));
	who = (__u64)head->node << 32 | head->app;
	ended_in = bpf_map_lookup_elem(&ended, &who);
	if (ended_in && *ended_in == head->incarnation)
		return XDP_DROP;
	s->record = *head;
	s->record.kind = FIDE_RECORD_PIGGYBACK;
	s->record.body_len = body_len - FIDE_PIGGYBACK_HEAD;
	fide_deliver(s, sizeof(s->record) + body_len - FIDE_PIGGYBACK_HEAD);
	return XDP_DROP;
}

SEC("xdp")
int fide_receive(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct fide_setup *my = the_setup();
	struct fide_scratch *s;
	struct payload payload;
	struct fide_fixed *f;
	struct fide_notice *n = 0;
	struct fide_peer *peer;
	struct fide_path *p;
	struct fide_key *key;
	struct fide_record record = {};
	__u32 *path_found, *slot_found, slot, path, kind, sender, incarnation, len, body_at, zero = 0, queue, ifindex = ctx->ingress_ifindex;
	bool with_body = false;
	__u64 tag, number, before, now, row;

	s = bpf_map_lookup_elem(&scratch, &zero);
	if (!my || !s)
		return XDP_PASS;
	find_payload(data, data_end, my->port, &payload);
	if (!payload.at) {
		note_barrier(data, data_end, ifindex, ctx->rx_queue_index, my->port);
		return XDP_PASS;
	}
	path_found = bpf_map_lookup_elem(&path_of, &ifindex);
	if (!path_found)
		return XDP_PASS;
	path = *path_found;
	now = bpf_ktime_get_ns();

	if (payload.fragment)
		return refuse(FIDE_REFUSED_FRAGMENT);
	f = payload.at;
	len = payload.len;
	if (len > data_end - (void *)f)
		return refuse(FIDE_REFUSED_SHORT);
	if (len == PROBE_LEN && (void *)f + PROBE_LEN <= data_end && load32(f) == bpf_htonl(PROBE_MAGIC))
		return XDP_DROP;
	if (len < FIDE_FIXED_LEN + FIDE_TAG_LEN || (void *)f + FIDE_FIXED_LEN + FIDE_TAG_LEN > data_end)
		return refuse(FIDE_REFUSED_SHORT);
	if (load16(&f->magic) != bpf_htons(FIDE_MAGIC))
		return refuse(FIDE_REFUSED_MAGIC);
	if (f->version_kind >> 4 != FIDE_VERSION)
		return refuse(FIDE_REFUSED_VERSION);
	kind = f->version_kind & 7;
	if (kind < FIDE_KIND_HEARTBEAT || kind > FIDE_KIND_ANNOUNCE)
		return refuse(FIDE_REFUSED_KIND);
	if (load32(&f->cluster) != bpf_htonl(my->cluster))
		return refuse(FIDE_REFUSED_CLUSTER);
	body_at = FIDE_FIXED_LEN + FIDE_TAG_LEN;
	if (kind == FIDE_KIND_NOTICE || kind == FIDE_KIND_LEAVE) {
		n = (void *)(f + 1);
		body_at += FIDE_NOTICE_LEN;
		if (len < body_at || (void *)f + FIDE_FIXED_LEN + FIDE_NOTICE_LEN + FIDE_TAG_LEN > data_end)
			return refuse(FIDE_REFUSED_SHORT);
	}
	if (len > body_at + FIDE_TAG_LEN + BODY_MAX)
		return refuse(FIDE_REFUSED_OVERSIZE);
	key = &my->keys[f->path_key & 15];
	if (!key->valid)
		return refuse(FIDE_REFUSED_KEY);
	if (n) {
		tag = load64(n + 1);
		if (siphash_tail4(f, 7, key->k0, key->k1) != bpf_be64_to_cpu(tag))
			return refuse(FIDE_REFUSED_MAC);
		if (n->cause > 31 || !(CAUSES >> n->cause & 1) || (n->grade != FIDE_GRADE_CERTAIN && n->grade != FIDE_GRADE_INFERRED))
			return refuse(FIDE_REFUSED_KIND);
	} else {
		tag = load64(f + 1);
		if (siphash_tail4(f, 4, key->k0, key->k1) != bpf_be64_to_cpu(tag))
			return refuse(FIDE_REFUSED_MAC);
	}
	/* A body cannot be cut off, or appended, unnoticed. Its own tag is checked where it is delivered. */
	if (!(f->version_kind & FIDE_HAS_BODY)) {
		if (len != body_at)
			return refuse(FIDE_REFUSED_OVERSIZE);
	} else if (len <= body_at + FIDE_TAG_LEN) {
		return refuse(FIDE_REFUSED_SHORT);
	}

	if (f->path_key >> 4 != path || path >= FIDE_PATHS)
		return refuse(FIDE_REFUSED_WRONG_PATH);
	sender = bpf_ntohl(load32(&f->sender));
	incarnation = bpf_ntohl(load32(&f->incarnation));
	number = bpf_be64_to_cpu(load64(&f->number));
	if (sender == my->node) {
		if (incarnation != my->life >> 32) {
			my->clash_incarnation = incarnation;
			__sync_fetch_and_add(&my->clashes, 1);
		}
		return refuse(FIDE_REFUSED_OWN);
	}

	record.node = sender;
	record.incarnation = incarnation;
	record.path = path;
	record.sent_ns = bpf_be64_to_cpu(load64(&f->sent_ns));
	record.received_ns = now;
	record.number = number;

	slot_found = bpf_map_lookup_elem(&slot_of, &sender);
	if (!slot_found) {
		if (kind == FIDE_KIND_ANNOUNCE)
			goto whole_packet;
		return refuse(FIDE_REFUSED_UNKNOWN_SENDER);
	}
	slot = *slot_found;
	peer = bpf_map_lookup_elem(&peers, &slot);
	if (!peer)
		return refuse(FIDE_REFUSED_UNKNOWN_SENDER);
	if (incarnation != peer->incarnation || peer->condemned) {
		/* A newer life is the agent's to begin, and it begins with an announcement. */
		if (incarnation > peer->incarnation && kind == FIDE_KIND_ANNOUNCE)
			goto whole_packet;
		/* Who was given up may have given us up: only its report says so, and unless we heed it both wait for the other one for ever. Its row
		 * is not touched but for that, so that a replay is one. */
		if (incarnation == peer->incarnation && kind == FIDE_KIND_PATH_REPORT) {
			__u32 which = path, *told, seen;

			OPAQUE(which);
			told = &peer->told[which & (FIDE_PATHS - 1)];
			seen = *(volatile __u32 *)told;
			if ((__u32)number <= seen || __sync_val_compare_and_swap(told, seen, (__u32)number) != seen)
				return refuse(FIDE_REFUSED_OLD_NUMBER);
			goto whole_packet;
		}
		return refuse(FIDE_REFUSED_OLD_INCARNATION);
	}

	row = path;
	OPAQUE(row); /* or the mask would go, because path was compared before: in another register */
	p = &peer->path[row & (FIDE_PATHS - 1)];
	if (kind == FIDE_KIND_HEARTBEAT) {
		if (!is_newer(peer, incarnation, &p->number, number, &before)) {
			p->refused += 1;
			return refuse(FIDE_REFUSED_OLD_NUMBER);
		}
		heartbeat(peer, p, slot, path, number, before, record.sent_ns, bpf_ntohl(load32(&f->period_ns)), now);
		queue = ctx->rx_queue_index + 1;
		if (peer->queue[row & (FIDE_PATHS - 1)] != queue)
			peer->queue[row & (FIDE_PATHS - 1)] = queue;
		if (!(f->version_kind & FIDE_HAS_BODY))
			return XDP_DROP;
		if (my->sockets)
			goto whole_packet; /* somebody's ring is a socket, which only the agent can write: it serves all of them, in order */
		with_body = true;
		goto whole_packet;
	}
	if (!is_newer(peer, incarnation, &p->event_number, number, &before)) {
		p->refused += 1;
		return refuse(FIDE_REFUSED_OLD_NUMBER);
	}
	if (!n)
		goto whole_packet;

	record.kind = kind == FIDE_KIND_LEAVE ? FIDE_RECORD_HOST : FIDE_RECORD_PROCESS;
	record.cause = n->cause;
	record.grade = n->grade;
	record.app = bpf_ntohl(load32(&n->app));
	record.code = bpf_ntohl(load32(&n->code));
	record.flags = bpf_ntohs(load16(&n->flags)) & FIDE_NOTICE_CONFIRMS ? FIDE_RECORD_CONFIRMS : 0;
	record.event_ns = bpf_be64_to_cpu(load64(&n->event_ns));
	record.id = (__u64)sender << 32 | bpf_ntohl(load32(&n->notice));
	if (first_copy(slot, sender, incarnation, bpf_ntohl(load32(&n->notice)))) {
		__u64 who = (__u64)sender << 32 | record.app;

		/* A process that is hung, or moves again, goes on talking. */
		if (record.app && record.cause != FIDE_CAUSE_HUNG && record.cause != FIDE_CAUSE_PROGRESSING)
			bpf_map_update_elem(&ended, &who, &incarnation, BPF_ANY);
		s->record = record;
		fide_deliver(s, sizeof(record));
	} else {
		record.flags |= FIDE_RECORD_DUPLICATE;
	}
	/* When this fails the notice stays unconfirmed and comes again, for the agent as a duplicate that it has not heard of. */
	if (bpf_ringbuf_output(&urgent, &record, sizeof(record), 0)) {
		__sync_fetch_and_add(&my->urgent_lost, 1);
		return refuse(FIDE_REFUSED_RING_FULL);
	}
	return XDP_DROP;

whole_packet:
	/* In the room, a message of a piggyback lies right behind the record; a whole packet has its record before it. */
	if (!with_body) {
		record.kind = FIDE_RECORD_PACKET;
		record.body_len = len;
		for (int i = 0; i < (int)sizeof(record); i += 8)
			*(__u64 *)((__u8 *)s + INBOX_AT + i) = load64((__u8 *)&record + i);
	}
	*(volatile __u32 *)&s->len = len;
	if (!copy_packet((__u8 *)s + PACKET_AT, f, data_end, len))
		return refuse(FIDE_REFUSED_OVERSIZE);
	/* Read back, the length is a number of which the verifier knows nothing: it need not walk the rest anew for every length copied. */
	if (with_body) {
		len = *(volatile __u32 *)&s->len;
		if (len <= BODY_AT + FIDE_PIGGYBACK_HEAD)
			return refuse(FIDE_REFUSED_SHORT);
		return piggyback(s, &record, slot, key, len - BODY_AT);
	}
	return fide_to_inbox(s);
}
