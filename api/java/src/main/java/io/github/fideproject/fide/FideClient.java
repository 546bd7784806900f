package io.github.fideproject.fide;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.LongFunction;

/**
 * A connection to the agent of this host. Any method may be called from any thread. {@link #close} ends it; a process that has joined is monitored as before.
 *
 * <p>Every method may throw {@link FideException}, and {@link IllegalStateException} once it is closed.
 */
public final class FideClient implements AutoCloseable {
    /** The most bytes of a piggybacked message; what is granted may be less. */
    public static final int PIGGYBACK_MAX = 1418;

    /** How long one look for an event may last: so often a wait notices an interrupt and a close. An event ends it at once. */
    private static final int SLICE_MS = 50;

    /** Read: the handle is in use. Write: it is closed. */
    private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock();

    private long handle;

    private FideClient(long handle) {
        this.handle = handle;
    }

    /**
     * Connects to the agent at {@code $FIDE_SOCKET}, else at its default socket.
     *
     * @return the connection
     */
    public static FideClient open() {
        return new FideClient(Library.open(null, false, 0));
    }

    /**
     * Connects to the agent at a socket.
     *
     * @param socket the agent's socket
     * @return the connection
     */
    public static FideClient open(Path socket) {
        return new FideClient(Library.open(Library.bytes(socket.toString()), false, 0));
    }

    /**
     * Connects with everything that can be chosen.
     *
     * @param socket the agent's socket; null for the default
     * @param socketOnly take events through a socket although the kernel could write them into memory
     * @param answerTimeout longest wait for each of the agent's answers; null for 10 s
     * @return the connection
     */
    public static FideClient open(Path socket, boolean socketOnly, Duration answerTimeout) {
        byte[] path = socket == null ? null : Library.bytes(socket.toString());
        return new FideClient(Library.open(path, socketOnly, answerTimeout == null ? 0 : answerTimeout.toNanos()));
    }

    /**
     * This host's CLOCK_MONOTONIC, as {@link Event#receivedNs}.
     *
     * @return nanoseconds
     */
    public static long nowNs() {
        return Library.nowNs();
    }

    <T> T with(LongFunction<T> call) {
        lock.readLock().lock();
        try {
            if (handle == 0) {
                throw new IllegalStateException("it was closed");
            }
            return call.apply(handle);
        } finally {
            lock.readLock().unlock();
        }
    }

    private interface Call {
        void on(long handle);
    }

    private void run(Call call) {
        with(f -> {
            call.on(f);
            return null;
        });
    }

    /**
     * The name of this host as its agent has it.
     *
     * @return the name
     */
    public String node() {
        return Library.text(with(Library::node));
    }

    /**
     * From now on, events of a process ("name@host"), of a host and all its processes ("@host"), or of everything ("*").
     *
     * @param target what
     * @return what is known of it now
     */
    public Monitored monitor(String target) {
        return monitor(target, 0, Duration.ZERO);
    }

    /**
     * {@link #monitor(String)} with wishes.
     *
     * @param target what
     * @param pbsize smallest piggyback size wanted from it, bytes
     * @param timeout largest timeout that is of use; zero for whatever the contract gives
     * @return what is known of it now, and what was granted
     */
    public Monitored monitor(String target, int pbsize, Duration timeout) {
        return Monitored.of(with(f -> Library.monitor(f, Library.bytes(target), pbsize, timeout.toNanos())));
    }

    /**
     * Ends {@link #monitor(String)} of the same target. Events that are already there still come.
     *
     * @param target what
     */
    public void unmonitor(String target) {
        run(f -> Library.unmonitor(f, Library.bytes(target)));
    }

    /**
     * This process wants to be monitored under a name. From now on its end without {@link #quit} is a crash.
     *
     * @param name unique on this host
     * @param pbsize the piggyback size wanted, bytes
     * @return what was granted
     */
    public Joined join(String name, int pbsize) {
        long both = with(f -> Library.join(f, Library.bytes(name), pbsize));
        return new Joined((int) (both >>> 32), (int) both);
    }

    /** This process leaves politely: what follows is not a crash. */
    public void quit() {
        run(Library::quit);
    }

