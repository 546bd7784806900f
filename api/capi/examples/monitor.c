/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Monitors a process of another host and prints what becomes of it.
 *
 *     cc -o monitor monitor.c $(pkg-config --cflags --libs fide)
 *     ./monitor db@a
 *
 * The target is name@host, @host for a host with all its processes, or '*'. Ends when the agent of this host does.
 */
#include <fide.h>

#include <stdio.h>

/*
 * Two clocks are involved: how long it took on the other host until the notice left it (event_ns and sent_ns are that
 * host's), and how long from this host's kernel receiving it until now. The network between them is in neither.
 */
static void print_latency(const struct fide_event *e)
{
	uint64_t now = fide_now_ns();

	if (e->event_ns && e->sent_ns)
		printf(", %.1f us there", (double)(e->sent_ns - e->event_ns) / 1e3);
	if (e->received_ns)
		printf(", %.1f us here", (double)(now - e->received_ns) / 1e3);
}

static const char *who(const struct fide_event *e)
{
	return e->name ? e->name : "(unnamed)";
}

/* Once for each instance of a process, as soon as it can no longer be saved. */
static void on_failure(struct fide *f, const struct fide_event *e, void *user)
{
	char id[24];

	(void)f;
	(void)user;
	printf("%s %s: %s (code %d, %s)", e->cause == FIDE_CAUSE_LEFT ? "left" : "FAILED", who(e),
	       fide_cause_name(e->cause), (int)e->code, fide_grade_name(e->grade));
	print_latency(e);
	if (e->id && fide_id_text(e->id, id, sizeof id) == FIDE_OK)
		printf(", see fide explain %s", id);
	printf("\n");
	fflush(stdout);
}

/* The end of a process that was reported as doomed, with its final cause and code. */
static void on_confirmed(struct fide *f, const struct fide_event *e, void *user)
{
	(void)f;
	(void)user;
	printf("confirmed %s: %s (code %d)\n", who(e), fide_cause_name(e->cause), (int)e->code);
	fflush(stdout);
}

/* What the code of an event about a host says, where it says something. */
static void print_meaning(const struct fide_event *e)
{
	if (e->cause == FIDE_CAUSE_OBSERVER_PAUSED)
		printf(" for %d us", (int)e->code);
	else if (e->cause == FIDE_CAUSE_PATH_DOWN || e->cause == FIDE_CAUSE_PATH_UP)
		printf(", path %d", (int)e->code);
}

/* Hosts, paths, lost events, the agent's own end: never a verdict on a process. */
static void on_other(struct fide *f, const struct fide_event *e, void *user)
{
	(void)f;
	switch (e->kind) {
	case FIDE_EVENT_MONITORED:
		printf("runs %s\n", who(e));
		break;
	case FIDE_EVENT_HOST:
		printf("host %s: %s", who(e), fide_cause_name(e->cause));
		print_meaning(e);
		printf(" (%s)\n", fide_grade_name(e->grade));
		break;
	case FIDE_EVENT_LOST:
		printf("%llu events were lost: what is known may be out of date\n", (unsigned long long)e->number);
		break;
	case FIDE_EVENT_AGENT_GONE:
		printf("the agent of this host is gone\n");
		*(int *)user = 1;
		break;
	default:
		printf("event of kind %u\n", (unsigned)e->kind);
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct fide_callbacks callbacks;
	struct fide_monitored monitored;
	struct fide *f;
	int gone = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: monitor name@host | @host | '*'\n");
		return 2;
	}
	if (fide_open(NULL, &f) != FIDE_OK) {
		fprintf(stderr, "monitor: %s\n", fide_last_error_text());
		return 1;
	}
	fide_callbacks_init(&callbacks);
	callbacks.on_failure = on_failure;
	callbacks.on_confirmed = on_confirmed;
	callbacks.on_other = on_other;
	fide_set_callbacks(f, &callbacks, &gone);

	fide_monitored_init(&monitored);
	if (fide_monitor(f, argv[1], NULL, &monitored) != FIDE_OK) {
		fprintf(stderr, "monitor: %s\n", fide_last_error_text());
		fide_close(f);
		return 1;
	}
	printf("monitoring %s from %s: %s, timeout %.3f ms\n", argv[1], fide_node(f),
	       monitored.alive ? "alive" : "not running now", (double)monitored.timeout_ns / 1e6);
	fflush(stdout);

	/* A program with an event loop of its own waits for fide_fd(f) and dispatches with timeout 0 instead. */
	while (!gone && fide_dispatch(f, -1) >= 0)
		;
	fide_close(f);
	return 0;
}
