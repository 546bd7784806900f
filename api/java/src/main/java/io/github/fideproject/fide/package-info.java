/**
 * Know within microseconds that a process on another host has crashed.
 *
 * <p>{@link io.github.fideproject.fide.FideClient} is the connection to the agent of this host. The words are those of {@code fide.h}.
 */
package io.github.fideproject.fide;
