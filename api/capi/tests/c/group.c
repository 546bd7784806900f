/* Every function of groups, against a real agent. Prints what it wants done, and waits for a line. */
#include <fide.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "%d: %s: %s\n", __LINE__, #x, fide_last_error_text());                         \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static struct fide_group *g;
static struct fide_group_event e;
static uint64_t last_index;
static uint32_t fates[16];

static void ask_for(const char *what)
{
	char line[64];
	printf("%s\n", what);
	fflush(stdout);
	CHECK(fgets(line, sizeof line, stdin));
}

/* The next event of a kind; entries on the way have no gap. */
static void until(uint32_t kind)
{
	uint64_t end = fide_now_ns() + 30000000000u;
	do {
		CHECK(fide_now_ns() < end);
		int got = fide_group_next(g, &e, 1000);
		CHECK(got >= 0);
		if (got == 0)
			e.kind = 0;
		if (e.kind == FIDE_GROUP_ENTRY)
			CHECK(e.index == ++last_index);
		if (e.kind == FIDE_GROUP_FATE && e.number < 16)
			fates[e.number] = e.fate;
	} while (e.kind != kind);
}

static void until_own(uint64_t number)
{
	do
		until(FIDE_GROUP_ENTRY);
	while (!(e.own && e.number == number));
	CHECK(e.client == fide_group_client(g));
}

static uint32_t fate_of(uint64_t number)
{
	CHECK(fide_group_ask(g, number) == FIDE_OK);
	until(FIDE_GROUP_FATE);
	CHECK(e.number == number);
	return e.fate;
}

static void *reader(void *arg)
{
	until_own(*(uint64_t *)arg);
	return NULL;
}

static void refuses_nonsense(const char *socket)
{
	struct fide_group *none = (struct fide_group *)&none;
	struct fide_group_options options;
	struct fide_group_event small;
	fide_group_options_init(&options);
	options.path = socket;
	CHECK(fide_group_open("orders", &options, NULL) == FIDE_EINVAL);
	CHECK(fide_group_open(NULL, &options, &none) == FIDE_EINVAL && none == NULL);
	CHECK(fide_group_open("nobody's", &options, &none) == FIDE_ENOTFOUND && none == NULL);
	CHECK(strstr(fide_last_error_text(), "has no group"));
	options.index = 1000000;
	CHECK(fide_group_open("orders", &options, &none) == FIDE_EINVAL);
	options.size = 8;
	CHECK(fide_group_open("orders", &options, &none) == FIDE_EINVAL);
	CHECK(strstr(fide_last_error_text(), "fide_group_options_init"));
	fide_group_options_init(&options);
	options.path = "/nowhere/fide.sock";
	CHECK(fide_group_open("orders", &options, &none) == FIDE_EDISCONNECTED);
	CHECK(fide_group_propose(NULL, "x", 1, 0, NULL) == FIDE_EINVAL);
	CHECK(fide_group_propose(g, NULL, 1, 0, NULL) == FIDE_EINVAL);
	struct fide_group_value values[2] = {{"x", 1}, {NULL, 1}};
	CHECK(fide_group_propose_all(NULL, values, 1, NULL) == FIDE_EINVAL);
	CHECK(fide_group_propose_all(g, NULL, 1, NULL) == FIDE_EINVAL);
	CHECK(fide_group_propose_all(g, values, 0, NULL) == FIDE_EINVAL);
	CHECK(fide_group_propose_all(g, values, 1025, NULL) == FIDE_EINVAL);
	CHECK(fide_group_propose_all(g, values, 2, NULL) == FIDE_EINVAL);
	values[1].len = FIDE_GROUP_VALUE_MAX + 1;
	CHECK(fide_group_propose_all(g, values, 2, NULL) == FIDE_ETOOLARGE);
	CHECK(fide_group_propose(g, socket, FIDE_GROUP_VALUE_MAX + 1, 0, NULL) == FIDE_ETOOLARGE);
	CHECK(fide_group_keep_snapshot(g, 1, socket, FIDE_GROUP_SNAPSHOT_MAX + 1) == FIDE_ETOOLARGE);
	CHECK(fide_group_next(NULL, &e, 0) == FIDE_EINVAL && fide_group_next(g, NULL, 0) == FIDE_EINVAL);
	small.size = 4;
	CHECK(fide_group_next(g, &small, 0) == FIDE_EINVAL);
	CHECK(fide_group_ask(g, 0) == FIDE_EINVAL && fide_group_ask(NULL, 1) == FIDE_EINVAL);
	CHECK(fide_group_reconnect(NULL) == FIDE_EINVAL && fide_group_close(NULL) == FIDE_EINVAL);
	CHECK(fide_group_fd(NULL) == FIDE_EINVAL && fide_group_client(NULL) == 0);
}

