/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function of fide.h against an agent made for tests. What the agent should do next is asked for by a line on
 * standard output; it answers with a line when it has done so.
 */
#include "fide.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void check_at(int line, int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "talk.c:%d: %s; last error: %s\n", line, what, fide_last_error_text());
		exit(1);
	}
}
#define CHECK(condition) check_at(__LINE__, !!(condition), #condition)
#define SAYS(text) CHECK(strstr(fide_last_error_text(), text) != NULL)

static void ask(const char *what)
{
	char line[32];

	printf("%s\n", what);
	fflush(stdout);
	CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static int readable(const struct fide *f, int timeout_ms)
{
	struct pollfd p = { 0, POLLIN, 0 };

	p.fd = fide_fd(f);
	return poll(&p, 1, timeout_ms);
}

static void nothing_is_null(void)
{
	struct fide_event e;
	char text[24];

	fide_event_init(&e);
	CHECK(fide_open(NULL, NULL) == FIDE_EINVAL);
	SAYS("out is NULL");
	CHECK(fide_open_with(NULL, NULL) == FIDE_EINVAL);
	CHECK(fide_close(NULL) == FIDE_EINVAL);
	SAYS("the handle is NULL");
	CHECK(fide_node(NULL) == NULL);
	CHECK(fide_monitor(NULL, "x", NULL, NULL) == FIDE_EINVAL);
	CHECK(fide_unmonitor(NULL, "x") == FIDE_EINVAL);
	CHECK(fide_join(NULL, "x", 0, NULL, NULL) == FIDE_EINVAL);
	CHECK(fide_quit(NULL) == FIDE_EINVAL);
	CHECK(fide_piggyback(NULL, "x", 1) == FIDE_EINVAL);
	CHECK(fide_pbsize(NULL) == FIDE_EINVAL);
	CHECK(fide_progress_open(NULL, 1000000000, NULL) == FIDE_EINVAL);
	CHECK(fide_progress_limit(NULL, NULL, 1) == FIDE_EINVAL);
	CHECK(fide_progress_close(NULL) == FIDE_EINVAL);
	fide_progress_tick(NULL);
	fide_progress_begin(NULL);
	fide_progress_end(NULL);
	CHECK(fide_report(NULL, "x", 1, NULL) == FIDE_EINVAL);
	CHECK(fide_maintenance(NULL, "x@a", NULL) == FIDE_EINVAL);
	CHECK(fide_check(NULL, "@a", 1, 0, 0, NULL) == FIDE_EINVAL);
	CHECK(fide_send_heartbeat(NULL, 0, "x", 1, 1, 1) == FIDE_EINVAL);
	CHECK(fide_sent(0, 1, NULL) == FIDE_EINVAL);
	CHECK(fide_extend(NULL, 1, 1) == FIDE_EINVAL);
	CHECK(fide_begin_anew(NULL, 1) == FIDE_EINVAL);
	CHECK(fide_fd(NULL) == FIDE_EINVAL);
	CHECK(fide_next_event(NULL, &e, 0) == FIDE_EINVAL);
	CHECK(fide_busy_poll(NULL, &e) == FIDE_EINVAL);
	CHECK(fide_set_callbacks(NULL, NULL, NULL) == FIDE_EINVAL);
	CHECK(fide_dispatch(NULL, 0) == FIDE_EINVAL);
	CHECK(fide_reconnect(NULL, NULL, NULL) == FIDE_EINVAL);
	CHECK(fide_id_text(1, NULL, 0) == FIDE_EINVAL);
	CHECK(fide_id_text((7ull << 32) | 12, text, 11) == FIDE_ETOOLARGE);
	CHECK(fide_id_text((7ull << 32) | 12, text, 12) == FIDE_OK && !strcmp(text, "00000007-12"));
	CHECK(fide_id_text(~0ull, text, sizeof text) == FIDE_OK && !strcmp(text, "ffffffff-4294967295"));
}

static void nor_is_it_on_a_handle(struct fide *f)
{
	struct fide_event e;
	struct fide_resources wanted;
	struct fide_monitored granted;
	struct fide_callbacks callbacks;

	CHECK(fide_monitor(f, NULL, NULL, NULL) == FIDE_EINVAL);
	SAYS("the target is NULL");
	CHECK(fide_unmonitor(f, NULL) == FIDE_EINVAL);
	CHECK(fide_join(f, NULL, 0, NULL, NULL) == FIDE_EINVAL);
	CHECK(fide_piggyback(f, NULL, 1) == FIDE_EINVAL);
	CHECK(fide_next_event(f, NULL, 0) == FIDE_EINVAL);
	CHECK(fide_busy_poll(f, NULL) == FIDE_EINVAL);
	CHECK(fide_monitor(f, "\xff\xff", NULL, NULL) == FIDE_EINVAL);
	SAYS("UTF-8");

	/* Structures whose size was not set. */
	memset(&e, 0, sizeof e);
	CHECK(fide_next_event(f, &e, 0) == FIDE_EINVAL);
	SAYS("fide_event_init");
	e.size = 8;
	CHECK(fide_busy_poll(f, &e) == FIDE_EINVAL);
	memset(&wanted, 0, sizeof wanted);
	CHECK(fide_monitor(f, "db@a", &wanted, NULL) == FIDE_EINVAL);
	SAYS("fide_resources_init");
	memset(&granted, 0, sizeof granted);
	CHECK(fide_monitor(f, "db@a", NULL, &granted) == FIDE_EINVAL);
	SAYS("fide_monitored_init");
	memset(&callbacks, 0, sizeof callbacks);
	CHECK(fide_set_callbacks(f, &callbacks, NULL) == FIDE_EINVAL);
	SAYS("fide_callbacks_init");
}

/* A program compiled against a later header, in which the structure is longer. */
static void longer_structures(struct fide *f)
{
	struct {
		struct fide_monitored now;
		unsigned char later[16];
	} big;
	struct {
		struct fide_resources now;
		unsigned char later[16];
	} wanted;

	memset(&big, 0x55, sizeof big);
	big.now.size = sizeof big;
	memset(&wanted, 0, sizeof wanted);
	wanted.now.size = sizeof wanted;
	CHECK(fide_monitor(f, "db@a", &wanted.now, &big.now) == FIDE_OK);
	CHECK(big.now.size == sizeof big && big.now.alive == 1 && big.later[0] == 0x55);
}

/* An application with heartbeats of its own, which it sends to itself. */
static void own_heartbeats(struct fide *f)
{
	struct sockaddr_in here;
	socklen_t len = sizeof here;
	struct fide_checked checked;
	uint64_t known = 0, before = fide_now_ns();
	char got[8];
	int fd = socket(AF_INET, SOCK_DGRAM, 0), unconnected = socket(AF_INET, SOCK_DGRAM, 0);

	memset(&here, 0, sizeof here);
	here.sin_family = AF_INET;
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&here, &len) == 0);
	CHECK(connect(fd, (struct sockaddr *)&here, len) == 0);

	CHECK(send(fd, "early", 5, 0) == 5);
	CHECK(recv(fd, got, sizeof got, 0) == 5);
	CHECK(fide_sent(fd, 5000000000ull, &known) == FIDE_OK && known > before);
	CHECK(fide_extend(f, known, known + 1000000000) == FIDE_OK);
	CHECK(fide_extend(f, 999, known + 1000000000) == FIDE_EFENCED);
	SAYS("the gate is closed");
	CHECK(fide_begin_anew(f, known + 1000000000) == FIDE_OK);
	CHECK(fide_send_heartbeat(f, fd, "beat", 4, known + 2000000000, 5000000000ull) == FIDE_OK);
	CHECK(recv(fd, got, sizeof got, 0) == 4 && !memcmp(got, "beat", 4));
	CHECK(fide_send_heartbeat(f, fd, NULL, 0, 1, 1) == FIDE_EINVAL);
	CHECK(fide_send_heartbeat(f, -1, "beat", 4, 1, 1) == FIDE_EINVAL);
	CHECK(fide_send_heartbeat(f, unconnected, "beat", 4, 1, 1) == FIDE_ESYSTEM);
	CHECK(fide_sent(0, 1, &known) != FIDE_OK);

	CHECK(fide_check(f, "db@a", before, 0, 1000000000, NULL) == FIDE_CHECK_DRAINED);
	fide_checked_init(&checked);
	CHECK(fide_check(f, "db@a", before, 0, 1000000000, &checked) == FIDE_CHECK_DRAINED);
	CHECK(checked.outcome == FIDE_CHECK_DRAINED && checked.drained_ns == before + 1 && !strcmp(checked.why, ""));
	CHECK(!strcmp(checked.host, "a") && !strcmp(checked.host_state, "late") && !strcmp(checked.app_state, "hung"));
	CHECK(checked.incarnation == 3 && checked.node != 0 && !checked.fenced && !checked.fence_timeout_ns);
	CHECK(fide_check(f, "10.0.0.1", before, 0, 1000000000, &checked) == FIDE_CHECK_VOID);
	CHECK(checked.lost_ns == before + 2 && strstr(checked.why, "lost packets") && !checked.host && !checked.app_state);
	CHECK(fide_check(f, NULL, before, 0, 0, &checked) == FIDE_EINVAL);
	SAYS("the peer is NULL");
	checked.size = 8;
	CHECK(fide_check(f, "db@a", before, 0, 0, &checked) == FIDE_EINVAL);
	SAYS("fide_checked_init");
	close(fd);
	close(unconnected);
}

