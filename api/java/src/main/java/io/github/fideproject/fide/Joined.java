package io.github.fideproject.fide;

/**
 * What {@link FideClient#join} was granted.
 *
 * @param app the process's number
 * @param pbsize the piggyback size, bytes
 */
public record Joined(int app, int pbsize) {}