int main(int argc, char **argv)
{
	struct fide_group_options options;
	uint64_t number = 0;
	pthread_t thread;
	int fd, entries = 0;

	CHECK(argc == 2);
	fide_group_event_init(&e);
	fide_group_options_init(&options);
	options.path = argv[1];
	options.client = 22;
	CHECK(fide_group_open("orders", &options, &g) == FIDE_OK);
	CHECK(fide_group_client(g) == 22);
	refuses_nonsense(argv[1]);

	/* One descriptor for everything; the standing and the members come first. */
	fd = fide_group_fd(g);
	until(FIDE_GROUP_STANDING);
	CHECK(e.stage == FIDE_STAGE_RUNNING && e.member == 2 && e.leader == 1 && e.generation != 0);
	until(FIDE_GROUP_MEMBERS);
	CHECK(e.members_len == 3 && e.members[0] == 1 && e.members[2] == 3);
	CHECK(fide_group_next(g, &e, 0) == 0 && fide_group_next(g, &e, 10) == 0);
	CHECK(fide_group_propose(g, "abc", 1, 0, &number) == FIDE_OK && number == 1);
	struct fide_group_value together[2] = {{"abc", 2}, {"abc", 3}};
	CHECK(fide_group_propose_all(g, together, 2, &number) == FIDE_OK && number == 2);
	while (entries < 3) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		CHECK(poll(&p, 1, 10000) == 1);
		while (fide_group_next(g, &e, 0) == 1) {
			if (e.kind != FIDE_GROUP_ENTRY)
				continue;
			entries++;
			CHECK(e.index == ++last_index && e.own == 1 && e.member == 2 && e.number == (uint64_t)entries);
			CHECK(e.data_len == (uint64_t)entries && memcmp(e.data, "abc", e.data_len) == 0);
		}
	}
	CHECK(fate_of(3) == FIDE_FATE_DECIDED && fate_of(4) == FIDE_FATE_OPEN);

	/* Another thread waits while this one proposes. */
	number = 4;
	CHECK(pthread_create(&thread, NULL, reader, &number) == 0);
	usleep(20000);
	CHECK(fide_group_propose(g, NULL, 0, 0, NULL) == FIDE_OK);
	CHECK(pthread_join(thread, NULL) == 0);

	/* A deadline: the agent has the proposal, and stands still. */
	ask_for("stop");
	CHECK(fide_group_propose(g, "late", 4, fide_now_ns() + 100000000, &number) == FIDE_OK && number == 5);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	CHECK(poll(&p, 1, 5000) == 1);
	until(FIDE_GROUP_OVERDUE);
	CHECK(e.number == 5);
	ask_for("continue");
	CHECK(fide_group_propose(g, "after", 5, 0, &number) == FIDE_OK && number == 6);
	until_own(6);
	uint32_t fate = fate_of(5);
	CHECK(fate == FIDE_FATE_DECIDED || fate == FIDE_FATE_NEVER);
	CHECK(fate_of(6) == FIDE_FATE_DECIDED);

	/* The agent dies and comes back. */
	ask_for("kill");
	int got;
	while ((got = fide_group_next(g, &e, 1000)) == 1)
		if (e.kind == FIDE_GROUP_ENTRY)
			CHECK(e.index == ++last_index);
	CHECK(got == FIDE_EDISCONNECTED);
	CHECK(fide_group_propose(g, "meanwhile", 9, 0, &number) == FIDE_OK && number == 7);
	CHECK(fide_group_ask(g, 7) == FIDE_OK);
	CHECK(fide_group_propose(g, "too late", 8, fide_now_ns() + 50000000, &number) == FIDE_OK && number == 8);
	usleep(100000);
	CHECK(fide_group_reconnect(g) == FIDE_EDISCONNECTED);
	ask_for("start");
	while ((got = fide_group_reconnect(g)) == FIDE_EDISCONNECTED)
		usleep(10000);
	CHECK(got == FIDE_OK && fide_group_fd(g) == fd);
	/* Nobody had the one with the deadline, which had come. */
	until(FIDE_GROUP_REFUSED);
	CHECK(e.number == 8 && e.refusal == FIDE_REFUSAL_LATE && strstr(e.why, "never will be decided"));
	until_own(7);
	CHECK(e.data_len == 9);
	while (fates[7] == 0) /* it was asked before, and answered here, perhaps before it was decided */
		until(FIDE_GROUP_FATE);
	CHECK(fates[7] == FIDE_FATE_DECIDED || fates[7] == FIDE_FATE_OPEN);
	CHECK(fide_group_propose(g, "nine", 4, 0, &number) == FIDE_OK && number == 9);
	until_own(9);
	CHECK(fate_of(8) == FIDE_FATE_NEVER && fate_of(9) == FIDE_FATE_DECIDED);

	/* The state out, and in: by another client, and what is behind it. */
	CHECK(fide_group_keep_snapshot(g, last_index - 1, "state", 5) == FIDE_OK);
	CHECK(fide_group_propose(g, "ten", 3, 0, &number) == FIDE_OK);
	until_own(10);
	CHECK(fide_group_close(g) == FIDE_OK);
	uint64_t all = last_index;
	options.client = 0;
	CHECK(fide_group_open("orders", &options, &g) == FIDE_OK);
	CHECK(fide_group_client(g) != 22 && fide_group_client(g) != 0);
	until(FIDE_GROUP_SNAPSHOT);
	CHECK(e.data_len == 5 && memcmp(e.data, "state", 5) == 0 && e.index == all - 2);
	last_index = e.index;
	until(FIDE_GROUP_ENTRY);
	until(FIDE_GROUP_ENTRY);
	CHECK(e.data_len == 3 && memcmp(e.data, "ten", 3) == 0 && e.own == 0 && e.client == 22);
	CHECK(fide_group_close(g) == FIDE_OK);

	/* The same client in a new life. */
	options.client = 22;
	options.index = last_index;
	options.last_number = 10;
	CHECK(fide_group_open("orders", &options, &g) == FIDE_OK);
	CHECK(fate_of(8) == FIDE_FATE_NEVER && fate_of(10) == FIDE_FATE_DECIDED);
	CHECK(fide_group_propose(g, "eleven", 6, 0, &number) == FIDE_OK && number == 11);
	until_own(11);
	CHECK(fide_group_close(g) == FIDE_OK);
	printf("end\n");
	return 0;
}
