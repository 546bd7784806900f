/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The few kernel types the programs read. CO-RE relocates every access against the running kernel's BTF, so only the
 * names and types of the members matter here, not their places. */
#ifndef FIDE_KERNEL_H
#define FIDE_KERNEL_H

typedef signed int __s32;
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum { false = 0, true = 1 };
typedef _Bool bool;

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_RB_NO_WAKEUP = 1 << 0,
	BPF_RB_FORCE_WAKEUP = 1 << 1,
};

/* Declared by bpf_helper_defs.h without definition. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_CGROUP_STORAGE = 19,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum xdp_action { XDP_ABORTED = 0, XDP_DROP = 1, XDP_PASS = 2 };

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

/* As far as it is looked at. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
};

enum bpf_hdr_start_off { BPF_HDR_START_MAC = 0, BPF_HDR_START_NET = 1 };

struct bpf_spin_lock {
	__u32 val;
};

/* Packets are not aligned; one load all the same. The verifier allows it where the kernel has efficient unaligned access (x86, arm64, ppc64le,
 * s390x, and others); without these, clang assembles every word from single bytes. */
#define load16(at) (*(const __u16 *)(const void *)(at))
#define load32(at) (*(const __u32 *)(const void *)(at))
#define load64(at) (*(const __u64 *)(const void *)(at))

/* Between two comparisons that keep a number within limits, so that they stay two. Left alone, clang makes one of them, of a difference; from that,
 * only verifiers since about 6.10 learn anything of the number itself. */
#define OPAQUE(number) asm volatile("" : "+r"(number))

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct mm_struct;

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
	struct mm_struct *oom_mm; /* set when the OOM killer took the process, and never cleared */
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct path f_path;
};

struct mm_struct {
	struct file *exe_file;
};

struct kernfs_node {
	const char *name;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct sock_common {
	__u16 skc_num;
};

struct sock {
	struct sock_common __sk_common;
};

struct task_struct {
	char comm[16];
	struct mm_struct *mm;
	struct css_set *cgroups;
	int exit_code;
	int pid;
	int tgid;
	__u64 start_boottime;
	struct task_struct *group_leader;
	struct signal_struct *signal;
};

struct sigaction {
	void *sa_handler;
};

struct k_sigaction {
	struct sigaction sa;
};

#pragma clang attribute pop

/* include/linux/sched/signal.h */
#define SIGNAL_GROUP_EXIT 0x00000004
#define SIGNAL_UNKILLABLE 0x00000040

#endif
