/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfide: know within microseconds that a process on another host has crashed.
 *
 *     struct fide *f;
 *     if (fide_open(NULL, &f) != FIDE_OK)
 *             errx(1, "%s", fide_last_error_text());
 *     fide_monitor(f, "db@a", NULL, NULL);
 *     struct fide_event e;
 *     fide_event_init(&e);
 *     for (;;) {
 *             int got = fide_next_event(f, &e, -1);
 *             if (got == 1 && e.kind == FIDE_EVENT_FAILURE)
 *                     printf("%s %s\n", e.name, fide_cause_name(e.cause));
 *             while (got == FIDE_EDISCONNECTED && usleep(10000) == 0)   (its agent restarts)
 *                     got = fide_reconnect(f, NULL, NULL);
 *             if (got < 0)
 *                     errx(1, "%s", fide_last_error_text());
 *     }
 *
 * Conventions
 *   - Functions that return int return FIDE_OK or a count, or a negative enum fide_error; fide_last_error_text() then says
 *     in words what, why and what to do.
 *   - A NULL pointer where none is allowed is refused with FIDE_EINVAL; "may be NULL" is said where it is allowed.
 *   - Strings are UTF-8 and end with a zero.
 *   - Every function may be called from any thread at any time, on the same handle too, except fide_close, which must be the
 *     last call on its handle. After a fork only one of the two processes may go on using a handle.
 *   - "Blocks" means: waits for the agent of this host (which answers in microseconds; see answer_timeout_ns), and for other
 *     threads that do. "Waits" means: as long as you say. Everything else never waits for another process.
 *   - No signal is ever raised or handled, no thread started, and no descriptor survives an exec.
 *
 * Growth
 *   Structures begin with their size, as the caller was compiled. The library fills or reads no more than that, so programs
 *   compiled against an older header go on working; fide_event_init and its like set it.
 */
#ifndef FIDE_H
#define FIDE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FIDE_API
#define FIDE_API
#endif

/* Version of this interface; grows when something is added. fide_abi_version() is the library's. */
#define FIDE_ABI_VERSION 6

/* Most bytes of a piggybacked message; what is granted may be less. */
#define FIDE_PIGGYBACK_MAX 1418

/* Most bytes of a value that is proposed to a group, and of an application's state that a group keeps. */
#define FIDE_GROUP_VALUE_MAX 65536
#define FIDE_GROUP_SNAPSHOT_MAX 67108864

/* Why a call failed. */
enum fide_error {
	FIDE_OK = 0,
	FIDE_EINVAL = -1,       /* the call or the agent's answer makes no sense */
	FIDE_EPERM = -2,        /* not allowed to this user */
	FIDE_ENOTFOUND = -3,    /* no such process, host or verdict */
	FIDE_EEXISTS = -4,      /* the name is taken */
	FIDE_ETOOLARGE = -5,    /* larger than granted */
	FIDE_EFULL = -6,        /* no room for more, now */
	FIDE_EVERSION = -7,     /* agent and library come from different releases */
	FIDE_EUNSUPPORTED = -8, /* the agent cannot do this on its host */
	FIDE_EDISCONNECTED = -9, /* no agent, or it went away; says nothing of anything monitored */
	FIDE_ESYSTEM = -10,     /* a system call failed */
	FIDE_EAMBIGUOUS = -11,  /* several processes match */
	FIDE_EFENCED = -12,     /* this process's gate is closed: nothing that it sends leaves, and others may have taken over */
	FIDE_ENOTSENT = -13,    /* a heartbeat is not known to have left in time; t_valid stays as it was */
	FIDE_EINTERNAL = -127   /* a bug in the library; the handle should be closed */
};

/* What an event is. Handle unknown ones as FIDE_EVENT_OTHER: later versions may have more. */
enum fide_event_kind {
	/* A monitored process is ending or gone. Exactly once for each instance of it. By its cause: a crash, or FIDE_CAUSE_LEFT. */
	FIDE_EVENT_FAILURE = 1,
	/* The end of a process that failed as "doomed" was seen; cause and code are final. At most once. */
	FIDE_EVENT_CONFIRMED = 2,
	/* A process is monitored from now on: it came, or came back as a new instance. */
	FIDE_EVENT_MONITORED = 3,
	/* About a host, a path, an agent or this observer: never about a process. */
	FIDE_EVENT_HOST = 4,
	/* A monitored process sent data, data_len bytes; number is its heartbeat's. */
	FIDE_EVENT_PIGGYBACK = 5,
	/* number is the new timeout towards node and app, nanoseconds. */
	FIDE_EVENT_TIMEOUT_CHANGED = 6,
	/* number is what this process may piggyback from now on, bytes. */
	FIDE_EVENT_PBSIZE_CHANGED = 7,
	/* Somebody began to monitor this process and would like number bytes of piggyback. */
	FIDE_EVENT_MONITOR_REQ = 8,
	/* number events were lost: what is known is out of date. Monitor again what matters: what has ended of it is told then. */
	FIDE_EVENT_LOST = 9,
	/* The agent hung up. Nothing of what it monitored has failed. Once; then FIDE_EDISCONNECTED until fide_reconnect. */
	FIDE_EVENT_AGENT_GONE = 10,
	/* Something this version does not know. */
	FIDE_EVENT_OTHER = 11,
	/* A monitored process is there and makes no progress: code is its counter's number, or 256 and up for a probe or a report. Not a failure. */
	FIDE_EVENT_HUNG = 12,
	/* A process that was hung moves again. */
	FIDE_EVENT_PROGRESSING = 13,
	/*
	 * This host is fenced: where it is guarded, nothing that this process sends leaves any more, and others may have taken over what it
	 * did. Stop acting. code says why: 0 it ran out, 1 an operator, 2 another host had given this one up, 3 found so at the agent's start.
	 */
	FIDE_EVENT_FENCED = 14,
	/* The fence was opened again on an operator's word. The host has a new incarnation: begin anew, as after a restart. */
	FIDE_EVENT_RECOVERED = 15
};

