import os
from collections.abc import Iterator
from types import TracebackType
from typing_extensions import Self

from ._errors import Error
from ._types import Cause, EventKind, Fate, Grade, Stage, TargetState

__version__: str
PIGGYBACK_MAX: int
VALUE_MAX: int

def now_ns() -> int:
    """This host's CLOCK_MONOTONIC in nanoseconds, as ``received_ns``."""

def causes() -> list[tuple[int, str]]: ...

class Event:
    """Something that this process is told. What its kind has no use for is 0, ``None`` or empty."""

    @property
    def kind(self) -> EventKind: ...
    @property
    def cause(self) -> Cause | None: ...
    @property
    def grade(self) -> Grade | None: ...
    @property
    def name(self) -> str | None:
        """``name@host`` or ``@host`` where it is known."""
    @property
    def node(self) -> int:
        """The node's wire id."""
    @property
    def app(self) -> int:
        """The process's number there, 0 for the node itself."""
    @property
    def incarnation(self) -> int: ...
    @property
    def code(self) -> int:
        """Exit status, signal or path, as the cause says."""
    @property
    def path(self) -> int:
        """The path the first copy came by."""
    @property
    def confirms(self) -> bool:
        """It confirms an earlier *doomed*."""
    @property
    def local(self) -> bool:
        """It happened on this host."""
    @property
    def fenced(self) -> bool:
        """Its host is silent, and is fenced as a whole: nothing of it is heard any more."""
    @property
    def id(self) -> str | None:
        """The verdict's id, for ``fide explain``."""
    @property
    def event_ns(self) -> int:
        """When it happened: CLOCK_MONOTONIC of the host where it happened."""
    @property
    def sent_ns(self) -> int: ...
    @property
    def received_ns(self) -> int:
        """When this host's kernel received it: this host's CLOCK_MONOTONIC, as ``now_ns()``."""
    @property
    def number(self) -> int:
        """As the kind says."""
    @property
    def data(self) -> bytes:
        """A piggybacked message."""

class Monitored:
    """What ``Client.monitor`` was granted."""

    @property
    def alive(self) -> bool:
        """It is known and alive now; otherwise no failure comes until it has come and gone."""
    @property
    def state(self) -> TargetState | None: ...
    @property
    def cause(self) -> Cause | None:
        """How the last process of that name ended, where ``state`` is ``ENDED``."""
    @property
    def code(self) -> int | None: ...
    @property
    def node(self) -> int: ...
    @property
    def app(self) -> int: ...
    @property
    def pbsize(self) -> int: ...
    @property
    def timeout(self) -> float:
        """For the silence of its host, seconds."""

class Joined:
    """What ``Client.join`` was granted."""

    @property
    def app(self) -> int: ...
    @property
    def pbsize(self) -> int: ...

class Resumed:
    """What ``Client.reconnect`` restored."""

    @property
    def joined(self) -> Joined | Error | None: ...
    @property
    def targets(self) -> list[tuple[str, Monitored | Error]]: ...

class Progress:
    """A progress counter: ``with counter:`` around each operation, or ``tick()``."""

    def tick(self) -> None:
        """It moved. Never blocks."""
    def begin(self) -> None:
        """An operation begins: until its ``end()`` the counter must move."""
    def end(self) -> None: ...
    def set_limit(self, limit: float) -> None: ...
    def close(self) -> None:
        """Nothing is expected of it any more."""
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /) -> None: ...

