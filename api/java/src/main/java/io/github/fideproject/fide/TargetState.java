package io.github.fideproject.fide;

/** What is known of a target that is monitored from now on. What is not there is waited for. */
public enum TargetState {
    /** The agent does not say. */
    UNKNOWN(0),
    /** It runs. */
    ALIVE(1),
    /** It runs and makes no progress. */
    HUNG(2),
    /** Its host's agent is lost, or left: nobody watches it. */
    UNOBSERVED(3),
    /** The last process of that name has ended: see cause and code. */
    ENDED(4),
    /** No process of that name was known on that host. */
    NO_PROCESS(5),
    /** No host of that name was ever heard. */
    NO_HOST(6);

    private final int number;

    TargetState(int number) {
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

    static TargetState of(int number) {
        for (TargetState one : values()) {
            if (one.number == number) {
                return one;
            }
        }
        return UNKNOWN;
    }

    @Override
    public String toString() {
        return name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
    }
}
