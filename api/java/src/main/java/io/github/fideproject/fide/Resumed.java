package io.github.fideproject.fide;

/**
 * What became of one target in {@link FideClient#reconnect}. Look at {@link Monitored#alive}: for a process that ended meanwhile no failure is reported.
 *
 * @param target the target; null for this process's own join
 * @param now what the agent says now; null after an error, and for the join
 * @param error why it is given up; null when it is not
 */
public record Resumed(String target, Monitored now, FideException error) {}
