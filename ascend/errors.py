"""The exception tree of the project: every error has a stable ``reason`` for programs and a sentence for people.

AscendError
├── InvalidValue        a field of an object does not mean what it must
│   └── InvalidReport   … in a node's device-info ConfigMap
├── Refusal             a request was understood and is refused; says why
├── ApiError            the API server answered with an error
│   ├── NotFound
│   ├── Conflict        a precondition (uid, resourceVersion) or an existing object stood in the way
│   ├── Expired         the requested resourceVersion is too old: list again
│   ├── Unauthorized
│   └── Throttled       asked to come back later
├── Unreachable         no usable answer: connection, timeout, broken stream
├── LeadershipLost      another process leads now, or may soon
├── DriverError         the NPU driver could not be read
└── LockLost            another instance works in our place
"""

from ascend.reasons import Reason

UNREADABLE = (ValueError, RecursionError)
"""What a decoder of JSON raises on bad input: malformed, of the wrong types, not UTF-8, or nested absurdly deep."""


class AscendError(Exception):
    """Base of all errors of the project.

    Args:
        message: one sentence for people, without a trailing full stop.
        reason: a stable CamelCase word for programs; the class name where none is given.
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason if reason is not None else type(self).__name__

    def __str__(self) -> str:
        return self.message


class InvalidValue(AscendError):
    """A field of an object does not mean what it must; the message names object, field and value."""


class InvalidReport(InvalidValue):
    """A node's device-info ConfigMap can't be trusted: malformed, or its CheckCode does not match."""


class Refusal(AscendError):
    """A request was understood and is refused.

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
        message: the server's own sentence.
        status: the HTTP status code.
        reason: the server's machine-readable reason (``NotFound``, ``Conflict``, …).
        retry_after_s: how long the server asked to wait, if it did.
    """

    def __init__(
        self, message: str, *, status: int, reason: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, reason=reason)
        self.status = status
        self.retry_after_s = retry_after_s


class NotFound(ApiError):
    """The object is not there."""


class Conflict(ApiError):
    """A precondition (uid, resourceVersion) or an existing object stood in the way."""


class Expired(ApiError):
    """The requested resourceVersion is too old: list again."""


class Unauthorized(ApiError):
    """The server does not accept our identity (now)."""


class Throttled(ApiError):
    """The server asked to come back later."""


class Unreachable(AscendError):
    """No usable answer from a server: connection refused, timed out, or the stream broke."""


class LeadershipLost(AscendError):
    """The lease was taken by another process, or could not be renewed in time."""


class DriverError(AscendError):
    """The NPU driver could not be read."""


class LockLost(AscendError):
    """Another instance works in our place; this one must end."""
