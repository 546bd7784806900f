"""The client for asyncio: the same words, awaited.

>>> from fide import aio
>>> async def watch() -> None:
...     async with await aio.Client.open() as client:
...         await client.monitor("db@a")
...         async for event in client:
...             print(event)

Calls that wait for the agent run in the loop's executor; events come by the loop itself, without a thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from types import TracebackType

from . import _fide
from ._errors import DisconnectedError
from ._fide import Event, Joined, Monitored, Progress, Resumed


class Client:
    """A connection to the agent of this host, for one event loop. Made by ``await Client.open()``."""

    def __init__(self, blocking: _fide.Client) -> None:
        self._blocking = blocking
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._watched = False

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        socket_only: bool = False,
        answer_timeout: float | None = None,
    ) -> Client:
        """Connects, as ``fide.Client`` does."""
        return cls(await asyncio.to_thread(_fide.Client, path, socket_only=socket_only, answer_timeout=answer_timeout))

    @property
    def node(self) -> str:
        """The name of this host as its agent has it."""
        return self._blocking.node

    @property
    def pbsize(self) -> int:
        """The piggyback size granted now, bytes."""
        return self._blocking.pbsize

    async def monitor(self, target: str, *, pbsize: int = 0, timeout: float = 0.0) -> Monitored:
        """See ``fide.Client.monitor``."""
        return await asyncio.to_thread(self._blocking.monitor, target, pbsize=pbsize, timeout=timeout)

    async def unmonitor(self, target: str) -> None:
        """See ``fide.Client.unmonitor``."""
        await asyncio.to_thread(self._blocking.unmonitor, target)

    async def join(self, name: str, *, pbsize: int = 0) -> Joined:
        """See ``fide.Client.join``."""
        return await asyncio.to_thread(self._blocking.join, name, pbsize=pbsize)

    async def quit(self) -> None:
        """See ``fide.Client.quit``."""
        await asyncio.to_thread(self._blocking.quit)

    def piggyback(self, message: bytes) -> None:
        """See ``fide.Client.piggyback``. Never waits."""
        self._blocking.piggyback(message)

    async def progress(self, limit: float) -> Progress:
        """See ``fide.Client.progress``."""
        return await asyncio.to_thread(self._blocking.progress, limit)

    async def report(self, name: str, hung: bool, reason: str = "") -> None:
        """See ``fide.Client.report``."""
        await asyncio.to_thread(self._blocking.report, name, hung, reason)

    async def maintenance(self, target: str) -> float | None:
        """See ``fide.Client.maintenance``."""
        return await asyncio.to_thread(self._blocking.maintenance, target)

    async def reconnect(self) -> Resumed:
        """See ``fide.Client.reconnect``."""
        return await asyncio.to_thread(self._blocking.reconnect)

    async def next_event(self) -> Event:
        """The next event. Bound it with ``asyncio.timeout``; a cancelled wait loses nothing."""
        while True:
            # In this order: what comes after the look makes the descriptor readable again.
            self._ready.clear()
            event = self._blocking.next_event(0)
            if event is not None:
                return event
            if not self._watched:
                self._loop.add_reader(self._blocking.fileno(), self._wake)
                self._watched = True
            await self._ready.wait()

    def _wake(self) -> None:
        # The descriptor stays readable until events are taken: looked at again only when somebody waits.
        self._unwatch()
        self._ready.set()

    def _unwatch(self) -> None:
        if self._watched:
            self._loop.remove_reader(self._blocking.fileno())
            self._watched = False

    def close(self) -> None:
        """Ends the connection."""
        if not self._blocking.closed:
            self._unwatch()
            self._blocking.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while True:
                yield await self.next_event()
        except DisconnectedError:
            return
