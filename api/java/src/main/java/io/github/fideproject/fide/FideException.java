package io.github.fideproject.fide;

/** A call failed. Its code says why for programs; its message says what, why and what to do. */
public final class FideException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final ErrorCode code;

    FideException(ErrorCode code, String text) {
        super(text);
        this.code = code;
    }

    /**
     * Why it failed.
     *
     * @return the code
     */
    public ErrorCode code() {
        return code;
    }
}