/* What happened. */
enum fide_cause {
	FIDE_CAUSE_NONE = 0,
	FIDE_CAUSE_EXITED = 1,           /* ended by itself; code is its exit status */
	FIDE_CAUSE_KILLED = 2,           /* ended by a signal; code is the signal */
	FIDE_CAUSE_DOOMED = 3,           /* can no longer be saved, though it still exists */
	FIDE_CAUSE_LEFT = 4,             /* said that it leaves */
	FIDE_CAUSE_AGENT_LOST = 5,       /* a host's agent is gone, its kernel answers */
	FIDE_CAUSE_SILENT_HOST = 6,      /* no sign of a host on any path */
	FIDE_CAUSE_PATH_DOWN = 7,        /* one path carries nothing: a network fault, never a crash */
	FIDE_CAUSE_CONTRACT_BROKEN = 8,  /* heartbeats come later than promised */
	FIDE_CAUSE_ISOLATED = 9,         /* this observer reaches nobody; verdicts on others are withheld */
	FIDE_CAUSE_HUNG = 10,            /* a process is there and makes no progress */
	FIDE_CAUSE_OUT_OF_MEMORY = 11,   /* ended by the kernel, which was out of memory: its cgroup's or the host's; code is the signal */
	FIDE_CAUSE_UNREACHABLE = 12,     /* silent here, and another host hears it: a network fault, never a crash */
	FIDE_CAUSE_REPLACED = 13,        /* it had joined, and began another program (exec) or joined again: a new instance */
	FIDE_CAUSE_PATH_UP = 16,
	FIDE_CAUSE_RETURNED = 17,        /* a host came (back), as a new incarnation */
	FIDE_CAUSE_CONTRACT_KEPT = 18,
	FIDE_CAUSE_REJOINED = 19,
	FIDE_CAUSE_OBSERVER_PAUSED = 20, /* this observer did not run for a while */
	FIDE_CAUSE_NAME_CLASH = 21,
	FIDE_CAUSE_FOREIGN_TRAFFIC = 22,
	FIDE_CAUSE_MONITORED = 23,
	FIDE_CAUSE_INTERFACE = 24,
	FIDE_CAUSE_LOCAL = 25,
	FIDE_CAUSE_FENCED = 26,          /* this host is fenced: what it guards is not heard any more */
	FIDE_CAUSE_RECOVERED = 27,       /* its fence was opened again, in a new incarnation */
	FIDE_CAUSE_PROGRESSING = 28      /* a process that was hung moves again */
};

/* How sure. */
enum fide_grade {
	FIDE_GRADE_NONE = 0,
	FIDE_GRADE_CERTAIN = 1,  /* a kernel saw it, or it announced itself */
	FIDE_GRADE_INFERRED = 2  /* silence, judged against a stated contract */
};

/* Flags of an event. */
enum fide_flag {
	FIDE_FLAG_CONFIRMS = 1, /* confirms an earlier "doomed" */
	FIDE_FLAG_LOCAL = 2,    /* happened on this host */
	/* Its host is silent, and fenced as a whole: nothing of it is heard any more, whatever it
	 * does. Since version 6. */
	FIDE_FLAG_FENCED = 8
};

/* Flags of struct fide_options. */
enum fide_open_flag {
	FIDE_OPEN_SOCKET_ONLY = 1 /* take events through a socket although the kernel could write them into memory */
};

/* What fide_check found. Handle unknown ones as FIDE_CHECK_NO_BARRIER. */
enum fide_check_outcome {
	/* All that came by the deadline is in the sockets, and nothing was lost: look into them now; no heartbeat there is a failure. */
	FIDE_CHECK_DRAINED = 1,
	/* This host lost packets in the interval, or may have: it says nothing. Begin a new one, at lost_ns or later. */
	FIDE_CHECK_VOID = 2,
	/* Something may wait on this host; why says what is missing. The interval says nothing: check again, or begin a new one. */
	FIDE_CHECK_NO_BARRIER = 3,
	/* Since since_ns this agent has learned that a kernel saw the end of the process "name@host". No need to look. */
	FIDE_CHECK_CERTAIN = 4
};

