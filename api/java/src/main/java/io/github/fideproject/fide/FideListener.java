package io.github.fideproject.fide;

/** Whom {@link FideClient#listen} tells. What is not overridden is passed over, or goes to {@link #onOther}. Called on one thread, in order. */
public interface FideListener {
    /**
     * A monitored process is ending or gone; once for each instance of it.
     *
     * @param event the event
     */
    default void onFailure(Event event) {}

    /**
     * The end of a process that failed as "doomed" was seen.
     *
     * @param event the event
     */
    default void onConfirmed(Event event) {}

    /**
     * A monitored process is there and makes no progress.
     *
     * @param event the event
     */
    default void onHung(Event event) {}

    /**
     * A process that was hung moves again.
     *
     * @param event the event
     */
    default void onProgressing(Event event) {}

    /**
     * A monitored process sent data.
     *
     * @param event the event
     */
    default void onPiggyback(Event event) {}

    /**
     * This host is fenced: stop acting.
     *
     * @param event the event
     */
    default void onFenced(Event event) {
        onOther(event);
    }

    /**
     * The fence was opened again: begin anew.
     *
     * @param event the event
     */
    default void onRecovered(Event event) {
        onOther(event);
    }

    /**
     * Every other event.
     *
     * @param event the event
     */
    default void onOther(Event event) {}

    /**
     * No event comes any more. Before it {@link #onOther} has {@link EventKind#AGENT_GONE}, where the agent is gone.
     *
     * @param error why
     */
    default void onEnd(FideException error) {}

    /**
     * Chooses among the others.
     *
     * @param event the event
     */
    default void onEvent(Event event) {
        switch (event.kind()) {
            case FAILURE -> onFailure(event);
            case CONFIRMED -> onConfirmed(event);
            case HUNG -> onHung(event);
            case PROGRESSING -> onProgressing(event);
            case PIGGYBACK -> onPiggyback(event);
            case FENCED -> onFenced(event);
            case RECOVERED -> onRecovered(event);
            default -> onOther(event);
        }
    }
}
