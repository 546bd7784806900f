"""Data that rides on heartbeats. On host a: ``python piggyback.py join worker``; on b: ``python piggyback.py monitor worker@a``.

What was sent before the crash is all that is delivered: nothing of a process comes after its failure was told.
"""

import asyncio
import os
import sys
import time

import fide
from fide import aio


def join(name: str) -> None:
    with fide.Client() as client:
        print(f"{client.join(name, pbsize=64).pbsize} bytes at a time; kill -9 {os.getpid()} ends it", flush=True)
        for count in range(1_000_000):
            try:
                client.piggyback(f"load {count}".encode())
            except fide.FullError:
                continue  # earlier ones still wait for their heartbeats: the next second has a newer one
            finally:
                time.sleep(0.05)


async def monitor(target: str) -> None:
    async with await aio.Client.open() as client:
        await client.monitor(target, pbsize=64)
        async for event in client:
            if event.kind == fide.EventKind.PIGGYBACK:
                print(f"{event.name}: {event.data.decode()} on heartbeat {event.number}", flush=True)
            elif event.kind == fide.EventKind.FAILURE:
                print(f"{event.name}: {event.cause}, {event.grade}", flush=True)
                return


if __name__ == "__main__":
    if sys.argv[1] == "join":
        join(sys.argv[2])
    else:
        asyncio.run(monitor(sys.argv[2]))
