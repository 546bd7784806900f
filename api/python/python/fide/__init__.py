"""Know within microseconds that a process on another host has crashed.

>>> import fide
>>> with fide.Client() as client:                          # doctest: +SKIP
...     client.monitor("db@a")
...     for event in client:
...         if event.kind == fide.EventKind.FAILURE:
...             print(event.name, event.cause, event.grade)

``fide.aio`` has the same for asyncio. The words are those of ``fide.h``; times in seconds are floats, stamps (``*_ns``) are
nanoseconds of CLOCK_MONOTONIC.
"""

from . import _fide
from ._errors import (
    DisconnectedError,
    Error,
    ExistsError,
    FullError,
    InvalidError,
    NotFoundError,
    NotPermittedError,
    TooLargeError,
)
from ._fide import (
    PIGGYBACK_MAX,
    VALUE_MAX,
    Client,
    Entry,
    Event,
    Fated,
    Group,
    Joined,
    Members,
    Monitored,
    Overdue,
    Progress,
    Refused,
    Resumed,
    Snapshot,
    Standing,
    now_ns,
)
from ._types import Cause, ErrorCode, EventKind, Fate, Grade, Stage, TargetState

__version__ = _fide.__version__

__all__ = [
    "PIGGYBACK_MAX",
    "VALUE_MAX",
    "Cause",
    "Client",
    "DisconnectedError",
    "Entry",
    "Error",
    "ErrorCode",
    "Event",
    "EventKind",
    "ExistsError",
    "Fate",
    "Fated",
    "FullError",
    "Grade",
    "Group",
    "InvalidError",
    "Joined",
    "Members",
    "Monitored",
    "NotFoundError",
    "NotPermittedError",
    "Overdue",
    "Progress",
    "Refused",
    "Resumed",
    "Snapshot",
    "Stage",
    "Standing",
    "TargetState",
    "TooLargeError",
    "now_ns",
]
