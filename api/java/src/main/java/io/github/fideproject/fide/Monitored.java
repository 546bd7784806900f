package io.github.fideproject.fide;

import java.time.Duration;

/**
 * What {@link FideClient#monitor} was granted.
 *
 * @param node the node's wire id
 * @param app the process's number; 0 for a host, for "*", and for what is not running now
 * @param pbsize bytes
 * @param timeout for the silence of its host
 * @param alive it is known and alive now; otherwise no failure comes until it has come and gone
 * @param state what is known of it
 * @param cause how the last process of that name ended, where the state is {@link TargetState#ENDED}
 * @param code its exit status or signal
 */
public record Monitored(
        int node, int app, int pbsize, Duration timeout, boolean alive, TargetState state, Cause cause, int code) {
    static Monitored of(long[] n) {
        return new Monitored(
                (int) n[0], (int) n[1], (int) n[2], Duration.ofNanos(n[3]), n[4] != 0,
                TargetState.of((int) n[5]), Cause.of((int) n[6]), (int) n[7]);
    }
}
