package io.github.fideproject.fide;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class FideClientTest {
    private static final int SIGKILL = 9;

    @Test
    void causesAreThoseOfTheLibrary() {
        for (Cause cause : Cause.values()) {
            if (cause != Cause.NONE) {
                assertEquals(Library.text(Library.causeName(cause.number())), cause.toString());
            }
        }
    }

    @Test
    void withoutAnAgentTheErrorSaysWhatToDo() {
        FideException e = assertThrows(FideException.class, () -> FideClient.open(Path.of("/nonexistent/fided.sock")));
        assertEquals(ErrorCode.DISCONNECTED, e.code());
        assertTrue(e.getMessage().contains("systemctl start fided"), e.getMessage());
    }

    @Test
    void aCrashIsToldWithCauseGradeAndStamps() throws Exception {
        try (Lab lab = new Lab();
                FideClient client = FideClient.open(lab.socket("h1"))) {
            Process victim = lab.victim("java-db");
            assertEquals("h1", client.node());
            Monitored now = lab.monitorAlive(client, "java-db@h2");
            assertEquals(TargetState.ALIVE, now.state());
            assertTrue(now.app() > 0 && !now.timeout().isZero());
            victim.destroyForcibly();
            Event failure = Lab.until(client, EventKind.FAILURE);
            assertEquals("java-db@h2", failure.name());
            assertEquals(Grade.CERTAIN, failure.grade());
            assertTrue(failure.cause().isCrash() && failure.code() == SIGKILL, failure.toString());
            assertNotNull(failure.id());
            assertTrue(failure.receivedNs() > 0 && failure.receivedNs() < FideClient.nowNs());
            if (failure.cause() == Cause.DOOMED) {
                Event confirmed = Lab.until(client, EventKind.CONFIRMED);
                assertTrue(confirmed.confirms() && confirmed.cause() == Cause.KILLED, confirmed.toString());
            }
            Monitored ended = client.monitor("java-db@h2");
            assertTrue(!ended.alive() && ended.state() == TargetState.ENDED && ended.code() == SIGKILL, ended.toString());
            client.unmonitor("java-db@h2");
            FideException e = assertThrows(FideException.class, () -> client.unmonitor("java-db@h2"));
            assertEquals(ErrorCode.NOT_FOUND, e.code());
        }
    }

    @Test
    void whatMakesNoSenseIsRefusedAndAClosedClientSaysSo() throws Exception {
        try (Lab lab = new Lab()) {
            FideClient client = FideClient.open(lab.socket("h1"));
            assertEquals(ErrorCode.INVALID, assertThrows(FideException.class, () -> client.monitor("no@such@thing")).code());
            assertEquals(TargetState.NO_HOST, client.monitor("x@nohost").state());
            assertEquals(ErrorCode.INVALID, assertThrows(FideException.class, () -> client.piggyback(new byte[1])).code());
            assertEquals(ErrorCode.INVALID, assertThrows(FideException.class, () -> client.piggyback(new byte[0])).code());
            assertEquals(0, client.pbsize());
            client.close();
            client.close();
            assertThrows(IllegalStateException.class, () -> client.monitor("*"));
        }
    }

    @Test
    void aWaitEndsInTimeByAnInterruptAndByClose() throws Exception {
        try (Lab lab = new Lab()) {
            FideClient client = FideClient.open(lab.socket("h1"));
            long begun = System.nanoTime();
            assertNull(client.poll(Duration.ofMillis(120)));
            long tookMs = (System.nanoTime() - begun) / 1_000_000;
            assertTrue(tookMs >= 120 && tookMs < 3000, tookMs + " ms");
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, client::take);
            BlockingQueue<Throwable> ended = new LinkedBlockingQueue<>();
            Thread waiter = new Thread(() -> ended.add(assertThrows(Throwable.class, client::take)));
            waiter.start();
            Thread.sleep(100);
            client.close();
            assertTrue(ended.poll(5, TimeUnit.SECONDS) instanceof IllegalStateException);
        }
    }

    @Test
    void aListenerHearsMessagesUntilTheCrashAndNoneAfter() throws Exception {
        try (Lab lab = new Lab();
                FideClient client = FideClient.open(lab.socket("h1"))) {
            Process talker = lab.actor("talk", "java-talker");
            lab.monitorAlive(client, "java-talker@h2");
            BlockingQueue<Event> heard = new LinkedBlockingQueue<>();
            FideListener listener = new FideListener() {
                @Override
                public void onPiggyback(Event event) {
                    heard.add(event);
                }

                @Override
                public void onFailure(Event event) {
                    heard.add(event);
                }
            };
            try (AutoCloseable listening = client.listen(listener)) {
                assertNotNull(listening);
                int last = -1;
                int count = 0;
                for (Event event = heard.poll(10, TimeUnit.SECONDS); ; event = heard.poll(10, TimeUnit.SECONDS)) {
                    assertNotNull(event);
                    assertEquals("java-talker@h2", event.name());
                    if (event.kind() == EventKind.FAILURE) {
                        break;
                    }
                    int number = Integer.parseInt(new String(event.data()).substring("load ".length()));
                    assertTrue(number > last, number + " behind " + last);
                    last = number;
                    if (++count == 20) {
                        talker.destroyForcibly();
                    }
                }
                assertTrue(count >= 20);
                assertNull(heard.poll(300, TimeUnit.MILLISECONDS), "nothing after its failure");
            }
        }
    }

    @Test
    void whoQuitsDoesNotCrashAndWhoHangsIsTold() throws Exception {
        try (Lab lab = new Lab();
                FideClient client = FideClient.open(lab.socket("h1"))) {
            client.monitor("java-leaver@h2");
            client.monitor("java-hangs@h2");
            lab.actor("leave", "java-leaver");
            Event left = Lab.until(client, EventKind.FAILURE);
            assertTrue(left.cause() == Cause.LEFT && !left.cause().isCrash(), left.toString());
            lab.actor("hang", "java-hangs");
            assertEquals("java-hangs@h2", Lab.until(client, EventKind.HUNG).name());
        }
    }

    @Test
    void whatIsInMaintenanceIsTold() throws Exception {
        try (Lab lab = new Lab();
                FideClient client = FideClient.open(lab.socket("h1"))) {
            assertEquals(Duration.ZERO, client.maintenance("java-planned@h2"));
            lab.maintenance("on", "java-planned@h2", "--for", "5m");
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
            while (client.maintenance("java-planned@h2").isZero()) {
                assertTrue(System.nanoTime() < end);
                Thread.sleep(20);
            }
            assertTrue(client.maintenance("java-planned@h2").compareTo(Duration.ofMinutes(5)) <= 0);
            lab.maintenance("off", "java-planned@h2");
            FideException refused = assertThrows(FideException.class, () -> client.maintenance("java-planned"));
            assertEquals(ErrorCode.INVALID, refused.code());
        }
    }

    @Test
    void afterReconnectingWhatWasMonitoredIsMonitored() throws Exception {
        try (Lab lab = new Lab();
                FideClient client = FideClient.open(lab.socket("h1"))) {
            Process victim = lab.victim("java-stays");
            lab.monitorAlive(client, "java-stays@h2");
            Resumed resumed = client.reconnect().get(0);
            assertEquals("java-stays@h2", resumed.target());
            assertNull(resumed.error());
            assertTrue(resumed.now().alive());
            victim.destroyForcibly();
            Event failure = Lab.until(client, EventKind.FAILURE);
            assertNotEquals(Cause.LEFT, failure.cause());
            assertFalse(failure.name().isEmpty());
        }
    }
}
