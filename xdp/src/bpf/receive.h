/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The receive program: one pass over a packet in the driver's poll, before the stack.
 *
 *   not ours -> XDP_PASS          refused -> counted, XDP_DROP
 *   heartbeat -> peers[slot]      notice -> rings of the subscribers, then `urgent`
 *   all else, and piggybacks -> `inbox`
 */

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define IPPROTO_UDP 17

struct eth { __u8 dst[6], src[6]; __be16 proto; } __attribute__((packed));
struct vlan { __be16 tci, proto; } __attribute__((packed));
struct ip4 { __u8 ver_ihl, tos; __be16 len, id, frag; __u8 ttl, proto; __be16 check; __be32 src, dst; } __attribute__((packed));
struct ip6 { __be32 flow; __be16 len; __u8 next, hops; __u8 src[16], dst[16]; } __attribute__((packed));
struct udp { __be16 src, dst, len, check; } __attribute__((packed));

static __always_inline int refuse(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&refused, &reason);

	if (count)
		*count += 1; /* per CPU */
	return XDP_DROP;
}

/* Where the UDP payload starts, 0 when the packet is not for this port, negative (minus reason) when it is but is refused. */
static __always_inline int payload_offset(void *data, void *data_end, __u16 port)
{
	struct eth *eth = data;
	__u16 proto;
	__u32 at = sizeof(*eth);
	struct udp *udp;
	bool fragment = false;

	if ((void *)(eth + 1) > data_end)
		return 0;
	proto = bpf_ntohs(eth->proto);
	if (proto == ETH_P_8021Q) {
		struct vlan *vlan = data + at;

		if ((void *)(vlan + 1) > data_end)
			return 0;
		proto = bpf_ntohs(vlan->proto);
		at += sizeof(*vlan);
	}
	if (proto == ETH_P_IP) {
		struct ip4 *ip = data + at;

		if ((void *)(ip + 1) > data_end || ip->ver_ihl != 0x45 || ip->proto != IPPROTO_UDP)
			return 0;
		if (ip->frag & bpf_htons(0x1fff))
			return 0; /* no port in it: the stack's business */
		fragment = ip->frag & bpf_htons(0x2000);
		at += sizeof(*ip);
	} else if (proto == ETH_P_IPV6) {
		struct ip6 *ip = data + at;

		if ((void *)(ip + 1) > data_end || ip->next != IPPROTO_UDP)
			return 0;
		at += sizeof(*ip);
	} else {
		return 0;
	}
	udp = data + at;
	if ((void *)(udp + 1) > data_end || udp->dst != bpf_htons(port))
		return 0;
	if (fragment)
		return -FIDE_REFUSED_FRAGMENT;
	return at + sizeof(*udp);
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

/* The whole packet into `inbox`. `packet` has `len` bytes before data_end. */
static __always_inline void to_inbox(struct fide_record *head, void *packet, void *data_end, __u32 len)
{
	__u32 zero = 0, n = 0;
	struct fide_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	__u8 *from = packet;

	if (!s || len > FIDE_PACKET_MAX)
		return;
	s->record = *head;
	s->record.kind = FIDE_RECORD_PACKET;
	s->record.body_len = len;
	for (int i = 0; i < (FIDE_PACKET_MAX + 7) / 8; i++) {
		if ((void *)(from + 8) > data_end)
			break;
		__builtin_memcpy(s->packet + n, from, 8);
		from += 8;
		n += 8;
	}
	for (int i = 0; i < 7; i++) {
		if ((void *)(from + 1) > data_end || n >= FIDE_PACKET_MAX)
			break;
		s->packet[n] = *from;
		from += 1;
		n += 1;
	}
	if (bpf_ringbuf_output(&inbox, s, sizeof(s->record) + (len & 2047), 0))
		refuse(FIDE_REFUSED_RING_FULL);
}

/* Whether notice `n` of this incarnation is seen for the first time. Both paths' copies may be handled at once, on two CPUs. */
static __always_inline bool first_copy(__u32 slot, __u32 incarnation, __u32 n)
{
	struct fide_seen *s = bpf_map_lookup_elem(&seen, &slot);
	bool first = false;

	if (!s)
		return false;
	bpf_spin_lock(&s->lock);
	if (s->incarnation != incarnation) {
		s->incarnation = incarnation;
		s->highest = 0;
		s->window = ~0ULL; /* bit 0 stands for notice 0, which does not exist; nor do those below it */
	}
	if (n > s->highest) {
		__u32 step = n - s->highest;

		s->window = step > 63 ? 1 : s->window << step | 1;
		s->highest = n;
		first = true;
	} else {
		__u32 back = s->highest - n;

		if (back < 64 && !(s->window >> back & 1)) {
			s->window |= 1ULL << back;
			first = true;
		}
	}
	bpf_spin_unlock(&s->lock);
	return first;
}

static __always_inline int heartbeat(struct fide_peer *peer, __u32 slot, __u32 path, struct fide_fixed *f, __u64 now)
{
	struct fide_path *p = &peer->path[path & (FIDE_PATHS - 1)];
	__u64 number = bpf_be64_to_cpu(f->number);
	__u64 step = number - p->number;
	__u64 gap = now - p->arrived_ns;
	__u32 period = bpf_ntohl(f->period_ns);

	if (number <= p->number) {
		p->refused += 1;
		refuse(FIDE_REFUSED_OLD_NUMBER);
		return -1;
	}
	if (p->number) {
		if (step > 1)
			p->lost += step - 1;
		else
			count_jitter(slot, path, p, gap > period ? gap - period : 0);
	}
	p->sent_ns = bpf_be64_to_cpu(f->sent_ns);
	p->arrived += 1;
	p->arrived_ns = now;
	p->number = number; /* last: who reads the number sees its arrival */
	peer->period_ns = period;
	return 0;
}

SEC("xdp")
int fide_receive(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u64 now = bpf_ktime_get_ns();
	struct fide_setup *my = the_setup();
	struct fide_fixed *f;
	struct fide_notice *n = 0;
	struct fide_peer *peer;
	struct fide_key *key;
	struct fide_record record = {};
	__u32 *path_found, *slot_found, slot, path, kind, sender, incarnation, len, ifindex = ctx->ingress_ifindex;
	__u64 tag;
	int offset;

	if (!my)
		return XDP_PASS;
	offset = payload_offset(data, data_end, my->port);
	if (offset == 0)
		return XDP_PASS;
	if (offset < 0)
		return refuse(-offset);
	f = data + offset;
	if ((void *)f + FIDE_FIXED_LEN + FIDE_TAG_LEN > data_end)
		return refuse(FIDE_REFUSED_SHORT);
	if (f->magic != bpf_htons(FIDE_MAGIC))
		return refuse(FIDE_REFUSED_MAGIC);
	if (f->version_kind >> 4 != FIDE_VERSION)
		return refuse(FIDE_REFUSED_VERSION);
	if (f->cluster != bpf_htonl(my->cluster))
		return refuse(FIDE_REFUSED_CLUSTER);
	path_found = bpf_map_lookup_elem(&path_of, &ifindex);
	if (!path_found)
		return XDP_PASS;
	path = *path_found;
	if (f->path_key >> 4 != path || path >= FIDE_PATHS)
		return refuse(FIDE_REFUSED_WRONG_PATH);

	key = &my->keys[f->path_key & 15];
	if (!key->valid)
		return refuse(FIDE_REFUSED_KEY);
	kind = f->version_kind & 7;
	if (kind == FIDE_KIND_NOTICE || kind == FIDE_KIND_LEAVE) {
		n = (void *)(f + 1);
		if ((void *)(n + 1) + FIDE_TAG_LEN > data_end)
			return refuse(FIDE_REFUSED_SHORT);
		__builtin_memcpy(&tag, n + 1, 8);
		if (siphash_tail4(f, 7, key->k0, key->k1) != bpf_be64_to_cpu(tag))
			return refuse(FIDE_REFUSED_MAC);
	} else {
		__builtin_memcpy(&tag, f + 1, 8);
		if (siphash_tail4(f, 4, key->k0, key->k1) != bpf_be64_to_cpu(tag))
			return refuse(FIDE_REFUSED_MAC);
	}

	sender = bpf_ntohl(f->sender);
	incarnation = bpf_ntohl(f->incarnation);
	len = data_end - (void *)f;
	if (len > FIDE_PACKET_MAX)
		return refuse(FIDE_REFUSED_OVERSIZE);
	if (sender == my->node) {
		if (incarnation != my->incarnation) {
			my->clash_incarnation = incarnation;
			my->clashes += 1;
		}
		return refuse(FIDE_REFUSED_OWN);
	}

	record.node = sender;
	record.incarnation = incarnation;
	record.path = path;
	record.sent_ns = bpf_be64_to_cpu(f->sent_ns);
	record.received_ns = now;
	record.number = bpf_be64_to_cpu(f->number);

	slot_found = bpf_map_lookup_elem(&slot_of, &sender);
	if (!slot_found) {
		if (kind != FIDE_KIND_ANNOUNCE)
			return refuse(FIDE_REFUSED_UNKNOWN_SENDER);
		to_inbox(&record, f, data_end, len);
		return XDP_DROP;
	}
	slot = *slot_found;
	peer = bpf_map_lookup_elem(&peers, &slot);
	if (!peer)
		return refuse(FIDE_REFUSED_UNKNOWN_SENDER);
	if (incarnation != peer->incarnation || peer->condemned) {
		/* A newer life is the agent's to begin, and it begins with an announcement. */
		if (incarnation > peer->incarnation && kind == FIDE_KIND_ANNOUNCE) {
			to_inbox(&record, f, data_end, len);
			return XDP_DROP;
		}
		return refuse(FIDE_REFUSED_OLD_INCARNATION);
	}

	if (kind == FIDE_KIND_HEARTBEAT) {
		if (heartbeat(peer, slot, path, f, now) == 0 && len > FIDE_FIXED_LEN + FIDE_TAG_LEN)
			to_inbox(&record, f, data_end, len);
		return XDP_DROP;
	}
	{
		struct fide_path *p = &peer->path[path & (FIDE_PATHS - 1)];

		if (record.number <= p->event_number) {
			p->refused += 1;
			return refuse(FIDE_REFUSED_OLD_NUMBER);
		}
		p->event_number = record.number;
	}
	if (!n) {
		if (kind > FIDE_KIND_ANNOUNCE || kind == 0)
			return refuse(FIDE_REFUSED_KIND);
		to_inbox(&record, f, data_end, len);
		return XDP_DROP;
	}

	record.kind = kind == FIDE_KIND_LEAVE ? FIDE_RECORD_HOST : FIDE_RECORD_PROCESS;
	record.cause = n->cause;
	record.grade = n->grade;
	record.app = bpf_ntohl(n->app);
	record.code = bpf_ntohl(n->code);
	record.flags = bpf_ntohs(n->flags) & FIDE_NOTICE_CONFIRMS ? FIDE_RECORD_CONFIRMS : 0;
	record.event_ns = bpf_be64_to_cpu(n->event_ns);
	record.id = (__u64)sender << 32 | bpf_ntohl(n->notice);
	if (first_copy(slot, incarnation, bpf_ntohl(n->notice)))
		deliver(&record);
	else
		record.flags |= FIDE_RECORD_DUPLICATE;
	if (bpf_ringbuf_output(&urgent, &record, sizeof(record), 0)) {
		__sync_fetch_and_add(&my->urgent_lost, 1);
		refuse(FIDE_REFUSED_RING_FULL);
	}
	return XDP_DROP;
}