/* What an event of a group is. Pass over unknown ones: later versions may have more. */
enum fide_group_event_kind {
	/* The next entry, decided: index, client, number, member, data. Indices have no gaps; own is 1 for a proposal of this client. */
	FIDE_GROUP_ENTRY = 1,
	/* Begin from this state: the entries through index are in it and come no more. data is what fide_group_keep_snapshot was given. */
	FIDE_GROUP_SNAPSHOT = 2,
	/* How the group stands, at first and whenever that changes: stage, member, leader, leader_node, generation, index, number. */
	FIDE_GROUP_STANDING = 3,
	/* The members that are not known to have crashed, at first and whenever that changes: members, members_len. */
	FIDE_GROUP_MEMBERS = 4,
	/* The proposal number was not taken and never will be decided; refusal and why say why. */
	FIDE_GROUP_REFUSED = 5,
	/* The proposal number was not decided by its deadline. The agent has it, so its entry may still come; it is not proposed again. */
	FIDE_GROUP_OVERDUE = 6,
	/* The answer to fide_group_ask of number, after all entries that it rests on: fate. Behind a snapshot it comes unasked for each proposal that waits,
	 * because the entry of one that was decided may be in there. */
	FIDE_GROUP_FATE = 7,
	/* Something this version does not know. */
	FIDE_GROUP_OTHER = 8
};

/* How far a group is on this host. */
enum fide_group_stage {
	FIDE_STAGE_PREPARING = 1, /* all its hosts are asked whether they take part */
	FIDE_STAGE_PREPARED = 2,  /* this host takes part when all others do */
	FIDE_STAGE_JOINING = 3,   /* this host asks to be let in; what is proposed waits */
	FIDE_STAGE_RUNNING = 4,   /* it takes part */
	FIDE_STAGE_LEFT = 5,      /* this host left it */
	FIDE_STAGE_FAILED = 6,    /* it has not begun here: `fide group status` says why */
	FIDE_STAGE_GONE = 7       /* there is no such group here any more */
};

/* Why a proposal was not taken. */
enum fide_group_refusal {
	FIDE_REFUSAL_INVALID = 1, /* the agent can never take it, or takes none from this user */
	FIDE_REFUSAL_LATE = 2     /* the agent had not taken it when its deadline came */
};

/* What became of a proposal. */
enum fide_group_fate {
	FIDE_FATE_DECIDED = 1,  /* its entry was applied, once */
	FIDE_FATE_OPEN = 2,     /* not decided so far; settled for good by any later proposal of this client that is decided */
	FIDE_FATE_NEVER = 3,    /* not decided, and never will be */
	FIDE_FATE_FORGOTTEN = 4 /* nobody remembers: thousands of clients, or many skipped proposals of this one, came after it */
};

/* A connection to the agent of this host. */
struct fide;

/* A group of this host that is open: a log that several hosts agree on. */
struct fide_group;

/* A progress counter of this process. */
struct fide_progress;

/* What the application is told. Fields that an event has no use for are 0 or NULL. */
struct fide_event {
	uint32_t size;        /* fide_event_init */
	uint32_t kind;        /* enum fide_event_kind */
	uint32_t cause;       /* enum fide_cause */
	uint32_t grade;       /* enum fide_grade */
	uint32_t node;        /* the node's wire id */
	uint32_t app;         /* the process's number there, 0 for the node itself */
	uint32_t incarnation; /* the node's incarnation */
	int32_t code;         /* exit status, signal or path, as the cause says */
	uint32_t path;        /* the path the first copy came by */
	uint32_t flags;       /* enum fide_flag */
	uint64_t id;          /* the verdict's id, 0 without one: fide_id_text, `fide explain` */
	uint64_t event_ns;    /* when it happened: CLOCK_MONOTONIC of the host where it happened */
	uint64_t sent_ns;     /* when the notice left, by the same clock */
	uint64_t received_ns; /* when this host's kernel received it: this host's CLOCK_MONOTONIC, as fide_now_ns */
	uint64_t number;      /* as the kind says */
	/* Both belong to the library: valid until this thread asks for the next event, or until the callback returns. */
	const char *name;     /* "name@host" or "@host" where it is known, else NULL */
	const void *data;     /* a piggybacked message */
	uint64_t data_len;
};

/* What is known of a target that is monitored from now on. What is not there is waited for. */
enum fide_target_state {
	FIDE_TARGET_ALIVE = 1,
	FIDE_TARGET_HUNG = 2,       /* it runs and makes no progress */
	FIDE_TARGET_UNOBSERVED = 3, /* its host's agent is lost, or left: nobody watches it */
	FIDE_TARGET_ENDED = 4,      /* the last process of that name has ended: see cause and code */
	FIDE_TARGET_NO_PROCESS = 5, /* no process of that name was known on that host */
	FIDE_TARGET_NO_HOST = 6     /* no host of that name was ever heard */
};

