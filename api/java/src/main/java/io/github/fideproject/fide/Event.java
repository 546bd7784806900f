package io.github.fideproject.fide;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/**
 * What the application is told. What its kind has no use for is 0, null or empty. Stamps are nanoseconds of CLOCK_MONOTONIC.
 *
 * @param kind what it is
 * @param cause what happened
 * @param grade how sure
 * @param name "name@host" or "@host" where it is known, else null
 * @param node the node's wire id
 * @param app the process's number there, 0 for the node itself
 * @param incarnation the node's incarnation
 * @param code exit status, signal or path, as the cause says
 * @param path the path the first copy came by
 * @param confirms it confirms an earlier "doomed"
 * @param local it happened on this host
 * @param fenced its host is silent, and is fenced as a whole: nothing of it is heard any more
 * @param id the verdict's id, for {@code fide explain}; null without one
 * @param eventNs when it happened, by the clock of the host where it happened
 * @param sentNs when the notice left, by the same clock
 * @param receivedNs when this host's kernel received it, by this host's clock, as {@link FideClient#nowNs}
 * @param number as the kind says
 * @param data a piggybacked message
 */
public record Event(
        EventKind kind, Cause cause, Grade grade, String name, int node, int app, int incarnation, int code, int path,
        boolean confirms, boolean local, boolean fenced, String id, long eventNs, long sentNs, long receivedNs, long number, byte[] data) {
    private static final int CONFIRMS = 1;
    private static final int LOCAL = 2;
    private static final int FENCED = 8;

    static Event of(byte[] packed) {
        ByteBuffer b = ByteBuffer.wrap(packed).order(ByteOrder.nativeOrder());
        EventKind kind = EventKind.of(b.getInt());
        Cause cause = Cause.of(b.getInt());
        Grade grade = Grade.of(b.getInt());
        int node = b.getInt();
        int app = b.getInt();
        int incarnation = b.getInt();
        int code = b.getInt();
        int path = b.getInt();
        int flags = b.getInt();
        byte[] name = new byte[b.getInt()];
        long id = b.getLong();
        long eventNs = b.getLong();
        long sentNs = b.getLong();
        long receivedNs = b.getLong();
        long number = b.getLong();
        b.get(name);
        byte[] data = new byte[b.remaining()];
        b.get(data);
        return new Event(
                kind, cause, grade, name.length == 0 ? null : new String(name, StandardCharsets.UTF_8), node, app, incarnation,
                code, path, (flags & CONFIRMS) != 0, (flags & LOCAL) != 0, (flags & FENCED) != 0, id == 0 ? null : Library.text(Library.idText(id)),
                eventNs, sentNs, receivedNs, number, data);
    }
}
