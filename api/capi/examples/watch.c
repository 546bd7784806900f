#include <fide.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	struct fide *f;
	struct fide_event e;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (fide_open(NULL, &f) != FIDE_OK || fide_monitor(f, "db@a", NULL, NULL) != FIDE_OK)
		return fprintf(stderr, "%s\n", fide_last_error_text()), 1;
	for (fide_event_init(&e);;) {
		int got = fide_next_event(f, &e, -1);
		if (got == 1 && e.kind == FIDE_EVENT_FAILURE)
			printf("%s: %s, %s\n", e.name ? e.name : "?", fide_cause_name(e.cause), fide_grade_name(e.grade));
		while (got == FIDE_EDISCONNECTED && usleep(10000) == 0) /* its agent restarts: what ends meanwhile is reported then */
			got = fide_reconnect(f, NULL, NULL);
		if (got < 0)
			return fprintf(stderr, "%s\n", fide_last_error_text()), 1;
	}
}