/* What is asked of fide_monitor. */
struct fide_resources {
	uint32_t size;       /* fide_resources_init */
	uint32_t pbsize;     /* smallest piggyback size wanted from it, bytes */
	uint64_t timeout_ns; /* largest timeout that is of use; 0 for whatever the contract gives */
};

/* What fide_monitor was granted. */
struct fide_monitored {
	uint32_t size;       /* fide_monitored_init */
	uint32_t node;       /* the node's wire id */
	uint32_t app;        /* the process's number; 0 for a host, for "*", and for what is not running now */
	uint32_t pbsize;     /* bytes */
	uint64_t timeout_ns; /* for the silence of its host */
	uint32_t alive;      /* 1 when it is known and alive now; otherwise no failure comes until it has come and gone */
	uint32_t state;      /* enum fide_target_state; 0 of agents that do not say */
	uint32_t cause;      /* how the last process of that name ended (enum fide_cause), where state is FIDE_TARGET_ENDED; else 0 */
	int32_t code;        /* its exit status or signal; -1 when nobody saw it */
};

/* What fide_check found, and what the agent itself knows of the peer. The strings belong to the library: valid until this thread's next fide_check. */
struct fide_checked {
	uint32_t size;              /* fide_checked_init */
	uint32_t outcome;           /* enum fide_check_outcome */
	uint64_t drained_ns;        /* FIDE_CHECK_DRAINED: what came before this is in the sockets; not before the deadline (CLOCK_MONOTONIC, ns) */
	uint64_t lost_ns;           /* FIDE_CHECK_VOID: packets may have been lost up to this time (CLOCK_MONOTONIC, ns) */
	const char *why;            /* why it is void or there is no barrier, in words; "" otherwise */
	const char *host;           /* the peer's host; NULL, and all below 0 or NULL, when it is no host of the cluster */
	const char *host_state;     /* "alive", "late", "unreachable", "agent-lost", "silent-host", "left", "restarting" */
	const char *app_state;      /* "alive", "hung", "unknown" or the cause of its end; "" when no process was named */
	uint32_t node;              /* its wire id */
	uint32_t incarnation;       /* its host's incarnation */
	uint64_t fence_timeout_ns;  /* its host promised to be silent so long after its last heartbeat that counts, ns; 0: it promised nothing */
	uint32_t fenced;            /* 1: its host is silent and that time is over, so nothing of what it guards is sent any more */
	uint32_t reserved;
};

/* How a connection is opened. */
struct fide_options {
	uint32_t size;              /* fide_options_init */
	uint32_t flags;             /* enum fide_open_flag */
	const char *path;           /* the agent's socket; NULL: $FIDE_SOCKET, else the default */
	uint64_t answer_timeout_ns; /* longest wait for each of the agent's answers; 0: 10 s */
};

/* How a group is opened. */
struct fide_group_options {
	uint32_t size;        /* fide_group_options_init */
	uint32_t reserved;
	const char *path;     /* the agent's socket; NULL: $FIDE_SOCKET, else the default */
	uint64_t client;      /* this client's id; 0: a new one. Keep it to come back as the same client after a crash */
	uint64_t index;       /* entries that were read before: the first one to come is the next one */
	uint64_t last_number; /* the number of this client's last proposal in a former life */
};

/* What happens in a group. Fields that an event has no use for are 0 or NULL. */
struct fide_group_event {
	uint32_t size;         /* fide_group_event_init */
	uint32_t kind;         /* enum fide_group_event_kind */
	uint64_t index;        /* of the entry; the last one in the snapshot; entries applied on this host */
	uint64_t number;       /* of the proposal; in a standing, this client's last one that was applied */
	uint64_t client;       /* who proposed the entry */
	uint64_t generation;   /* tells groups of one name apart */
	uint32_t member;       /* that proposed the entry; in a standing, this host's, 0: none */
	uint32_t leader;       /* the leading member, 0: none is known */
	uint32_t leader_node;  /* the wire id of its node */
	uint32_t stage;        /* enum fide_group_stage */
	uint32_t own;          /* 1: this client proposed the entry */
	uint32_t refusal;      /* enum fide_group_refusal */
	uint32_t fate;         /* enum fide_group_fate */
	uint32_t members_len;
	/* All of these belong to the library: valid until this thread asks for the next event of any group. */
	const uint32_t *members;
	const char *why;       /* in words */
	const void *data;      /* of the entry or the snapshot */
	uint64_t data_len;
};

/* Called by fide_dispatch on the thread that called it; may call any function except fide_close. Must not throw or longjmp. */
typedef void (*fide_callback)(struct fide *f, const struct fide_event *event, void *user);

