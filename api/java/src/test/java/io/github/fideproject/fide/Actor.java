package io.github.fideproject.fide;

import java.time.Duration;

/** A process of a host, in a role. */
final class Actor {
    private Actor() {}

    public static void main(String[] arguments) throws InterruptedException {
        try (FideClient client = FideClient.open()) {
            client.join(arguments[1], 64);
            System.out.println("joined");
            switch (arguments[0]) {
                case "talk" -> talk(client);
                case "leave" -> {
                    Thread.sleep(500);
                    client.quit();
                }
                default -> {
                    try (Progress progress = client.progress(Duration.ofMillis(50))) {
                        for (int i = 0; i < 20; i++) {
                            progress.tick();
                            Thread.sleep(10);
                        }
                        progress.begin();
                        Thread.sleep(600_000);
                    }
                }
            }
        }
    }

    private static void talk(FideClient client) throws InterruptedException {
        for (int count = 0; ; count++) {
            try {
                client.piggyback(("load " + count).getBytes());
            } catch (FideException e) {
                if (e.code() != ErrorCode.FULL) {
                    throw e;
                }
            }
            Thread.sleep(5);
        }
    }
}