class Client:
    """A connection to the agent of this host. Any method from any thread; waiting lets other threads run.

    ``path``: the agent's socket, by default ``$FIDE_SOCKET``, else ``/run/fide/fided.sock``.
    """

    def __new__(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        socket_only: bool = False,
        answer_timeout: float | None = None,
    ) -> Self: ...
    @property
    def node(self) -> str:
        """The name of this host as its agent has it."""
    @property
    def cluster(self) -> str: ...
    @property
    def pbsize(self) -> int:
        """The piggyback size granted now, bytes; 0 before ``join``."""
    @property
    def closed(self) -> bool: ...
    def monitor(self, target: str, *, pbsize: int = 0, timeout: float = 0.0) -> Monitored:
        """From now on, events of ``name@host``, of ``@host`` and all its processes, or of ``*``."""
    def unmonitor(self, target: str) -> None:
        """Ends ``monitor`` of the same target. Events that are already there still come."""
    def join(self, name: str, *, pbsize: int = 0) -> Joined:
        """This process wants to be monitored under a name; from now on its end without ``quit`` is a crash."""
    def quit(self) -> None:
        """This process leaves politely: what follows is not a crash."""
    def piggyback(self, message: bytes) -> None:
        """Sends to everybody who monitors this process, on the next free heartbeat. Never blocks; no system call.

        ``TooLargeError`` above the size granted, ``FullError`` when earlier messages still wait.
        """
    def progress(self, limit: float) -> Progress:
        """A counter that must move within ``limit`` seconds while it is busy."""
    def report(self, name: str, hung: bool, reason: str = "") -> None:
        """Tells all hosts what this application's own detector found of a process of this host."""
    def maintenance(self, target: str) -> float | None:
        """How many seconds the maintenance of ``name@host`` or ``@host`` still lasts; ``None`` without one. What ends then was planned."""
    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event; ``None`` when none came within ``timeout`` seconds. ``DisconnectedError`` after ``AGENT_GONE``."""
    def fileno(self) -> int:
        """Readable when there may be an event: for ``select`` and event loops. The same until ``close``."""
    def reconnect(self) -> Resumed:
        """Connects anew, joins and monitors again what was before. Look at every answer's ``alive``."""
    def close(self) -> None:
        """Ends the connection. A process that has joined is monitored as before."""
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /) -> None: ...
    def __iter__(self) -> Iterator[Event]: ...
    def __next__(self) -> Event: ...

class Entry:
    """One entry of a group's log."""

    @property
    def index(self) -> int:
        """Its place, from 1, without a gap."""
    @property
    def member(self) -> int: ...
    @property
    def client(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def value(self) -> bytes: ...
    @property
    def own(self) -> bool:
        """Whether this client proposed it."""

class Snapshot:
    """The state to begin from, before the next entry."""

    @property
    def index(self) -> int: ...
    @property
    def state(self) -> bytes: ...

class Standing:
    """How the group stands on this host."""

    @property
    def stage(self) -> Stage: ...
    @property
    def me(self) -> int:
        """This host's member; 0: none."""
    @property
    def leader(self) -> int:
        """The leading member; 0: none is known."""
    @property
    def leader_node(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def index(self) -> int: ...

class Members:
    """The members that are not known to have crashed."""

    @property
    def members(self) -> list[int]: ...

class Refused:
    """A proposal that was not taken, and never will be decided."""

    @property
    def number(self) -> int: ...
    @property
    def too_late(self) -> bool:
        """Its time was over before the agent took it; if not: it can never be taken."""
    @property
    def why(self) -> str: ...

class Overdue:
    """A proposal was not decided in its time. The agent has it, so it may be decided later: then its entry comes."""

    @property
    def number(self) -> int: ...

class Fated:
    """The answer to Group.ask_fate, after all entries that it rests on."""

    @property
    def number(self) -> int: ...
    @property
    def fate(self) -> Fate: ...

class Group:
    """A log that several hosts agree on, open on this host. Calls of several threads take turns."""

    def __new__(
        cls,
        name: str,
        *,
        path: str | os.PathLike[str] | None = None,
        client: int = 0,
        behind: int = 0,
        last_number: int = 0,
    ) -> Self: ...
    @property
    def client(self) -> int: ...
    @property
    def index(self) -> int:
        """The last entry that was read."""
    @property
    def pending(self) -> int:
        """Proposals that were not seen as entries yet."""
    def propose(self, value: bytes, *, within: float | None = None) -> int:
        """Proposes a value, and gives its number. Decided once its entry comes, on every host, in one order. What is not decided within so many seconds
        is told as Refused (it never will be) or Overdue."""
    def ask_fate(self, number: int) -> None:
        """Asks what became of a proposal of this client, also of one from a former life. Fated is the answer."""
    def keep_snapshot(self, index: int, state: bytes) -> None:
        """The application's state behind this entry; what is before need not be kept."""
    def next_event(self, timeout: float | None = None) -> Entry | Snapshot | Standing | Members | Refused | Overdue | Fated | None: ...
    def fileno(self) -> int: ...
    def reconnect(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /) -> None: ...
