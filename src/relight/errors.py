"""The errors of the domain, each with its HTTP status, its gRPC code and its wire `type`.

    RelightError
    ├── BadRequestError             400  the request is malformed: correct it
    ├── InvalidModelError           400  the archive is wrong: repack it
    ├── ModelDependencyError        400  the model's own packages could not be installed
    ├── DownloadArchiveError        400  the archive could not be fetched: check the url
    ├── InvalidKeyError             400  the token is wrong or expired: send or refresh it
    ├── InvalidModelVersionError    403  a default version cannot be removed while others exist
    ├── ResourceNotFoundError       404  no such route
    ├── ModelNotFoundError          404  no such model, or no such archive
    ├── ModelVersionNotFoundError   404  no such version
    ├── MethodNotAllowedError       405  wrong method, or the model API is off
    ├── ModelApiDisabledError       405  the same, over gRPC
    ├── RequestTimeoutError         408  the deadline passed
    ├── ConflictError               409  already registered
    ├── InternalServerError         500  the server or a handler failed
    ├── WorkerDiedError             500/507  the worker ended while it ran the request
    └── ServiceUnavailableError     503  nobody can take the request now: try again later
        └── WorkerStoppedError           the worker was ended on purpose, and had no time to finish the request

Status and `type` strings are TorchServe's (rest_api.md §1.7); clients match on them.
"""

from __future__ import annotations


class RelightError(Exception):
    """Base of every error that is answered to a client.

    Args:
        message: The text that the client reads.
        status: HTTP status, where it is not the class's own.
    """

    status: int = 500
    grpc_code: str = "INTERNAL"
    wire_type: str = "InternalServerException"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status


class BadRequestError(RelightError):
    """The request itself is malformed."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"
    wire_type = "BadRequestException"


class InvalidModelError(RelightError):
    """The archive does not describe a model that can be loaded."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"
    wire_type = "InvalidModelException"


class ModelDependencyError(RelightError):
    """The model's own packages or virtual environment could not be set up."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"
    wire_type = "ModelException"


class DownloadArchiveError(RelightError):
    """The archive could not be fetched from its url."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"
    wire_type = "DownloadArchiveException"


class InvalidKeyError(RelightError):
    """The token is missing, wrong or expired. TorchServe answers 400 here, not 401, and clients match that."""

    status = 400
    grpc_code = "PERMISSION_DENIED"
    wire_type = "InvalidKeyException"


class InvalidModelVersionError(RelightError):
    """The version cannot be removed, because it is the default one and others exist."""

    status = 403
    grpc_code = "PERMISSION_DENIED"
    wire_type = "InvalidModelVersionException"


class ResourceNotFoundError(RelightError):
    """No route leads here."""

    status = 404
    grpc_code = "NOT_FOUND"
    wire_type = "ResourceNotFoundException"

    def __init__(self) -> None:
        super().__init__("Requested resource is not found, please refer to API document.")


class ModelNotFoundError(RelightError):
    """No such model is registered, or no such archive exists."""

    status = 404
    grpc_code = "NOT_FOUND"
    wire_type = "ModelNotFoundException"


class ModelVersionNotFoundError(RelightError):
    """The model exists, the version does not."""

    status = 404
    grpc_code = "NOT_FOUND"
    wire_type = "ModelVersionNotFoundException"


class MethodNotAllowedError(RelightError):
    """The route exists, for other methods; or the model API is switched off."""

    status = 405
    grpc_code = "PERMISSION_DENIED"
    wire_type = "MethodNotAllowedException"

    def __init__(self) -> None:
        super().__init__("Requested method is not allowed, please refer to API document.")


class ModelApiDisabledError(RelightError):
    """The model API is off, so that models can be neither registered nor unregistered; HTTP answers 405 there."""

    status = 405
    grpc_code = "PERMISSION_DENIED"
    wire_type = "ModelException"

    def __init__(self) -> None:
        super().__init__("Model API disabled")


class RequestTimeoutError(RelightError):
    """A deadline passed before the work was done."""

    status = 408
    grpc_code = "DEADLINE_EXCEEDED"
    wire_type = "RequestTimeoutException"


class ConflictError(RelightError):
    """The version is already registered."""

    status = 409
    grpc_code = "ABORTED"
    wire_type = "ConflictStatusException"


class InternalServerError(RelightError):
    """The server or a handler failed.

    Args:
        message: The text that the client reads.
        number: What the handler chose, any number; HTTP clients see it as far as it is a status of theirs.
    """

    def __init__(self, message: str, number: int = 500) -> None:
        # 413 would blame the client; TorchServe's says that resources are exhausted.
        super().__init__(message, 507 if number == 413 else number if 200 <= number <= 999 else 500)
        self.number = number


class WorkerDiedError(InternalServerError):
    """The worker process ended while it ran the request: 507 when it was killed (out of memory), 500 otherwise."""

    def __init__(self, *, out_of_memory: bool = False) -> None:
        super().__init__("Worker died.", 507 if out_of_memory else 500)
        self.out_of_memory = out_of_memory


class ServiceUnavailableError(RelightError):
    """Nobody can take the request now."""

    status = 503
    grpc_code = "INTERNAL"
    wire_type = "ServiceUnavailableException"


class WorkerStoppedError(ServiceUnavailableError):
    """The worker was scaled down while it ran the request, and had no time, or no more, to finish it."""

    def __init__(self) -> None:
        super().__init__("Worker scaled down.")
