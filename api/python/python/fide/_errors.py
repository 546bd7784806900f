"""Exceptions: one class for each reason, all of them ``Error`` with a code and a text."""

from __future__ import annotations

from ._types import ErrorCode


class Error(Exception):
    """A call failed. ``code`` says why for programs; the text says what, why and what to do."""

    code: ErrorCode

    def __init__(self, text: str, code: ErrorCode) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[type[Error], tuple[str, ErrorCode]]:
        return type(self), (str(self), self.code)


class InvalidError(Error, ValueError):
    """The call or the agent's answer makes no sense."""


class NotPermittedError(Error):
    """Not allowed to this user."""


class NotFoundError(Error, LookupError):
    """No such process, host or group."""


class ExistsError(Error):
    """The name is taken."""


class TooLargeError(Error, ValueError):
    """Larger than granted."""


class FullError(Error):
    """No room for more, now."""


class DisconnectedError(Error):
    """No agent, or it went away. Says nothing of anything monitored."""


_CLASSES: dict[int, type[Error]] = {
    ErrorCode.INVALID: InvalidError,
    ErrorCode.PERMISSION: NotPermittedError,
    ErrorCode.NOT_FOUND: NotFoundError,
    ErrorCode.EXISTS: ExistsError,
    ErrorCode.TOO_LARGE: TooLargeError,
    ErrorCode.FULL: FullError,
    ErrorCode.DISCONNECTED: DisconnectedError,
}


def make(code: int, text: str) -> Error:
    """The exception for a code."""
    return _CLASSES.get(code, Error)(text, ErrorCode(code))