/* Any may be NULL: such events are passed over. */
struct fide_callbacks {
	uint32_t size; /* fide_callbacks_init */
	uint32_t reserved;
	fide_callback on_failure;
	fide_callback on_confirmed;
	fide_callback on_piggyback_rcv;
	fide_callback on_timeout_changed;
	fide_callback on_monitor_req;
	fide_callback on_pbsize_changed;
	fide_callback on_other; /* all other kinds */
	fide_callback on_hung;
	fide_callback on_progressing;
	fide_callback on_fenced;    /* NULL: on_other */
	fide_callback on_recovered; /* NULL: on_other */
};

/*
 * What became of one target in fide_reconnect; now is NULL when error is not FIDE_OK (then fide_last_error_text says why). For
 * this process's own fide_join, target and now are NULL.
 */
typedef void (*fide_resumed)(const char *target, int error, const struct fide_monitored *now, void *user);

/* Zero a structure and set its size. */
static inline void fide_event_init(struct fide_event *event)
{
	memset(event, 0, sizeof *event);
	event->size = (uint32_t)sizeof *event;
}
static inline void fide_resources_init(struct fide_resources *resources)
{
	memset(resources, 0, sizeof *resources);
	resources->size = (uint32_t)sizeof *resources;
}
static inline void fide_monitored_init(struct fide_monitored *monitored)
{
	memset(monitored, 0, sizeof *monitored);
	monitored->size = (uint32_t)sizeof *monitored;
}
static inline void fide_checked_init(struct fide_checked *checked)
{
	memset(checked, 0, sizeof *checked);
	checked->size = (uint32_t)sizeof *checked;
}
static inline void fide_options_init(struct fide_options *options)
{
	memset(options, 0, sizeof *options);
	options->size = (uint32_t)sizeof *options;
}
static inline void fide_group_options_init(struct fide_group_options *options)
{
	memset(options, 0, sizeof *options);
	options->size = (uint32_t)sizeof *options;
}
static inline void fide_group_event_init(struct fide_group_event *event)
{
	memset(event, 0, sizeof *event);
	event->size = (uint32_t)sizeof *event;
}
static inline void fide_callbacks_init(struct fide_callbacks *callbacks)
{
	memset(callbacks, 0, sizeof *callbacks);
	callbacks->size = (uint32_t)sizeof *callbacks;
}

/*
 * Connects to the agent of this host and stores a handle in *out. path: its socket; may be NULL: $FIDE_SOCKET, else the
 * default. *out is NULL after an error. Blocks. Thread-safe.
 */
FIDE_API int fide_open(const char *path, struct fide **out);

/* fide_open with everything that can be chosen. options may be NULL. Blocks. Thread-safe. */
FIDE_API int fide_open_with(const struct fide_options *options, struct fide **out);

/*
 * Ends the connection and frees the handle. A process that has joined is monitored as before. Never blocks. NOT thread-safe:
 * no other call on this handle may be under way or follow. Not from a callback.
 */
FIDE_API int fide_close(struct fide *f);

/* The name of this host as its agent has it; valid until fide_close. NULL for a NULL handle. Never blocks. Thread-safe. */
FIDE_API const char *fide_node(const struct fide *f);

/*
 * From now on, events of a process ("name@host"), of a host and all its processes ("@host"), or of everything ("*"). wanted
 * may be NULL for no wishes, granted for no interest. FIDE_EINVAL for what no process or host can be named. Blocks. Thread-safe.
 */
FIDE_API int fide_monitor(struct fide *f, const char *target, const struct fide_resources *wanted,
			  struct fide_monitored *granted);

/* Ends fide_monitor of the same target. Events that are already there still come. Blocks. Thread-safe. */
FIDE_API int fide_unmonitor(struct fide *f, const char *target);

/*
 * This process wants to be monitored by others, under a name that is unique on this host, and to piggyback pbsize bytes at a
 * time. Stores its number in *app and the size granted in *granted; both may be NULL. From now on its end without fide_quit
 * is a crash. It must be the process that opened f: FIDE_ENOTFOUND in a child that inherited it. FIDE_EEXISTS when a watch of
 * somebody else holds that name. Blocks. Thread-safe.
 */
FIDE_API int fide_join(struct fide *f, const char *name, uint32_t pbsize, uint32_t *app, uint32_t *granted);

/* This process leaves politely: what follows is not a crash. Blocks. Thread-safe. */
FIDE_API int fide_quit(struct fide *f);

/*
 * Sends len bytes to everybody who monitors this process, on this host's next free heartbeat. Copies them into memory shared
 * with the agent: no system call. FIDE_ETOOLARGE above the size granted, FIDE_EFULL when earlier messages still wait for
 * their heartbeats (try again after the next), FIDE_EINVAL before fide_join or for no bytes. Never blocks. Thread-safe.
 */
FIDE_API int fide_piggyback(struct fide *f, const void *message, size_t len);

