/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* SipHash-2-4 over a frame: its header, and its body, which follows the tag. */
#ifndef FIDE_SIPHASH_H
#define FIDE_SIPHASH_H

#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define SIPROUND                                                                                                       \
	do {                                                                                                           \
		v0 += v1; v1 = ROTL(v1, 13); v1 ^= v0; v0 = ROTL(v0, 32);                                              \
		v2 += v3; v3 = ROTL(v3, 16); v3 ^= v2;                                                                 \
		v0 += v3; v3 = ROTL(v3, 21); v3 ^= v0;                                                                 \
		v2 += v1; v1 = ROTL(v1, 17); v1 ^= v2; v2 = ROTL(v2, 32);                                              \
	} while (0)

/* SipHash reads little-endian words. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define le64(at) load64(at)
#else
#define le64(at) __builtin_bswap64(load64(at))
#endif

/* Over the header and `words` words of body behind its tag: a constant at each place of use, so that the loop unrolls. */
static __always_inline __u64 siphash_frame(const void *frame, const int words, __u64 k0, __u64 k1)
{
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;
	__u64 last = (__u64)(FIDE_HEADER_LEN + words * 8) << 56;

#pragma unroll
	for (int i = 0; i < FIDE_HEADER_LEN / 8 + words; i++) {
		__u64 m = le64(frame + 8 * i + (i < FIDE_HEADER_LEN / 8 ? 0 : FIDE_TAG_LEN));

		v3 ^= m;
		SIPROUND;
		SIPROUND;
		v0 ^= m;
	}
	v3 ^= last;
	SIPROUND;
	SIPROUND;
	v0 ^= last;
	v2 ^= 0xff;
	SIPROUND;
	SIPROUND;
	SIPROUND;
	SIPROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

/* The tag of the frame in the scratch room, whose body has `len` bytes: at most FIDE_BODY_MAX, and 8 more bytes may be read. A function of its own, which
 * the verifier walks once and not once for every length copied. */
__noinline __u64 fide_tag(struct fide_scratch *s, __u32 len, __u64 k0, __u64 k1)
{
	__u64 v0 = k0 ^ 0x736f6d6570736575ULL, v1 = k1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = k0 ^ 0x6c7967656e657261ULL, v3 = k1 ^ 0x7465646279746573ULL;
	const __u8 *frame = (const __u8 *)s + PACKET_AT;
	__u64 m, rest;

	if (!s)
		return 0;
#pragma unroll
	for (int i = 0; i < FIDE_HEADER_LEN / 8; i++) {
		m = le64(frame + 8 * i);
		v3 ^= m;
		SIPROUND;
		SIPROUND;
		v0 ^= m;
	}
	/* The last word counts for 0 to 7 bytes, and has the length in its highest. */
	for (__u32 at = 0; at <= FIDE_BODY_MAX; at += 8) {
		m = le64(frame + FIDE_BODY_AT + at);
		rest = len - at;
		if (rest < 8) {
			m &= rest ? ~0ULL >> (64 - 8 * rest) : 0;
			m |= (__u64)(len + FIDE_HEADER_LEN) << 56;
		}
		v3 ^= m;
		SIPROUND;
		SIPROUND;
		v0 ^= m;
		if (rest < 8)
			break;
	}
	v2 ^= 0xff;
	SIPROUND;
	SIPROUND;
	SIPROUND;
	SIPROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

#endif
