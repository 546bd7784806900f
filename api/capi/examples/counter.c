#include <fide.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct fide_group *g;
	struct fide_group_event e;
	int64_t total = 0, value = 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (fide_group_open("counter", NULL, &g) != FIDE_OK)
		return fprintf(stderr, "%s\n", fide_last_error_text()), 1;
	for (int n = argc > 1 ? atoi(argv[1]) : 1; n > 0; n--)
		fide_group_propose(g, &value, sizeof value, 0, NULL);
	for (fide_group_event_init(&e);;) {
		int got = fide_group_next(g, &e, -1);
		while (got == FIDE_EDISCONNECTED && usleep(10000) == 0) /* its agent restarts: nothing is lost, nothing counts twice */
			got = fide_group_reconnect(g);
		if (got < 0)
			return fprintf(stderr, "%s\n", fide_last_error_text()), 1;
		if (got == 1 && e.kind == FIDE_GROUP_SNAPSHOT && e.data_len == sizeof total)
			memcpy(&total, e.data, sizeof total);
		if (got == 1 && e.kind == FIDE_GROUP_ENTRY && e.data_len == sizeof value) {
			memcpy(&value, e.data, sizeof value);
			printf("%lld after entry %llu\n", (long long)(total += value), (unsigned long long)e.index);
			if (e.index % 1000 == 0)
				fide_group_keep_snapshot(g, e.index, &total, sizeof total);
		}
	}
}
