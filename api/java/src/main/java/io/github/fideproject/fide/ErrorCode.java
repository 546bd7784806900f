package io.github.fideproject.fide;

/** Why a call failed: {@code enum fide_error}, positive. */
public enum ErrorCode {
    /** The call or the agent's answer makes no sense. */
    INVALID(1),
    /** Not allowed to this user. */
    PERMISSION(2),
    /** No such process, host or verdict. */
    NOT_FOUND(3),
    /** The name is taken. */
    EXISTS(4),
    /** Larger than granted. */
    TOO_LARGE(5),
    /** No room for more, now. */
    FULL(6),
    /** Agent and library come from different releases. */
    VERSION(7),
    /** The agent cannot do this on its host. */
    UNSUPPORTED(8),
    /** No agent, or it went away; says nothing of anything monitored. */
    DISCONNECTED(9),
    /** A system call failed. */
    SYSTEM(10),
    /** Several processes match. */
    AMBIGUOUS(11),
    /** This process's gate is closed. */
    FENCED(12),
    /** A heartbeat is not known to have left in time. */
    NOT_SENT(13),
    /** A bug in the library. */
    INTERNAL(127);

    private final int number;

    ErrorCode(int number) {
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

    static ErrorCode of(int number) {
        for (ErrorCode one : values()) {
            if (one.number == number) {
                return one;
            }
        }
        return INTERNAL;
    }

    @Override
    public String toString() {
        return name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
    }
}
