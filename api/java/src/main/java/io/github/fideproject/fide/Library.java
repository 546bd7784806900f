package io.github.fideproject.fide;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.List;

/** The native part. Strings are bytes of UTF-8 that end with a zero. */
final class Library {
    static {
        load();
    }

    private Library() {}

    private static void load() {
        String machine = System.getProperty("os.arch").equals("amd64") ? "x86_64" : System.getProperty("os.arch");
        String resource = "/native/linux-" + machine + "/libfide_jni.so";
        try (InputStream in = Library.class.getResourceAsStream(resource)) {
            if (in == null) {
                System.loadLibrary("fide_jni"); // as java.library.path says
                return;
            }
            Path file = Files.createTempFile("libfide_jni", ".so");
            try {
                Files.copy(in, file, StandardCopyOption.REPLACE_EXISTING);
                System.load(file.toString());
            } finally {
                Files.deleteIfExists(file); // it stays mapped
            }
        } catch (IOException e) {
            throw new UnsatisfiedLinkError("the native part of fide cannot be copied from " + resource + ": " + e);
        }
    }

    /** As the library wants it. */
    static byte[] bytes(String text) {
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        return Arrays.copyOf(utf8, utf8.length + 1);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Called by a native method that fails. */
    static void fail(int code, byte[] text) {
        throw new FideException(ErrorCode.of(code), text(text));
    }

    /** Called by {@link #reconnect} for each target. */
    static void resumed(List<Resumed> list, byte[] target, int error, byte[] text, long[] now) {
        list.add(new Resumed(
                target == null ? null : text(target), now == null ? null : Monitored.of(now),
                error == 0 ? null : new FideException(ErrorCode.of(error), text(text))));
    }

    static native long open(byte[] path, boolean socketOnly, long answerTimeoutNs);

    static native void close(long f);

    static native byte[] node(long f);

    static native long[] monitor(long f, byte[] target, int pbsize, long timeoutNs);

    static native void unmonitor(long f, byte[] target);

    static native long join(long f, byte[] name, int pbsize);

    static native void quit(long f);

    static native void piggyback(long f, byte[] message);

    static native int pbsize(long f);

    static native void report(long f, byte[] name, boolean hung, byte[] reason);

    static native long maintenance(long f, byte[] target);

    static native byte[] next(long f, int timeoutMs);

    static native void reconnect(long f, List<Resumed> list);

    static native long progressOpen(long f, long limitNs);

    static native void progressLimit(long f, long p, long limitNs);

    static native void progressClose(long p);

    static native void progressTick(long p);

    static native void progressBegin(long p);

    static native void progressEnd(long p);

    static native byte[] idText(long id);

    static native long nowNs();

    static native byte[] causeName(int cause);
}
