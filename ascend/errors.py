"""The exceptions of the project: every error has a stable ``reason`` for programs and a sentence for people."""

from collections.abc import Iterable
from typing import Self

from ascend.printable import printable
from ascend.reasons import Reason

UNREADABLE = (ValueError, RecursionError)
"""The exceptions of a JSON decoder on bad input: malformed, wrong types, not UTF-8, or nested too deeply."""


class AscendError(Exception):
    """Base of all errors of the project.

    Args:
        message: one sentence for people, without a trailing full stop. It may quote what strangers wrote, and ends in
            terminals, logs, Events and answers: control characters in it are escaped.
        reason: a stable CamelCase word for programs; the class name by default.
        more: further sentences, each in a line of its own.
    """

    def __init__(self, message: str, *, reason: str | None = None, more: Iterable[str] = ()) -> None:
        message = "\n  ".join(map(printable, (message, *more))) if more else printable(message)
        super().__init__(message)
        self.message = message
        self.reason = reason if reason is not None else type(self).__name__

    def __str__(self) -> str:
        return self.message

    def without_frames(self) -> Self:
        """Return the error without the frames of its callers, to keep it.

        Frames of the errors from which it was raised count as well: an object that the garbage collector does not track
        (``gc=False``) and that keeps the error may be in one of their variables, so nothing would ever free them.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class InvalidValue(AscendError):
    """A field of an object has an invalid value; the message names object, field and value."""


class InvalidReport(InvalidValue):
    """A node's device-info ConfigMap can't be trusted: malformed, or its CheckCode does not match."""


class Refusal(AscendError):
    """A valid call whose request is refused.

    Args:
        reason: why, a word; its category and cure are in ``ascend.reasons``.
        message: why, a sentence.
    """

    reason: Reason

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message, reason=reason)


class ApiError(AscendError):
    """The API server answered with an error.

    Args:
        message: the server's message.
        status: the HTTP status code.
        reason: the server's machine-readable reason (``NotFound``, ``Conflict``, …).
        retry_after_s: how long to wait before the next attempt, if the server has set it.
    """

    def __init__(
        self, message: str, *, status: int, reason: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, reason=reason)
        self.status = status
        self.retry_after_s = retry_after_s


class NotFound(ApiError):
    """The object does not exist."""


class Conflict(ApiError):
    """A precondition (uid, resourceVersion) failed, or the object exists already."""


class Expired(ApiError):
    """The requested resourceVersion is too old: list again."""


class Unauthorized(ApiError):
    """The server does not accept the client's credentials, or not now."""


class Throttled(ApiError):
    """The server is overloaded: retry later."""


class Unreachable(AscendError):
    """No usable answer from a server: connection refused, timeout, broken stream, or invalid content."""


class TimedOut(Unreachable):
    """A server has not answered in time; it may answer when it is asked again."""


class TooLarge(Unreachable):
    """An answer is larger than the caller accepts; asked for less, the server may answer."""


class LeadershipLost(AscendError):
    """The lease was taken by another process, or could not be renewed in time."""


class DriverError(AscendError):
    """The NPU driver could not be read."""


class LockLost(AscendError):
    """Another instance has taken over; this one must end."""