/*
 * When this process, which has joined, is killed or crashes, its TCP connections of these local
 * ports (at most 16) are ended at once, those that are not accepted yet and the listening sockets
 * too: its clients are reset, and can go where the service goes on, without waiting until the
 * kernel has taken the process and its memory down. What it wrote and they have not acknowledged is
 * dropped then. 0 ports: no more. It stays through fide_reconnect. FIDE_EINVAL before fide_join,
 * FIDE_ESYSTEM where the agent cannot see this process's sockets. Blocks. Thread-safe.
 */
FIDE_API int fide_end_connections(struct fide *f, const uint16_t *ports, size_t count);

/*
 * This process, which has joined, shows progress on a counter of its own, stored in *out: while the counter is busy it must move within
 * limit_ns (10 ms to a day), or the process is hung to all who monitor it, until it moves again. One for each thread or activity
 * that could get stuck on its own; a process has 16. It is busy from the start, and stays through fide_reconnect. Blocks. Thread-safe.
 */
FIDE_API int fide_progress_open(struct fide *f, uint64_t limit_ns, struct fide_progress **out);

/* Changes the limit of a counter of this handle; what was counted begins anew. Blocks. Thread-safe. */
FIDE_API int fide_progress_limit(struct fide *f, const struct fide_progress *progress, uint64_t limit_ns);

/*
 * Frees a counter: nothing is expected of it any more. May come after fide_close. Never blocks. NOT thread-safe: no other call on this counter
 * may be under way or follow.
 */
FIDE_API int fide_progress_close(struct fide_progress *progress);

/*
 * It moved: one addition in memory, no system call, no lock. A NULL counter does nothing. Also from signal handlers. Never blocks.
 * Thread-safe.
 */
FIDE_API void fide_progress_tick(const struct fide_progress *progress);

/* An operation begins: until as many fide_progress_end, the counter must move. Also from signal handlers. Never blocks. Thread-safe. */
FIDE_API void fide_progress_begin(const struct fide_progress *progress);

/*
 * An operation ended; with the last of them the counter is idle, and nothing is expected of it. So a server calls this once after
 * fide_progress_open, and then begin and end around each request. Also from signal handlers. Never blocks. Thread-safe.
 */
FIDE_API void fide_progress_end(const struct fide_progress *progress);

/*
 * Tells all hosts what this application's own detector found of a process of this host that is watched as name: that it is hung (not 0), or is
 * not (0). It holds until it is withdrawn or the process ends. reason, one line for this host's history, may be NULL. FIDE_EPERM unless
 * it is this process, one of the same user, or the user may report others' processes. Blocks. Thread-safe.
 */
FIDE_API int fide_report(struct fide *f, const char *name, int hung, const char *reason);

/*
 * Is this process ("name@host") or host ("@host") in maintenance now (fide maintenance on)? 1 if it is, 0 if not: what ends then was planned, whatever it
 * looks like. *left_ns, unless NULL, is how long the maintenance still lasts as this host counts, 0 without one. FIDE_EINVAL for a target that names
 * neither. Blocks. Thread-safe. Since version 5.
 */
FIDE_API int fide_maintenance(struct fide *f, const char *target, uint64_t *left_ns);

/*
 * The next five are for applications with heartbeats of their own. Times are CLOCK_MONOTONIC in nanoseconds, as fide_now_ns; waits are nanoseconds.
 *
 * fide_check: this application has missed a peer's heartbeats from since_ns to deadline_ns (0: now). Has all that came to this host by then reached this
 * application's sockets, and was nothing lost here? Returns enum fide_check_outcome, and fills *checked, which may be NULL. peer is "name@host",
 * "@host", or the address that its packets come from. FIDE_EINVAL for an interval or a peer that makes no sense, FIDE_EPERM when this user may not
 * ask, FIDE_EDISCONNECTED without an agent. Waits for wait_ns (at most 60 s), a second more for an agent that does not answer (FIDE_EDISCONNECTED), and not
 * for other calls. Thread-safe.
 */
FIDE_API int fide_check(struct fide *f, const char *peer, uint64_t since_ns, uint64_t deadline_ns, uint64_t wait_ns,
			struct fide_checked *checked);

/*
 * Sends len bytes on fd, a connected UDP, TCP, raw or packet socket, waits up to wait_ns until they have left (fide_sent), and then extends t_valid
 * to valid_ns (fide_extend). FIDE_EFENCED when the gate is closed, so that nothing leaves; FIDE_ENOTSENT when it has not left: send another in time;
 * FIDE_EINVAL when len is 0; FIDE_ESYSTEM: the socket's error, or only a part of it went into a stream: make another connection. Waits. Thread-safe.
 */
FIDE_API int fide_send_heartbeat(struct fide *f, int fd, const void *heartbeat, size_t len, uint64_t valid_ns, uint64_t wait_ns);

/*
 * Waits up to wait_ns until all that was sent on fd has left, and stores in *known_ns a time at which that was known; for those who send by
 * themselves. UDP, raw and packet sockets: the driver has freed every packet. TCP: the other kernel has acknowledged every byte. FIDE_ENOTSENT when
 * that is not so in time, FIDE_EINVAL for other sockets. Waits. Thread-safe.
 */
