package io.github.fideproject.fide;

/** What an event is. Treat unknown ones of later versions as {@link #OTHER}. */
public enum EventKind {
    /** A monitored process is ending or gone, once for each instance of it; its cause says whether it is a crash. */
    FAILURE(1),
    /** The end of a process that failed as "doomed" was seen; cause and code are final. */
    CONFIRMED(2),
    /** A process is monitored from now on: it came, or came back as a new instance. */
    MONITORED(3),
    /** About a host, a path, an agent or this observer: never about a process. */
    HOST(4),
    /** A monitored process sent data; number is its heartbeat's. */
    PIGGYBACK(5),
    /** Number is the new timeout towards node and app, nanoseconds. */
    TIMEOUT_CHANGED(6),
    /** Number is what this process may piggyback from now on, bytes. */
    PBSIZE_CHANGED(7),
    /** Somebody began to monitor this process and would like number bytes of piggyback. */
    MONITOR_REQ(8),
    /** Number events were lost: monitor again what matters. */
    LOST(9),
    /** The agent hung up; nothing of what it monitored has failed. Then reconnect. */
    AGENT_GONE(10),
    /** Something this version does not know. */
    OTHER(11),
    /** A monitored process is there and makes no progress. Not a failure. */
    HUNG(12),
    /** A process that was hung moves again. */
    PROGRESSING(13),
    /** This host is fenced, and others may have taken over: stop acting. */
    FENCED(14),
    /** The fence was opened again, in a new incarnation: begin anew. */
    RECOVERED(15);

    private final int number;

    EventKind(int number) {
        this.number = number;
    }

    /**
     * Its number in {@code fide.h}.
     *
     * @return the number
     */
    public int number() {
        return number;
    }

    static EventKind of(int number) {
        for (EventKind one : values()) {
            if (one.number == number) {
                return one;
            }
        }
        return OTHER;
    }

    @Override
    public String toString() {
        return name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
    }
}
