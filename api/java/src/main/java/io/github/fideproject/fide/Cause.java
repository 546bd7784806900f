package io.github.fideproject.fide;

/** What happened. */
public enum Cause {
    /** No cause, or one that this version does not know. */
    NONE(0),
    /** It ended by itself; the code is its exit status. */
    EXITED(1),
    /** It was ended by a signal, which is the code. */
    KILLED(2),
    /** It can no longer be saved, though it still exists. */
    DOOMED(3),
    /** It said that it leaves. */
    LEFT(4),
    /** Agent lost. */
    AGENT_LOST(5),
    /** Silent host. */
    SILENT_HOST(6),
    /** Path down. */
    PATH_DOWN(7),
    /** Contract broken. */
    CONTRACT_BROKEN(8),
    /** Isolated. */
    ISOLATED(9),
    /** Hung. */
    HUNG(10),
    /** Out of memory. */
    OUT_OF_MEMORY(11),
    /** Unreachable. */
    UNREACHABLE(12),
    /** It had joined, and began another program or joined again: a new instance. */
    REPLACED(13),
    /** Path up. */
    PATH_UP(16),
    /** Returned. */
    RETURNED(17),
    /** Contract kept. */
    CONTRACT_KEPT(18),
    /** Rejoined. */
    REJOINED(19),
    /** Observer paused. */
    OBSERVER_PAUSED(20),
    /** Name clash. */
    NAME_CLASH(21),
    /** Foreign traffic. */
    FOREIGN_TRAFFIC(22),
    /** Monitored. */
    MONITORED(23),
    /** Interface. */
    INTERFACE(24),
    /** Local. */
    LOCAL(25),
    /** Fenced. */
    FENCED(26),
    /** Recovered. */
    RECOVERED(27),
    /** Progressing. */
    PROGRESSING(28);

    private final int number;

    Cause(int number) {
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

    static Cause of(int number) {
        for (Cause one : values()) {
            if (one.number == number) {
                return one;
            }
        }
        return NONE;
    }

    /**
     * Whether a process that ended so has crashed: it did not say that it leaves.
     *
     * @return true for a crash
     */
    public boolean isCrash() {
        return switch (this) {
            case EXITED, KILLED, DOOMED, OUT_OF_MEMORY, REPLACED, SILENT_HOST -> true;
            default -> false;
        };
    }

    @Override
    public String toString() {
        return name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
    }
}