FIDE_API int fide_sent(int fd, uint64_t wait_ns, uint64_t *known_ns);

/*
 * A heartbeat of this application counts, as was known at known_ns: what sockets made in the cgroup of its gate send may leave up to valid_ns. The first
 * call arms the gate; t_valid never goes back. valid_ns is a time behind known_ns, at most a day from now, and not a duration (FIDE_EINVAL); with 0
 * nothing moves, and it is only said whether the gate is closed. FIDE_EFENCED when it is, or known_ns is past t_valid; FIDE_ENOTFOUND and
 * FIDE_EUNSUPPORTED when this process has no gate, FIDE_EPERM when its user may not move it. Blocks, but not on other calls. Thread-safe.
 */
FIDE_API int fide_extend(struct fide *f, uint64_t known_ns, uint64_t valid_ns);

/*
 * Opens this application's gate up to valid_ns, also when it is closed: what sends from now on has dropped what it did before, as after a restart. TCP
 * connections of its cgroup in which a closed gate holds something back are ended first (ECONNABORTED), also those of processes that were killed;
 * FIDE_ESYSTEM where they cannot be, and the gate stays closed. Else errors as fide_extend. Blocks, but not on other calls. Thread-safe.
 */
FIDE_API int fide_begin_anew(struct fide *f, uint64_t valid_ns);

/* The piggyback size granted now, bytes; 0 before fide_join. Never blocks. Thread-safe. */
FIDE_API int fide_pbsize(const struct fide *f);

/*
 * A descriptor for poll, select or epoll: readable when there may be an event. Then call fide_next_event with timeout 0 until
 * it returns 0, or fide_dispatch with timeout 0. Only to be waited on; stays the same until fide_close. Never blocks.
 * Thread-safe.
 */
FIDE_API int fide_fd(const struct fide *f);

/*
 * Stores the next event in *event and returns 1; 0 when none came in timeout_ms (0: do not wait, negative: for ever).
 * FIDE_EDISCONNECTED after FIDE_EVENT_AGENT_GONE. Waits. Thread-safe: each event goes to one caller.
 */
FIDE_API int fide_next_event(struct fide *f, struct fide_event *event, int timeout_ms);

/*
 * fide_next_event for those who spin: never waits, and on a ring in memory makes no system call, except that one empty look
 * in 16384 also asks whether the agent is still there. Never blocks. Thread-safe.
 */
FIDE_API int fide_busy_poll(struct fide *f, struct fide_event *event);

/*
 * What fide_dispatch will call, with user as its last argument. The structure is copied. callbacks may be NULL: none. Never
 * blocks. Thread-safe: a fide_dispatch that is under way may still use the old ones.
 */
FIDE_API int fide_set_callbacks(struct fide *f, const struct fide_callbacks *callbacks, void *user);

/*
 * Waits for an event as fide_next_event, calls what fide_set_callbacks named, and goes on while there are more, up to 1024.
 * Returns how many there were. Waits. Thread-safe.
 */
FIDE_API int fide_dispatch(struct fide *f, int timeout_ms);

/*
 * Connects anew after FIDE_EVENT_AGENT_GONE (or at any time), joins again if this process had joined, and monitors again what was
 * monitored; fide_fd stays. Calls resumed, which may be NULL, for the join and for each target. What ended of them while there was no
 * connection is reported as a failure, once. What is refused now is given up. Returns how many targets there were. It may be tried
 * again after an error. Blocks. Thread-safe.
 */
FIDE_API int fide_reconnect(struct fide *f, fide_resumed resumed, void *user);

/*
 * A group is a log that several hosts agree on. `fide group create` or [[group]] in the configuration begins one; the next nine functions are for applications
 * on its hosts. What is proposed on any of them comes as an entry on all of them, in one order, each once, also through crashes of hosts, agents and
 * clients. A handle of a group needs no struct fide.
 *
 * fide_group_open: opens a group of this host and stores a handle in *out; *out is NULL after an error. options may be NULL: a new client, from the first entry
 * on. FIDE_ENOTFOUND for a group that this host has not got, FIDE_EPERM when this user may not open groups, FIDE_EINVAL when index is beyond
 * the group's last entry. Blocks. Thread-safe.
 */
FIDE_API int fide_group_open(const char *name, const struct fide_group_options *options, struct fide_group **out);

/*
 * Closes it. What was proposed and not decided may be decided still. Never blocks. NOT thread-safe: no other call on this handle may be under way or
 * follow.
 */
FIDE_API int fide_group_close(struct fide_group *g);

/*
 * Proposes len bytes and stores the proposal's number, from 1 on, in *number, which may be NULL. Does not wait for the decision: its FIDE_GROUP_ENTRY says that
 * it is decided. deadline_ns (CLOCK_MONOTONIC, as fide_now_ns; 0: none): if the agent has not taken it by then, it is withdrawn (FIDE_GROUP_REFUSED); if the agent
 * has it and it is not decided, FIDE_GROUP_OVERDUE says so. What the agent cannot take now the library proposes again, with the same number, in
 * fide_group_next. FIDE_ETOOLARGE over FIDE_GROUP_VALUE_MAX; FIDE_EFULL when 1024 of this handle wait for their entries: read those first. Never blocks.
 * Thread-safe.
 */