    /**
     * Sends a message to everybody who monitors this process, on this host's next free heartbeat. Never blocks: {@link ErrorCode#FULL} when earlier ones still
     * wait, {@link ErrorCode#TOO_LARGE} above the size granted.
     *
     * @param message the message
     */
    public void piggyback(byte[] message) {
        run(f -> Library.piggyback(f, message));
    }

    /**
     * The piggyback size granted now.
     *
     * @return bytes; 0 before {@link #join}
     */
    public int pbsize() {
        return with(Library::pbsize);
    }

    /**
     * A counter by which this process, which has joined, shows that it moves.
     *
     * @param limit while it is busy it must move within this, 10 ms to a day
     * @return the counter, busy from the start
     */
    public Progress progress(Duration limit) {
        return new Progress(this, with(f -> Library.progressOpen(f, limit.toNanos())));
    }

    /**
     * Tells all hosts what this application's own detector found of a process of this host.
     *
     * @param name as it is watched
     * @param hung whether it is hung
     * @param reason one line for the history
     */
    public void report(String name, boolean hung, String reason) {
        run(f -> Library.report(f, Library.bytes(name), hung, Library.bytes(reason)));
    }

    /**
     * How long the maintenance of a process ("name@host") or a host ("@host") still lasts. What ends in it was planned.
     *
     * @param target what
     * @return how long; zero without one
     */
    public Duration maintenance(String target) {
        return Duration.ofNanos(with(f -> Library.maintenance(f, Library.bytes(target))));
    }

    /**
     * The next event. {@link ErrorCode#DISCONNECTED} after {@link EventKind#AGENT_GONE}. Each event goes to one caller.
     *
     * @param timeout the longest wait; zero does not wait
     * @return the event; null when none came in time
     * @throws InterruptedException when the thread is interrupted; nothing is lost
     */
    public Event poll(Duration timeout) throws InterruptedException {
        long end = System.nanoTime() + timeout.toNanos();
        while (true) {
            long leftNs = end - System.nanoTime();
            // Rounded up, so that the last look does not spin.
            byte[] packed = look((int) Math.max(0, Math.min(SLICE_MS, (leftNs + 999_999) / 1_000_000)));
            if (packed != null) {
                return Event.of(packed);
            }
            if (leftNs <= 0) {
                return null;
            }
        }
    }

    /**
     * The next event, without a limit on the wait.
     *
     * @return the event
     * @throws InterruptedException when the thread is interrupted; nothing is lost
     */
    public Event take() throws InterruptedException {
        while (true) {
            byte[] packed = look(SLICE_MS);
            if (packed != null) {
                return Event.of(packed);
            }
        }
    }

    private byte[] look(int timeoutMs) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        return with(f -> Library.next(f, timeoutMs));
    }

    /**
     * Tells a listener of every event, on a daemon thread of its own, until the returned object or this connection is closed, or the agent is gone.
     *
     * @param listener whom
     * @return ends it: when its close returns, no call of the listener is under way, unless the listener itself closes it
     */
    public AutoCloseable listen(FideListener listener) {
        Thread thread = new Thread(() -> {
            try {
                while (true) {
                    listener.onEvent(take());
                }
            } catch (FideException e) {
                listener.onEnd(e);
            } catch (InterruptedException | IllegalStateException e) {
                // Closed.
            }
        }, "fide-events");
        thread.setDaemon(true);
        thread.start();
        return () -> {
            thread.interrupt();
            if (Thread.currentThread() != thread) {
                thread.join();
            }
        };
    }

    /**
     * Connects anew after {@link EventKind#AGENT_GONE}, joins again if this process had joined, and monitors again what was monitored. What is refused now is
     * given up.
     *
     * @return what became of the join and of each target
     */
    public List<Resumed> reconnect() {
        List<Resumed> list = new ArrayList<>();
        run(f -> Library.reconnect(f, list));
        return list;
    }

    @Override
    public void close() {
        lock.writeLock().lock();
        try {
            if (handle != 0) {
                long f = handle;
                handle = 0;
                Library.close(f);
            }
        } finally {
            lock.writeLock().unlock();
        }
    }
}
