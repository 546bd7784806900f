"""Enumerations, with the words and numbers of ``fide.h``."""

import enum
from typing import TypeVar

_E = TypeVar("_E", bound="_Enum")


class _Enum(enum.IntEnum):
    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class EventKind(_Enum):
    """What an event is. Later versions may have more: treat unknown ones as ``OTHER``."""

    FAILURE = 1
    """A monitored process is ending or gone, once for each instance of it. ``cause`` says whether it is a crash."""
    CONFIRMED = 2
    """The end of a process that failed as *doomed* was seen; ``cause`` and ``code`` are final."""
    MONITORED = 3
    """A process is monitored from now on: it came, or came back as a new instance."""
    HOST = 4
    """About a host, a path, an agent or this observer: never about a process."""
    PIGGYBACK = 5
    """A monitored process sent ``data``; ``number`` is its heartbeat's."""
    TIMEOUT_CHANGED = 6
    """``number`` is the new timeout towards ``node`` and ``app``, nanoseconds."""
    PBSIZE_CHANGED = 7
    """``number`` is what this process may piggyback from now on, bytes."""
    MONITOR_REQ = 8
    """Somebody began to monitor this process and would like ``number`` bytes of piggyback."""
    LOST = 9
    """``number`` events were lost: monitor again what matters."""
    AGENT_GONE = 10
    """The agent hung up. Nothing of what it monitored has failed. Then ``Client.reconnect``."""
    OTHER = 11
    """Something this version does not know."""
    HUNG = 12
    """A monitored process is there and makes no progress. Not a failure."""
    PROGRESSING = 13
    """A process that was hung moves again."""
    FENCED = 14
    """This host is fenced: others may have taken over. Stop acting."""
    RECOVERED = 15
    """The fence was opened again, in a new incarnation: begin anew."""


class Cause(_Enum):
    """What happened."""

    EXITED = 1
    KILLED = 2
    DOOMED = 3
    LEFT = 4
    AGENT_LOST = 5
    SILENT_HOST = 6
    PATH_DOWN = 7
    CONTRACT_BROKEN = 8
    ISOLATED = 9
    HUNG = 10
    OUT_OF_MEMORY = 11
    UNREACHABLE = 12
    REPLACED = 13
    PATH_UP = 16
    RETURNED = 17
    CONTRACT_KEPT = 18
    REJOINED = 19
    OBSERVER_PAUSED = 20
    NAME_CLASH = 21
    FOREIGN_TRAFFIC = 22
    MONITORED = 23
    INTERFACE = 24
    LOCAL = 25
    FENCED = 26
    RECOVERED = 27
    PROGRESSING = 28

    @property
    def is_crash(self) -> bool:
        """Whether a process that ended so has crashed: it did not say that it leaves."""
        return self in _CRASHES


_CRASHES = frozenset(
    (Cause.EXITED, Cause.KILLED, Cause.DOOMED, Cause.OUT_OF_MEMORY, Cause.REPLACED, Cause.SILENT_HOST)
)


class Grade(_Enum):
    """How sure."""

    CERTAIN = 1
    """A kernel saw it, or it announced itself."""
    INFERRED = 2
    """Silence, judged against a stated contract."""


class TargetState(_Enum):
    """What is known of a target that is monitored from now on. What is not there is waited for."""

    ALIVE = 1
    HUNG = 2
    """It runs and makes no progress."""
    UNOBSERVED = 3
    """Its host's agent is lost, or left: nobody watches it."""
    ENDED = 4
    """The last process of that name has ended: see ``cause`` and ``code``."""
    NO_PROCESS = 5
    """No process of that name was known on that host."""
    NO_HOST = 6
    """No host of that name was ever heard."""


class ErrorCode(_Enum):
    """Why a call failed: the positive numbers of ``enum fide_error``."""

    INVALID = 1
    PERMISSION = 2
    NOT_FOUND = 3
    EXISTS = 4
    TOO_LARGE = 5
    FULL = 6
    VERSION = 7
    UNSUPPORTED = 8
    DISCONNECTED = 9
    SYSTEM = 10
    AMBIGUOUS = 11
    FENCED = 12
    NOT_SENT = 13


class Stage(_Enum):
    """How far a group is on this host."""

    PREPARING = 1
    PREPARED = 2
    JOINING = 3
    RUNNING = 4
    LEFT = 5
    FAILED = 6
    GONE = 7


class Fate(_Enum):
    """What became of a proposal, as far as this host has applied entries."""

    DECIDED = 1
    OPEN = 2
    NEVER = 3
    FORGOTTEN = 4


def member(of: type[_E], number: int) -> "_E | int":
    """The member of that number, or the number where this version has none."""
    try:
        return of(number)
    except ValueError:
        return number
