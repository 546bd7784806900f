// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* One object, so that the programs share their maps. Read in this order: maps.h, exit.h (where a crash starts), start.h (what may be watched next), receive.h (where it
 * arrives), publish.h (what the agent adds).
 *
 * What it needs, and since which Linux (socket filters and their helpers: 4.18): syscall programs that BPF_PROG_TEST_RUN runs 5.14; cmpxchg and fetching atomics 5.12; ring buffers
 * and arrays of maps in sleepable programs 5.12; bpf_get_current_task_btf 5.11; XDP links 5.9; ring buffers 5.8; memory-mapped arrays and BTF
 * tracepoints 5.5; bounded loops 5.3; spin locks 5.1. Not used because younger than 5.15: bpf_loop (5.17), kfuncs and dynptrs (5.19),
 * bpf_xdp_load_bytes (5.18), which is why packets are copied by a loop. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>
#include "fide_wire.h"
#include "maps.h"
#include "siphash.h"
#include "receive.h"
#include "exit.h"
#include "start.h"
#include "publish.h"

/* The kernel asks for a GPL-compatible licence of programs that use the tracing helpers. This object may be had under the GPL or Apache-2.0
 * (for which the kernel has no word). */
char LICENSE[] SEC("license") = "GPL";
