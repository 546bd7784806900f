"""Monitors a process of another host and says what becomes of it: ``python monitor.py db@a``."""

import sys

import fide


def main(target: str) -> None:
    with fide.Client() as client:
        print(f"{target}: {client.monitor(target)}")
        for event in client:
            if event.kind == fide.EventKind.FAILURE:
                known = (fide.now_ns() - event.received_ns) / 1000 if event.received_ns else 0
                print(f"{event.name}: {event.cause}, {event.grade}, {event.id}; known {known:.0f} µs after it was received")
            elif event.kind == fide.EventKind.AGENT_GONE:
                sys.exit("the agent is gone: nothing is known of anything now")


if __name__ == "__main__":
    main(sys.argv[1])
