package io.github.fideproject.fide;

/**
 * What became of one target in {@link FideClient#reconnect}. What ended of it meanwhile is reported as a failure, once.
 *
 * @param target the target; null for this process's own join
 * @param now what the agent says now; null after an error, and for the join
 * @param error why it is given up; null when it is not
 */
public record Resumed(String target, Monitored now, FideException error) {}
