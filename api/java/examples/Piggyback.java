import io.github.fideproject.fide.ErrorCode;
import io.github.fideproject.fide.Event;
import io.github.fideproject.fide.EventKind;
import io.github.fideproject.fide.FideClient;
import io.github.fideproject.fide.FideException;
import java.time.Duration;

/**
 * Data that rides on heartbeats. On host a: java -cp fide-0.1.0.jar Piggyback.java join worker; on b: … monitor worker@a.
 *
 * <p>What was sent before the crash is all that is delivered: nothing of a process comes after its failure was told.
 */
class Piggyback {
    public static void main(String[] arguments) throws InterruptedException {
        try (FideClient client = FideClient.open()) {
            if (arguments[0].equals("join")) {
                join(client, arguments[1]);
            } else {
                monitor(client, arguments[1]);
            }
        }
    }

    private static void join(FideClient client, String name) throws InterruptedException {
        int granted = client.join(name, 64).pbsize();
        System.out.println(granted + " bytes at a time; kill -9 " + ProcessHandle.current().pid() + " ends it");
        for (int count = 0; ; count++) {
            try {
                client.piggyback(("load " + count).getBytes());
            } catch (FideException e) {
                if (e.code() != ErrorCode.FULL) { // full: earlier ones still wait for their heartbeats, and the next one is newer
                    throw e;
                }
            }
            Thread.sleep(50);
        }
    }

    private static void monitor(FideClient client, String target) throws InterruptedException {
        client.monitor(target, 64, Duration.ZERO);
        while (true) {
            Event event = client.take();
            if (event.kind() == EventKind.PIGGYBACK) {
                System.out.println(event.name() + ": " + new String(event.data()) + " on heartbeat " + event.number());
            } else if (event.kind() == EventKind.FAILURE) {
                System.out.println(event.name() + ": " + event.cause() + ", " + event.grade());
                return;
            }
        }
    }
}
