/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Generated from wire/src by `cargo xtask gen`. Do not edit. */
#ifndef FIDE_WIRE_H
#define FIDE_WIRE_H

#define FIDE_PORT 3433
#define FIDE_MAGIC 61918
#define FIDE_VERSION 2
#define FIDE_MORE 1
#define FIDE_HEADER_LEN 40
#define FIDE_TAG_LEN 8
#define FIDE_BODY_AT 48
#define FIDE_BODY_MAX 1424
#define FIDE_CHANGE_LEN 32
#define FIDE_CHANGES_MAX 44
#define FIDE_ITEM_HEAD 3
#define FIDE_CHANNEL_PIGGYBACK 1
#define FIDE_CHANNEL_GROUPS 2
#define FIDE_PACKET_MAX 1472
#define FIDE_PIGGYBACK_HEAD 2
#define FIDE_PIGGYBACK_MAX 1418
#define FIDE_PATHS 2
#define FIDE_SLOTS 256
#define FIDE_JITTER_BUCKETS 128
#define FIDE_MARK_EVERY 64
#define FIDE_MARK_SHIFT 20
#define FIDE_JITTER_UNIT_SHIFT 8
#define FIDE_KIND_HEARTBEAT 1
#define FIDE_KIND_CHANGE 2
#define FIDE_KIND_PULL 3
#define FIDE_KIND_ROWS 4
#define FIDE_KIND_HELLO 5
#define FIDE_KIND_INTRODUCTION 6
#define FIDE_KIND_PATH_REPORT 7
#define FIDE_KIND_MESSAGE 8
#define FIDE_KIND_FRAGMENT 9
#define FIDE_KIND_COPY 10
#define FIDE_KIND_MEMORY 11
#define FIDE_KIND_MEMORY_ANSWER 12
#define FIDE_KIND_SIZE_PROBE 13
#define FIDE_KIND_SIZE_ANSWER 14
#define FIDE_REFUSED_SHORT 0
#define FIDE_REFUSED_MAGIC 1
#define FIDE_REFUSED_VERSION 2
#define FIDE_REFUSED_KIND 3
#define FIDE_REFUSED_CLUSTER 4
#define FIDE_REFUSED_KEY 5
#define FIDE_REFUSED_MAC 6
#define FIDE_REFUSED_OLD_NUMBER 7
#define FIDE_REFUSED_OLD_INCARNATION 8
#define FIDE_REFUSED_WRONG_PATH 9
#define FIDE_REFUSED_OVERSIZE 10
#define FIDE_REFUSED_OWN 11
#define FIDE_REFUSED_UNKNOWN_SENDER 12
#define FIDE_REFUSED_RING_FULL 13
#define FIDE_REFUSED_FRAGMENT 14
#define FIDE_REFUSED_RATE_LIMITED 15
#define FIDE_REFUSALS 16
#define FIDE_CAUSE_EXITED 1
#define FIDE_CAUSE_KILLED 2
#define FIDE_CAUSE_DOOMED 3
#define FIDE_CAUSE_LEFT 4
#define FIDE_CAUSE_AGENT_LOST 5
#define FIDE_CAUSE_SILENT_HOST 6
#define FIDE_CAUSE_PATH_DOWN 7
#define FIDE_CAUSE_CONTRACT_BROKEN 8
#define FIDE_CAUSE_ISOLATED 9
#define FIDE_CAUSE_HUNG 10
#define FIDE_CAUSE_OUT_OF_MEMORY 11
#define FIDE_CAUSE_UNREACHABLE 12
#define FIDE_CAUSE_REPLACED 13
#define FIDE_CAUSE_PATH_UP 16
#define FIDE_CAUSE_RETURNED 17
#define FIDE_CAUSE_CONTRACT_KEPT 18
#define FIDE_CAUSE_REJOINED 19
#define FIDE_CAUSE_OBSERVER_PAUSED 20
#define FIDE_CAUSE_NAME_CLASH 21
#define FIDE_CAUSE_FOREIGN_TRAFFIC 22
#define FIDE_CAUSE_MONITORED 23
#define FIDE_CAUSE_INTERFACE 24
#define FIDE_CAUSE_LOCAL 25
#define FIDE_CAUSE_FENCED 26
#define FIDE_CAUSE_RECOVERED 27
#define FIDE_CAUSE_PROGRESSING 28
#define FIDE_GRADE_CERTAIN 1
#define FIDE_GRADE_INFERRED 2
#define FIDE_RECORD_PROCESS 1
#define FIDE_RECORD_HOST 2
#define FIDE_RECORD_PIGGYBACK 3
#define FIDE_RECORD_LOST 4
#define FIDE_RECORD_TIMEOUT_CHANGED 5
#define FIDE_RECORD_PIGGYBACK_SIZE_CHANGED 6
#define FIDE_RECORD_MONITOR_REQUEST 7
#define FIDE_RECORD_PACKET 32
#define FIDE_RECORD_EXIT 33
#define FIDE_RECORD_CONFIRMS 1
#define FIDE_RECORD_LOCAL 2
#define FIDE_RECORD_DUPLICATE 4
#define FIDE_RECORD_FENCED 8
#define FIDE_NOTICE_CONFIRMS 1

/* Big-endian, as on the wire. */
struct fide_header {
	__u16 magic;
	__u8 version_flags;
	__u8 path_key;
	__u32 cluster;
	__u32 sender;
	__u32 incarnation;
	__u64 kind_channel_number; /* u8, u8, u48 */
	__u64 sent_ns;
	__u32 period_ns;
	__u32 table_version;
} __attribute__((packed));

struct fide_change {
	__u32 origin;
	__u32 row;
	__u64 version;
	__u8 cause;
	__u8 grade;
	__u16 flags;
	__s32 code;
	__u64 event_ns;
} __attribute__((packed));

/* Host byte order, in rings. */
struct fide_record {
	__u16 kind;
	__u8 cause;
	__u8 grade;
	__u32 node;
	__u32 app;
	__u32 incarnation;
	__s32 code;
	__u8 path;
	__u8 flags;
	__u16 body_len;
	__u64 id;
	__u64 event_ns;
	__u64 sent_ns;
	__u64 received_ns;
	__u64 number;
	__u32 pid;
	__u32 reserved;
};

_Static_assert(sizeof(struct fide_header) == FIDE_HEADER_LEN, "header");
_Static_assert(sizeof(struct fide_change) == FIDE_CHANGE_LEN, "change");
_Static_assert(sizeof(struct fide_record) == 72, "record");

#endif
