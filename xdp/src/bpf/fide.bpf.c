// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* One object, so that the programs share their maps. Read in this order: maps.h, exit.h (where a crash starts), receive.h (where it
 * arrives), publish.h (what the agent adds). */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>
#include "fide_wire.h"
#include "siphash.h"
#include "maps.h"
#include "receive.h"
#include "exit.h"
#include "publish.h"

/* The kernel asks for a GPL-compatible licence of programs that use the tracing helpers. This object may be had under the GPL or Apache-2.0
 * (for which the kernel has no word). */
char LICENSE[] SEC("license") = "GPL";
