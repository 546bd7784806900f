package io.github.fideproject.fide;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** Real agents in a lab, made by scripts/bindings: FIDE_LAB is its name, FIDE the program. */
final class Lab implements AutoCloseable {
    private final String name = System.getenv("FIDE_LAB");
    private final String fide = System.getenv("FIDE");
    private final List<Process> started = new ArrayList<>();

    Lab() {
        assumeTrue(name != null, "SKIPPED: no lab (FIDE_LAB): scripts/bindings makes one");
    }

    Path socket(String host) {
        return Path.of("/run/fide/lab", name, host, "fided.sock");
    }

    private Process start(String host, String... command) throws IOException {
        List<String> line = new ArrayList<>(List.of(fide, "lab", "--name", name, "exec", host, "--"));
        line.addAll(List.of(command));
        Process process = new ProcessBuilder(line).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        started.add(process);
        return process;
    }

    /** A process of h2 that its agent watches under a name. */
    Process victim(String watch) throws IOException, InterruptedException {
        Process process = start("h2", "sleep", "600");
        Path comm = Path.of("/proc", Long.toString(process.pid()), "comm");
        while (!Files.readString(comm).strip().equals("sleep")) {
            Thread.sleep(1);
        }
        assertEquals(0, start("h2", fide, "monitor", watch, "--pid", Long.toString(process.pid())).waitFor());
        return process;
    }

    /** {@code fide maintenance} on h2. */
    void maintenance(String... words) throws IOException, InterruptedException {
        List<String> line = new ArrayList<>(List.of(fide, "maintenance"));
        line.addAll(List.of(words));
        assertEquals(0, start("h2", line.toArray(String[]::new)).waitFor());
    }

    /** An {@link Actor} on h2, once it has joined. */
    Process actor(String role, String watch) throws IOException {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        Process process = start("h2", java, "-cp", System.getProperty("java.class.path"), Actor.class.getName(), role, watch);
        assertEquals("joined", process.inputReader().readLine());
        return process;
    }

    Monitored monitorAlive(FideClient client, String target) throws InterruptedException {
        for (int i = 0; i < 500; i++) {
            Monitored now = client.monitor(target, 64, Duration.ZERO);
            if (now.alive()) {
                return now;
            }
            Thread.sleep(10);
        }
        throw new AssertionError(target + " is not alive");
    }

    static Event until(FideClient client, EventKind kind) throws InterruptedException {
        while (true) {
            Event event = client.poll(Duration.ofSeconds(10));
            assertTrue(event != null, "no " + kind);
            if (event.kind() == kind) {
                return event;
            }
        }
    }

    @Override
    public void close() {
        started.forEach(Process::destroyForcibly);
    }
}