struct heard {
	char text[512];
	int nested;
};

static void hear(struct fide *f, const struct fide_event *e, struct heard *heard, const char *who)
{
	size_t at = strlen(heard->text);

	(void)f;
	snprintf(heard->text + at, sizeof heard->text - at, "%s %s %u;", who, e->name ? e->name : "-", (unsigned)e->number);
}
#define HEAR(who) \
	static void who(struct fide *f, const struct fide_event *e, void *user) \
	{ \
		hear(f, e, (struct heard *)user, #who); \
	}
HEAR(on_confirmed)
HEAR(on_piggyback)
HEAR(on_timeout)
HEAR(on_monitor_req)
HEAR(on_pbsize)
HEAR(on_other)
HEAR(on_hung)
HEAR(on_progressing)

static void on_failure(struct fide *f, const struct fide_event *e, void *user)
{
	struct fide_event next;

	/* Calls from within: what this event points at stays, whatever is asked meanwhile. */
	fide_event_init(&next);
	CHECK(fide_unmonitor(f, "db@a") == FIDE_OK);
	CHECK(fide_monitor(f, "db@a", NULL, NULL) == FIDE_OK);
	((struct heard *)user)->nested++;
	hear(f, e, (struct heard *)user, "on_failure");
}

static void resumed(const char *target, int error, const struct fide_monitored *now, void *user)
{
	struct heard *heard = (struct heard *)user;
	size_t at = strlen(heard->text);

	CHECK(target == NULL ? now == NULL : (error == FIDE_OK) == (now != NULL));
	if (error != FIDE_OK)
		SAYS("not any more");
	snprintf(heard->text + at, sizeof heard->text - at, "%s %d %d;", target ? target : "join", error,
		 now ? (int)now->alive : -1);
}

int main(int argc, char **argv)
{
	struct fide_options options;
	struct fide_resources wanted;
	struct fide_monitored granted;
	struct fide_callbacks callbacks;
	struct fide_progress *counters[16], *none;
	struct fide_event e;
	struct heard heard;
	struct fide *f = (struct fide *)&f;
	uint32_t app, size;
	uint64_t before, left_ns;
	int i;

	CHECK(argc == 2);
	CHECK(!strcmp(fide_last_error_text(), ""));
	CHECK(!strcmp(fide_strerror(FIDE_OK), "success"));
	CHECK(!strcmp(fide_strerror(-99), "unknown error"));
	CHECK(!strcmp(fide_cause_name(FIDE_CAUSE_SILENT_HOST), "silent-host"));
	CHECK(!strcmp(fide_grade_name(FIDE_GRADE_INFERRED), "inferred"));
	CHECK(fide_abi_version() == FIDE_ABI_VERSION);
	CHECK(fide_version()[0] >= '0');
	nothing_is_null();

	CHECK(fide_open("/no/such/socket", &f) == FIDE_EDISCONNECTED);
	CHECK(f == NULL);
	SAYS("no agent is listening on /no/such/socket");
	fide_options_init(&options);
	options.flags = 1u << 31;
	CHECK(fide_open_with(&options, &f) == FIDE_EINVAL);
	SAYS("flags");
	options.flags = FIDE_OPEN_SOCKET_ONLY;
	options.path = argv[1];
	options.answer_timeout_ns = 9000000000ull;
	CHECK(fide_open_with(&options, &f) == FIDE_OK);
	CHECK(fide_close(f) == FIDE_OK);
	CHECK(fide_open(argv[1], &f) == FIDE_OK);
	CHECK(!strcmp(fide_node(f), "here"));
	nor_is_it_on_a_handle(f);
	longer_structures(f);
	own_heartbeats(f);

	/* Listing 1: monitor, on_failure. */
	fide_resources_init(&wanted);
	wanted.pbsize = 5000;
	wanted.timeout_ns = 1000000;
	fide_monitored_init(&granted);
	CHECK(fide_monitor(f, "db@a", &wanted, &granted) == FIDE_OK);
	CHECK(granted.app == 7 && granted.pbsize == 1000 && granted.timeout_ns == 1050000 && granted.alive == 1);
	CHECK(fide_monitor(f, "nobody@a", NULL, NULL) == FIDE_ENOTFOUND);
	SAYS("no process nobody@a is known here");
	fide_event_init(&e);
	CHECK(readable(f, 0) == 0);
	CHECK(fide_next_event(f, &e, 0) == 0);
	CHECK(fide_next_event(f, &e, 20) == 0);
	CHECK(fide_busy_poll(f, &e) == 0);
	before = fide_now_ns();
	ask("doomed");
	CHECK(readable(f, 5000) == 1);
	CHECK(fide_next_event(f, &e, 5000) == 1);
	CHECK(fide_now_ns() > before);
	CHECK(e.kind == FIDE_EVENT_FAILURE && e.cause == FIDE_CAUSE_DOOMED && e.grade == FIDE_GRADE_CERTAIN);
	CHECK(!strcmp(e.name, "db@a") && e.app == 7 && e.node == granted.node && e.incarnation == 1 && e.code == 9);
	CHECK(e.flags == 0 && e.event_ns == 1000 && e.sent_ns == 13000 && e.id != 0 && e.data == NULL && e.data_len == 0);
	CHECK(e.size == sizeof e);
	ask("confirm");
	for (i = 0; (size = (uint32_t)fide_busy_poll(f, &e)) == 0 && i < 1000000000; i++)
		;
	CHECK(size == 1 && e.kind == FIDE_EVENT_CONFIRMED && e.cause == FIDE_CAUSE_KILLED);
	CHECK(e.flags == FIDE_FLAG_CONFIRMS);
	CHECK(readable(f, 0) == 0);

	/* Listing 1: join, piggyback, on_piggyback_rcv, quit. */
	CHECK(fide_pbsize(f) == 0);
	CHECK(fide_piggyback(f, "x", 1) == FIDE_EINVAL);
	SAYS("join first");
	CHECK(fide_quit(f) == FIDE_EINVAL);
	CHECK(fide_join(f, "me", 2000, &app, &size) == FIDE_OK);
	CHECK(app == 11 && size == 1000 && fide_pbsize(f) == 1000);
	CHECK(fide_join(f, "me", 2000, NULL, NULL) == FIDE_EEXISTS);
	CHECK(fide_piggyback(f, "hello", 5) == FIDE_OK);
	CHECK(fide_piggyback(f, "hello", 0) == FIDE_EINVAL);
	CHECK(fide_piggyback(f, "hello", 1001) == FIDE_ETOOLARGE);
	SAYS("1001 bytes are too many: at most 1000 are granted");
	CHECK(fide_piggyback(f, "hello", (size_t)-1) == FIDE_ETOOLARGE);
	ask("taken hello");
	for (i = 0; i < 64; i++)
		CHECK(fide_piggyback(f, &i, sizeof i) == FIDE_OK);
	CHECK(fide_piggyback(f, &i, sizeof i) == FIDE_EFULL);
	ask("piggyback");
	CHECK(fide_next_event(f, &e, 5000) == 1);
	CHECK(e.kind == FIDE_EVENT_PIGGYBACK && e.data_len == 3 && !memcmp(e.data, "a\0b", 3) && e.number == 5);
	CHECK(fide_quit(f) == FIDE_OK);
	CHECK(fide_join(f, "me again", 10, NULL, NULL) == FIDE_OK);

	/* Progress: counters of this process, and hangs of others. */
	CHECK(fide_progress_open(f, 1000000000, NULL) == FIDE_EINVAL);
	SAYS("out is NULL");
	for (i = 0; i < 16; i++)
		CHECK(fide_progress_open(f, 1000000000, &counters[i]) == FIDE_OK);
	CHECK(fide_progress_open(f, 1000000000, &none) == FIDE_EFULL && !none);
	CHECK(fide_progress_limit(f, counters[3], 2000000000) == FIDE_OK);
	CHECK(fide_progress_limit(f, NULL, 2000000000) == FIDE_EINVAL);
	fide_progress_tick(counters[3]);
	fide_progress_end(counters[3]);
	fide_progress_begin(counters[3]);
	CHECK(fide_report(f, "db", 1, "no queries") == FIDE_OK);
	CHECK(fide_report(f, NULL, 1, NULL) == FIDE_EINVAL);
	CHECK(fide_maintenance(f, "db@a", &left_ns) == 1 && left_ns == 120000000000ull);
	CHECK(fide_maintenance(f, "web@a", &left_ns) == 0 && left_ns == 0);
	CHECK(fide_maintenance(f, "@b", NULL) == 1);
	CHECK(fide_maintenance(f, "db", &left_ns) == FIDE_EINVAL && fide_maintenance(f, NULL, NULL) == FIDE_EINVAL);
	for (i = 0; i < 16; i++)
		CHECK(fide_progress_close(counters[i]) == FIDE_OK);
	memset(&heard, 0, sizeof heard);
	fide_callbacks_init(&callbacks);
	callbacks.on_hung = on_hung;
	callbacks.on_progressing = on_progressing;
	callbacks.on_other = on_other;
	CHECK(fide_set_callbacks(f, &callbacks, &heard) == FIDE_OK);
	ask("hung");
	for (i = 0; i < 3;) {
		int n = fide_dispatch(f, 5000);
		CHECK(n > 0);
		i += n;
	}
	CHECK(!strcmp(heard.text, "on_hung db@a 0;on_progressing db@a 0;on_other db@a 0;"));

	/* The upcalls as functions. */
	memset(&heard, 0, sizeof heard);
	fide_callbacks_init(&callbacks);
	callbacks.on_failure = on_failure;
	callbacks.on_confirmed = on_confirmed;
	callbacks.on_piggyback_rcv = on_piggyback;
	callbacks.on_timeout_changed = on_timeout;
	callbacks.on_monitor_req = on_monitor_req;
	callbacks.on_pbsize_changed = on_pbsize;
	callbacks.on_other = on_other;
	CHECK(fide_set_callbacks(f, &callbacks, &heard) == FIDE_OK);
	CHECK(fide_dispatch(f, 0) == 0);
	ask("everything");
	for (i = 0; i < 9;) {
		int n = fide_dispatch(f, 5000);
		CHECK(n > 0);
		i += n;
	}
	CHECK(!strcmp(heard.text, "on_other db@a 0;on_piggyback db@a 5;on_timeout db@a 6;on_monitor_req @a 8;on_pbsize - 9;"
				  "on_other - 3;on_other @a 0;on_failure db@a 0;on_confirmed db@a 0;"));
	CHECK(heard.nested == 1);
	heard.text[0] = 0;
	CHECK(fide_set_callbacks(f, NULL, NULL) == FIDE_OK);
	ask("doomed 2");
	CHECK(fide_dispatch(f, 5000) == 1 && heard.text[0] == 0);

	/* The agent dies and comes back. */
	CHECK(fide_monitor(f, "web@b", NULL, NULL) == FIDE_OK);
	ask("restart");
	CHECK(fide_next_event(f, &e, 5000) == 1 && e.kind == FIDE_EVENT_AGENT_GONE && e.name == NULL);
	CHECK(readable(f, 0) == 0);
	CHECK(fide_next_event(f, &e, 5000) == FIDE_EDISCONNECTED);
	CHECK(fide_busy_poll(f, &e) == FIDE_EDISCONNECTED);
	CHECK(fide_dispatch(f, -1) == FIDE_EDISCONNECTED);
	CHECK(fide_monitor(f, "db@a", NULL, NULL) == FIDE_EDISCONNECTED);
	SAYS("the connection to the agent is lost");
	ask("refuse one");
	CHECK(fide_reconnect(f, resumed, &heard) == 2);
	CHECK(!strcmp(heard.text, "join 0 -1;db@a -2 -1;web@b 0 0;"));
	CHECK(fide_reconnect(f, NULL, NULL) == 1);
	ask("doomed 3");
	CHECK(fide_next_event(f, &e, -1) == 1 && e.kind == FIDE_EVENT_FAILURE);
	CHECK(fide_unmonitor(f, "web@b") == FIDE_ENOTFOUND);
	ask("garbage");
	CHECK(fide_monitor(f, "db@a", NULL, NULL) == FIDE_EINVAL);
	SAYS("the agent broke the protocol");
	CHECK(fide_close(f) == FIDE_OK);
	printf("end\n");
	return 0;
}
