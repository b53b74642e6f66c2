"""gRPC status: codes, how errors map to them, and the text that goes with them (grpc_api.md §3, §6, §7)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from relight.errors import (
    BadRequestError,
    DownloadArchiveError,
    InternalServerError,
    InvalidKeyError,
    InvalidModelError,
    ModelApiDisabledError,
    ModelDependencyError,
    ModelNotFoundError,
    ModelVersionNotFoundError,
    RelightError,
    ServiceUnavailableError,
    WorkerDiedError,
)


class Code(IntEnum):
    """Status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Status(NamedTuple):
    """How a call ends.

    Attributes:
        code: The code.
        message: What went wrong.
        label: TorchServe's name for the kind of error, on a line of its own; clients match on it.
    """

    code: Code
    message: str = ""
    label: str = ""

    @property
    def details(self) -> str:
        """The text that a client reads."""
        return f"{self.message}\n{self.label}" if self.label else self.message


_NUMBERS = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    409: Code.ABORTED,
    413: Code.RESOURCE_EXHAUSTED,
    416: Code.OUT_OF_RANGE,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}
_MODEL = "org.pytorch.serve.archive.model."
_HTTP = "org.pytorch.serve.http."
_PACKAGES: dict[type[RelightError], str] = {
    ModelNotFoundError: _MODEL,
    ModelVersionNotFoundError: _MODEL,
    InvalidModelError: _MODEL,
    ModelApiDisabledError: _MODEL,
    ModelDependencyError: _MODEL,
    DownloadArchiveError: "org.pytorch.serve.archive.",
}
_WORKER_LABEL = _HTTP + "InternalServerException"
_REFUSED = {BadRequestError: "BadRequestException.()", ServiceUnavailableError: "InternalServerException.()"}
_NOT_FOUND = (ModelNotFoundError, ModelVersionNotFoundError)


def code_of_number(number: int) -> Code:
    """The code for an HTTP-like number, as handlers and workers give them (§3.2)."""
    known = _NUMBERS.get(number)
    if known is not None:
        return known
    if 400 <= number < 500:
        return Code.FAILED_PRECONDITION
    # Other numbers that mean success are no error's: the server's own fault (Q7).
    if 500 <= number < 600 or 200 <= number < 300:
        return Code.INTERNAL
    return Code.UNKNOWN


def label_of(error: RelightError) -> str:
    """TorchServe's class for a kind of error, with its package."""
    return _PACKAGES.get(type(error), _HTTP) + error.wire_type


def inference_status(error: RelightError) -> Status:
    """How an inference call ends with an error (§7)."""
    if isinstance(error, WorkerDiedError):
        code = Code.RESOURCE_EXHAUSTED if error.out_of_memory else Code.INTERNAL
        return Status(code, error.message, _WORKER_LABEL)
    if isinstance(error, InternalServerError):
        return Status(code_of_number(error.number), error.message, _WORKER_LABEL)
    refused = _REFUSED.get(type(error))
    if refused is not None:
        return Status(Code.INTERNAL, error.message, refused)
    if isinstance(error, _NOT_FOUND):
        return Status(Code.INTERNAL, error.message, label_of(error))
    if isinstance(error, InvalidKeyError):
        return Status(Code.PERMISSION_DENIED, error.message)
    return Status(Code[error.grpc_code], error.message, _WORKER_LABEL)


def management_status(error: RelightError) -> Status:
    """How a management call ends with an error (§6.6)."""
    if isinstance(error, (InternalServerError, InvalidKeyError)):
        return inference_status(error)
    return Status(Code[error.grpc_code], error.message, label_of(error))
