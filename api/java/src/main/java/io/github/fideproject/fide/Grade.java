package io.github.fideproject.fide;

/** How sure a verdict is. */
public enum Grade {
    /** No verdict. */
    NONE(0),
    /** A kernel saw it, or it announced itself. */
    CERTAIN(1),
    /** Silence, judged against a stated contract. */
    INFERRED(2);

    private final int number;

    Grade(int number) {
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

    static Grade of(int number) {
        for (Grade one : values()) {
            if (one.number == number) {
                return one;
            }
        }
        return NONE;
    }

    @Override
    public String toString() {
        return name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
    }
}
