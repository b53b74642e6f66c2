# ruff: noqa: N818 - named for what happened, as in httpx; relight.errors has the server's own, which end in Error
"""What can go wrong with a call, the same over HTTP and gRPC.

ClientError
├── Unavailable             nobody can take the call now, or nobody is there: try again later
├── DeadlineExceeded        no answer in time
├── Cancelled               the call was cancelled before it had an answer
├── Unauthorized            the token is missing, wrong or expired: get the current one
├── Forbidden               the server does not allow this to anyone: the model API is off, or a default version
├── Unsupported             this protocol or this server cannot do it
├── InvalidRequest          the request, or the archive that it names, is wrong: correct it
│   ├── TooLarge            a request or an answer is over a limit
│   └── Conflict            the version is already registered
├── NotFound                nothing has this name
│   └── ModelNotFound       no such model, or no such archive
│       └── ModelVersionNotFound
└── ServerError             the server failed
    └── PredictionFailed    the handler failed, or answered with an error
        └── WorkerDied      the worker process ended while it ran the call; the next call may succeed
"""

from __future__ import annotations

__all__ = [
    "Cancelled",
    "ClientError",
    "Conflict",
    "DeadlineExceeded",
    "Forbidden",
    "InvalidRequest",
    "ModelNotFound",
    "ModelVersionNotFound",
    "NotFound",
    "PredictionFailed",
    "ServerError",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "WorkerDied",
]


class ClientError(Exception):
    """Base of every error of a call.

    Attributes:
        message: The server's text, or the client's own.
        status: The HTTP status; None over gRPC and without an answer.
        code: The name of the gRPC status, such as `NOT_FOUND`; None over HTTP and without an answer.
        type: The server's name for the error, such as `ModelNotFoundException`, over either protocol; None without one.
        body: The body of an HTTP answer, which a handler may have filled.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        type: str | None = None,  # noqa: A002 - what the server calls it
        body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.type = type
        self.body = body


class Unavailable(ClientError):
    """Nobody can take the call now: no worker, a full queue, or no server at the address."""


class DeadlineExceeded(ClientError):
    """No answer in time: the call's own timeout, or a limit that the model has."""


class Cancelled(ClientError):
    """The call was cancelled before it had an answer."""


class Unauthorized(ClientError):
    """The token is missing, wrong or expired."""


class Forbidden(ClientError):
    """The server does not allow this: the model API is off, or the default version would be removed."""


class Unsupported(ClientError):
    """This protocol or this server cannot do it."""


class InvalidRequest(ClientError):
    """The request is wrong, or the archive that it names."""


class TooLarge(InvalidRequest):
    """The request or the answer is over a limit of the server."""


class Conflict(InvalidRequest):
    """The version is already registered."""


class NotFound(ClientError):
    """Nothing has this name."""


class ModelNotFound(NotFound):
    """No such model is registered, or no such archive exists."""


class ModelVersionNotFound(ModelNotFound):
    """The model exists, the version does not."""


class ServerError(ClientError):
    """The server failed."""


class PredictionFailed(ServerError):
    """The handler failed, or answered with an error status of its own."""


class WorkerDied(PredictionFailed):
    """The worker process ended while it ran the call."""
