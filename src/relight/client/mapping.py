"""Which error an answer means.

The statuses, types and texts are TorchServe's (rest_api.md §1.7, grpc_api.md §3, §6, §7).
"""

from __future__ import annotations

import json
from typing import Final

from relight.client.errors import (
    Cancelled,
    ClientError,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    ModelNotFound,
    ModelVersionNotFound,
    NotFound,
    PredictionFailed,
    ServerError,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
    WorkerDied,
)

__all__ = ["from_grpc", "from_http"]

_TYPES: Final[dict[str, type[ClientError]]] = {
    "BadRequestException": InvalidRequest,
    "ConflictStatusException": Conflict,
    "DownloadArchiveException": InvalidRequest,
    "InvalidKeyException": Unauthorized,
    "InvalidModelException": InvalidRequest,
    "InvalidModelVersionException": Forbidden,
    "MethodNotAllowedException": Forbidden,
    "ModelNotFoundException": ModelNotFound,
    "ModelVersionNotFoundException": ModelVersionNotFound,
    "RequestTimeoutException": DeadlineExceeded,
    "ResourceNotFoundException": NotFound,
    "ServiceUnavailableException": Unavailable,
    "WorkflowNotFoundException": NotFound,
}
_STATUSES: Final[dict[int, type[ClientError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: Forbidden,
    408: DeadlineExceeded,
    409: Conflict,
    413: TooLarge,
    414: TooLarge,
    429: Unavailable,
    431: TooLarge,
    501: Unsupported,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}
_CODES: Final[dict[str, type[ClientError]]] = {
    "ABORTED": Conflict,
    "ALREADY_EXISTS": Conflict,
    "CANCELLED": Cancelled,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "FAILED_PRECONDITION": InvalidRequest,
    "INVALID_ARGUMENT": InvalidRequest,
    "NOT_FOUND": NotFound,
    "OUT_OF_RANGE": InvalidRequest,
    "PERMISSION_DENIED": Forbidden,
    "RESOURCE_EXHAUSTED": TooLarge,
    "UNAUTHENTICATED": Unauthorized,
    "UNAVAILABLE": Unavailable,
    "UNIMPLEMENTED": Unsupported,
}
_OF_PROXIES: Final = frozenset({401, 413, 429, 502, 504})
_INTERNAL = "InternalServerException"
_NO_WORKER = "has no worker to serve"
_REFUSED = "Token Authorization failed."
_SHOWN_LIMIT = 500


def from_http(status: int, body: bytes, failure: type[ServerError]) -> ClientError:
    """Return the error that an HTTP answer means.

    Args:
        status: Its status, 400 or more.
        body: Its body: the error document, or whatever a handler or a proxy wrote.
        failure: The error for what the server does not blame on the request.
    """
    document = _document(body)
    kind = document.get("type")
    if not isinstance(kind, str):
        # What the server refuses by itself has a document or no body at all; so a body is the word of a handler, or of
        # a proxy where the status is one that proxies use.
        from_handler = failure is PredictionFailed and body and status not in _OF_PROXIES
        error = PredictionFailed if from_handler else _by_status(status, failure)
        text = body[:_SHOWN_LIMIT].decode(errors="replace") or f"HTTP status {status}"
        return error(text, status=status, body=body)
    message = str(document.get("message", ""))
    error = (
        _internal(message, status, failure) if kind == _INTERNAL else _TYPES.get(kind) or _by_status(status, failure)
    )
    return error(message, status=status, type=kind, body=body)


def from_grpc(code: str, details: str, failure: type[ServerError]) -> ClientError:
    """Return the error that the status of a gRPC call, or of one message of a conversation, means.

    Args:
        code: The name of the status, such as `INTERNAL`.
        details: The message, and on a second line TorchServe's label: a class name, with or without its package.
        failure: The error for what the server does not blame on the request.
    """
    message, _, label = details.rpartition("\n")
    kind = label.removesuffix(".()").rpartition(".")[2] if message else None
    if not message:
        message = label
    error: type[ClientError]
    if message.startswith(_REFUSED):
        error = Unauthorized
    elif kind == _INTERNAL:
        error = _internal(message, 504 if code == "DEADLINE_EXCEEDED" else 500, failure)
    else:
        error = (_TYPES.get(kind) if kind else None) or _CODES.get(code, failure)
    return error(message or code, code=code, type=kind)


def _document(body: bytes) -> dict[str, object]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _by_status(status: int, failure: type[ServerError]) -> type[ClientError]:
    return _STATUSES.get(status) or (failure if status >= 500 else InvalidRequest)


def _internal(message: str, status: int, failure: type[ServerError]) -> type[ClientError]:
    if _NO_WORKER in message:
        return Unavailable
    if message.startswith("Worker died"):
        return WorkerDied
    return DeadlineExceeded if status in {408, 504} else failure