FIDE_API int fide_group_propose(struct fide_group *g, const void *value, size_t len, uint64_t deadline_ns, uint64_t *number);

/* A value that is proposed. */
struct fide_group_value {
	const void *bytes;
	size_t len;
};

/*
 * Proposes count values, decided in this order, and stores the number of the first in *first, which may be NULL; the others' follow. Cheaper than one call for
 * each: they go to the agent together. All or, with an error, none. Else as fide_group_propose without a deadline; FIDE_EINVAL for a count of 0 or more than 1024.
 * Never blocks. Thread-safe.
 */
FIDE_API int fide_group_propose_all(struct fide_group *g, const struct fide_group_value *values, size_t count, uint64_t *first);

/*
 * Stores the next event in *event and returns 1; 0 when none came in timeout_ms (0: do not wait, negative: for ever). Entries come in order and without a gap.
 * FIDE_EDISCONNECTED when the agent is gone: fide_group_reconnect then. FIDE_ENOTFOUND when the group was begun anew: its entries count from 1 again, so close the
 * handle and open another. Waits. Thread-safe: each event goes to one caller.
 */
FIDE_API int fide_group_next(struct fide_group *g, struct fide_group_event *event, int timeout_ms);

/*
 * Hands in the application's state behind the entry index, len bytes: what comes before need not be kept, and who opens or joins the group later gets the state
 * first. Call it now and then: at 2 MiB of entries proposals wait. FIDE_ETOOLARGE over FIDE_GROUP_SNAPSHOT_MAX, FIDE_EPERM
 * for a user who may only open the group. Blocks, where the agent does not read. Thread-safe.
 */
FIDE_API int fide_group_keep_snapshot(struct fide_group *g, uint64_t index, const void *state, size_t len);

/*
 * Asks what became of a proposal of this client, also of one from a former life; FIDE_GROUP_FATE is the answer. A question survives fide_group_reconnect.
 * FIDE_EINVAL for number 0, FIDE_EFULL when 64 questions wait. Never blocks. Thread-safe.
 */
FIDE_API int fide_group_ask(struct fide_group *g, uint64_t number);

/*
 * Connects anew after FIDE_EDISCONNECTED: entries go on where they ended, and what was proposed and not seen is proposed again, so that it is decided once.
 * fide_group_fd stays. It may be tried again after an error: FIDE_EDISCONNECTED until the agent is back; FIDE_ENOTFOUND while its host does not have
 * the group yet, or when the group was begun anew (as fide_group_next). Blocks. Thread-safe.
 */
FIDE_API int fide_group_reconnect(struct fide_group *g);

/*
 * A descriptor for poll, select or epoll: readable when fide_group_next has an event, or something to do. Then call it with timeout 0 until it returns 0. Only to
 * be waited on; stays the same until fide_group_close. Never blocks. Thread-safe.
 */
FIDE_API int fide_group_fd(const struct fide_group *g);

/* This client's id, for fide_group_options; 0 for a NULL handle. Never blocks. Thread-safe. */
FIDE_API uint64_t fide_group_client(const struct fide_group *g);

/* What a negative return means, in a few words. Never NULL; never blocks. Thread-safe. */
FIDE_API const char *fide_strerror(int error);

/*
 * The last error of this thread in full: what, why and what to do. "" when there was none. Valid until this thread's next
 * error. Never NULL; never blocks. Thread-safe.
 */
FIDE_API const char *fide_last_error_text(void);

/* "killed" for FIDE_CAUSE_KILLED and so on; "unknown" for others. Never NULL; never blocks. Thread-safe. */
FIDE_API const char *fide_cause_name(uint32_t cause);

/* "certain" or "inferred"; "unknown" for others. Never NULL; never blocks. Thread-safe. */
FIDE_API const char *fide_grade_name(uint32_t grade);

/*
 * Writes a verdict's id as `fide explain` reads it, with its ending zero, into text of len bytes; 24 suffice. FIDE_ETOOLARGE
 * when it does not fit. Never blocks. Thread-safe.
 */
FIDE_API int fide_id_text(uint64_t id, char *text, size_t len);

/* This host's CLOCK_MONOTONIC in nanoseconds, as received_ns. Never blocks. Thread-safe. */
FIDE_API uint64_t fide_now_ns(void);

/* The library's version, "0.1.0". Never NULL; never blocks. Thread-safe. */
FIDE_API const char *fide_version(void);

/* FIDE_ABI_VERSION of the library. Never blocks. Thread-safe. */
FIDE_API uint32_t fide_abi_version(void);

#ifdef __cplusplus
}
#endif

#endif
