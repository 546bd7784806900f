import io.github.fideproject.fide.Event;
import io.github.fideproject.fide.EventKind;
import io.github.fideproject.fide.FideClient;

/** Monitors a process of another host and says what becomes of it: java -cp fide-0.1.0.jar Monitor.java db@a. */
class Monitor {
    public static void main(String[] arguments) throws InterruptedException {
        try (FideClient client = FideClient.open()) {
            System.out.println(arguments[0] + ": " + client.monitor(arguments[0]).state());
            Event event;
            do {
                event = client.take();
                if (event.kind() == EventKind.FAILURE) {
                    System.out.println(event.name() + ": " + event.cause() + ", " + event.grade() + ", " + event.id());
                }
            } while (event.kind() != EventKind.AGENT_GONE);
        }
        System.err.println("the agent is gone: nothing is known of anything now");
        System.exit(1);
    }
}
