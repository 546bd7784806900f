/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beside a Redis Sentinel, which is not changed: its failover decision, made when silence says something.
 *
 *     cc -o sentinel-guard sentinel.c $(pkg-config --cflags --libs fide)
 *     ./sentinel-guard 26379 mymaster 10.0.0.7 6379 redis@a 1000
 *
 * In sentinel.conf the quorum is one more than there are Sentinels, so that a Sentinel's own timeout (+sdown) is a suspicion and no decision. What
 * follows from it is decided here, and done by SENTINEL FAILOVER:
 *   - the master's crash is certain: its kernel said so. At once; no timeout is involved;
 *   - or Sentinel suspects it, our own PING has had no answer for as long, nothing waits on this host and nothing was lost here (fide_check), and a last
 *     look into our own socket finds no answer.
 * One guard for each master; another Sentinel's guard waits beside it.
 */
#include <fide.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS 1000000ull

static int to(const char *address, const char *port, int flags)
{
	struct sockaddr_in a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);

	memset(&a, 0, sizeof a);
	a.sin_family = AF_INET;
	a.sin_port = htons((unsigned short)atoi(port));
	inet_pton(AF_INET, address, &a.sin_addr);
	if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno == EINPROGRESS)
		return fd;
	close(fd);
	return -1;
}

/* Asks this host's Sentinel, which answers at once. */
static const char *ask(const char *port, const char *line)
{
	static char reply[8192];
	ssize_t n = -1;
	int fd = to("127.0.0.1", port, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	reply[0] = 0;
	if (fd >= 0 && send(fd, line, strlen(line), MSG_NOSIGNAL) > 0 && poll(&p, 1, 1000) == 1)
		n = recv(fd, reply, sizeof reply - 1, 0);
	reply[n > 0 ? n : 0] = 0;
	close(fd);
	return reply;
}

/* Our own heartbeats of the master: one PING at a time. */
static int own = -1, pinged;
static uint64_t asked; /* nothing was heard since we asked at this time; 0: all was answered */

static void look(void)
{
	char reply[64];
	ssize_t n = own < 0 ? 0 : recv(own, reply, sizeof reply, MSG_DONTWAIT);

	if (n > 0) {
		asked = 0;
		pinged = 0;
	} else if (own >= 0 && (n == 0 || errno != EAGAIN)) {
		close(own);
		own = -1;
	}
}

static void beat(const char *address, const char *port)
{
	static uint64_t last;

	if (fide_now_ns() < last + 100 * MS)
		return;
	last = fide_now_ns();
	if (own < 0) {
		own = to(address, port, SOCK_NONBLOCK);
		pinged = 0;
	}
	if (own >= 0 && !pinged)
		pinged = send(own, "PING\r\n", 6, MSG_NOSIGNAL | MSG_DONTWAIT) == 6;
	if (!asked)
		asked = last; /* also without a connection: then there is no answer either */
}

int main(int argc, char **argv)
{
	const char *sentinel, *name, *address, *port;
	char status[128], failover[128];
	struct fide *f;
	struct fide_event e;
	struct pollfd p = { .events = POLLIN };
	uint64_t patience;

	if (argc != 7) {
		fprintf(stderr, "usage: %s SENTINEL-PORT MASTER ADDRESS PORT PROCESS@HOST DOWN-AFTER-MS\n", argv[0]);
		return 2;
	}
	sentinel = argv[1], name = argv[2], address = argv[3], port = argv[4];
	patience = (uint64_t)atoi(argv[6]) * MS;
	snprintf(status, sizeof status, "name=%s,status=sdown", name);
	snprintf(failover, sizeof failover, "SENTINEL FAILOVER %s\r\n", name);
	if (fide_open(NULL, &f) || fide_monitor(f, argv[5], NULL, NULL)) {
		fprintf(stderr, "%s\n", fide_last_error_text());
		return 1;
	}
	printf("guarding %s\n", name);
	fflush(stdout);
	fide_event_init(&e);
	p.fd = fide_fd(f);
	for (;;) {
		int decided = 0;

		poll(&p, 1, 10);
		while (fide_busy_poll(f, &e) == 1)
			decided |= e.kind == FIDE_EVENT_FAILURE && e.grade == FIDE_GRADE_CERTAIN && e.cause != FIDE_CAUSE_LEFT;
		look();
		beat(address, port);
		if (!decided && asked && fide_now_ns() > asked + patience && strstr(ask(sentinel, "INFO sentinel\r\n"), status)) {
			struct fide_checked checked;
			int outcome;

			fide_checked_init(&checked);
			outcome = fide_check(f, address, asked, 0, 200 * MS, &checked);
			look();
			decided = outcome == FIDE_CHECK_CERTAIN || (outcome == FIDE_CHECK_DRAINED && asked);
			if (outcome == FIDE_CHECK_VOID)
				asked = checked.lost_ns; /* the interval says nothing: a new one */
			if (!decided) {
				printf("held: %s\n", asked ? checked.why : "it answered");
				fflush(stdout);
			}
		}
		if (decided) {
			const char *said = ask(sentinel, failover);

			printf("failover: %s", said);
			fflush(stdout);
			/* It knows too little of its replicas now, or a failover is under way, which may fail. */
			if (strncmp(said, "-NOGOODSLAVE", 12) && strncmp(said, "-INPROG", 7))
				return 0;
		}
	}
}
