package io.github.fideproject.fide;

import java.time.Duration;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/** A progress counter of this process. Any method may be called from any thread; once it is closed, nothing is expected of it and they do nothing. */
public final class Progress implements AutoCloseable {
    private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock();
    private final FideClient client;
    private long counter;

    Progress(FideClient client, long counter) {
        this.client = client;
        this.counter = counter;
    }

    private interface Call {
        void on(long counter);
    }

    private void with(Call call) {
        lock.readLock().lock();
        try {
            if (counter != 0) {
                call.on(counter);
            }
        } finally {
            lock.readLock().unlock();
        }
    }

    /** It moved. */
    public void tick() {
        with(Library::progressTick);
    }

    /** An operation begins: until as many {@link #end}, the counter must move. */
    public void begin() {
        with(Library::progressBegin);
    }

    /** An operation ended; with the last of them the counter is idle. */
    public void end() {
        with(Library::progressEnd);
    }

    /**
     * Changes the limit; what was counted begins anew.
     *
     * @param limit 10 ms to a day
     */
    public void setLimit(Duration limit) {
        with(p -> client.with(f -> {
            Library.progressLimit(f, p, limit.toNanos());
            return null;
        }));
    }

    @Override
    public void close() {
        lock.writeLock().lock();
        try {
            if (counter != 0) {
                Library.progressClose(counter);
                counter = 0;
            }
        } finally {
            lock.writeLock().unlock();
        }
    }
}
