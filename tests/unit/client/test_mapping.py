from __future__ import annotations

import copy
import json
import pickle

import pytest

from relight.client import (
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
    errors,
)
from relight.client.mapping import from_grpc, from_http

MODEL = "org.pytorch.serve.archive.model"
HTTP = "org.pytorch.serve.http"
NO_WORKER = 'Model "m" has no worker to serve inference request. Please use scale workers API to add workers.'
TOKEN = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (400, "BadRequestException", "Parameter url is required.", InvalidRequest),
        (400, "InvalidModelException", "Model name is not defined.", InvalidRequest),
        (400, "DownloadArchiveException", "Failed to download archive from: x", InvalidRequest),
        (400, "ModelException", "Custom pip package installation failed for model m", InvalidRequest),
        (400, "InvalidKeyException", TOKEN, Unauthorized),
        (403, "InvalidModelVersionException", "Cannot remove default version for model m", Forbidden),
        (404, "ResourceNotFoundException", "Requested resource is not found.", NotFound),
        (404, "ModelNotFoundException", "Model not found: m", ModelNotFound),
        (404, "ModelVersionNotFoundException", "Model version: 2 does not exist", ModelVersionNotFound),
        (404, "WorkflowNotFoundException", "Workflow not found: w", NotFound),
        (405, "MethodNotAllowedException", "Requested method is not allowed.", Forbidden),
        (408, "RequestTimeoutException", "Timed out", DeadlineExceeded),
        (409, "ConflictStatusException", "Model version 1.0 is already registered for model m", Conflict),
        (500, "InternalServerException", "Worker died.", WorkerDied),
        (507, "InternalServerException", "Worker died.", WorkerDied),
        (500, "InternalServerException", "Failed to start workers for model m version: 1.0", PredictionFailed),
        (500, "NullPointerException", "", PredictionFailed),
        (503, "ServiceUnavailableException", NO_WORKER, Unavailable),
        (503, "InternalServerException", "Prediction failed", PredictionFailed),
        (507, "InternalServerException", "Out of resources", PredictionFailed),
        (404, "InternalServerException", "chosen by the handler", PredictionFailed),
        (504, "InternalServerException", "too late", DeadlineExceeded),
    ],
)
def test_http_errors_of_the_server(status: int, kind: str, message: str, error: type[ClientError]) -> None:
    body = json.dumps({"code": status, "type": kind, "message": message}).encode()
    found = from_http(status, body, PredictionFailed)
    assert type(found) is error
    assert (found.status, found.code, found.type, found.message) == (status, None, kind, message)
    assert (str(found), found.body) == (message, body)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (302, InvalidRequest),
        (401, Unauthorized),
        (413, TooLarge),
        (417, InvalidRequest),
        (429, Unavailable),
        (502, Unavailable),
        (500, ServerError),
        (501, Unsupported),
        (503, Unavailable),
        (504, DeadlineExceeded),
    ],
)
def test_http_errors_without_a_document(status: int, error: type[ClientError]) -> None:
    for failure, body in ((ServerError, b""), (ServerError, b"<html>"), (ServerError, b'["type"]')):
        found = from_http(status, body, failure)
        assert type(found) is error
        assert found.message == (body.decode() or f"HTTP status {status}")
    assert isinstance(from_http(status, b"", PredictionFailed), PredictionFailed if status == 500 else error)


def test_http_errors_that_a_handler_chose() -> None:
    found = from_http(404, b'{"error": "\xff"}', PredictionFailed)
    assert type(found) is PredictionFailed
    assert (found.status, found.type, found.message) == (404, None, '{"error": "�"}')
    assert type(from_http(502, b"<html>Bad Gateway", PredictionFailed)) is Unavailable
    assert len(from_http(500, b"x" * 10_000, PredictionFailed).message) == 500


@pytest.mark.parametrize(
    ("code", "details", "kind", "error"),
    [
        ("INTERNAL", f"Model not found: m\n{MODEL}.ModelNotFoundException", "ModelNotFoundException", ModelNotFound),
        (
            "NOT_FOUND",
            f"Model version: 2 does not exist\n{MODEL}.ModelVersionNotFoundException",
            "ModelVersionNotFoundException",
            ModelVersionNotFound,
        ),
        (
            "INTERNAL",
            "Parameter model_name is required.\nBadRequestException.()",
            "BadRequestException",
            InvalidRequest,
        ),
        ("INTERNAL", f"{NO_WORKER}\nInternalServerException.()", "InternalServerException", Unavailable),
        (
            "UNAVAILABLE",
            f"Prediction failed\n{HTTP}.InternalServerException",
            "InternalServerException",
            PredictionFailed,
        ),
        ("NOT_FOUND", f"x\n{HTTP}.InternalServerException", "InternalServerException", PredictionFailed),
        ("INTERNAL", f"Worker died.\n{HTTP}.InternalServerException", "InternalServerException", WorkerDied),
        ("RESOURCE_EXHAUSTED", f"Worker died.\n{HTTP}.InternalServerException", "InternalServerException", WorkerDied),
        ("DEADLINE_EXCEEDED", f"late\n{HTTP}.InternalServerException", "InternalServerException", DeadlineExceeded),
        ("PERMISSION_DENIED", f"Model API disabled\n{MODEL}.ModelException", "ModelException", Forbidden),
        ("ABORTED", f"Model version 1.0 is\n{HTTP}.ConflictStatusException", "ConflictStatusException", Conflict),
        ("UNAVAILABLE", f"two\nlines\n{HTTP}.InternalServerException", "InternalServerException", PredictionFailed),
        ("PERMISSION_DENIED", TOKEN, None, Unauthorized),
        ("UNAVAILABLE", "failed to connect to all addresses", None, Unavailable),
        ("UNIMPLEMENTED", "Method not found: a/b", None, Unsupported),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", None, DeadlineExceeded),
        ("CANCELLED", "Locally cancelled", None, Cancelled),
        ("RESOURCE_EXHAUSTED", "too large", None, TooLarge),
        ("UNAUTHENTICATED", "who", None, Unauthorized),
        ("UNKNOWN", "", None, PredictionFailed),
        ("INTERNAL", "broken", None, PredictionFailed),
    ],
)
def test_grpc_errors(code: str, details: str, kind: str | None, error: type[ClientError]) -> None:
    found = from_grpc(code, details, PredictionFailed)
    assert type(found) is error
    assert (found.status, found.code, found.type) == (None, code, kind)
    assert found.message == ((details.rpartition("\n")[0] if kind else details) or code)


def test_errors_of_the_management_are_no_failed_predictions() -> None:
    message = "Failed to start workers for model m version: 1.0"
    body = json.dumps({"code": 500, "type": "InternalServerException", "message": message}).encode()
    assert type(from_http(500, body, ServerError)) is ServerError
    assert type(from_grpc("INTERNAL", f"{message}\n{HTTP}.InternalServerException", ServerError)) is ServerError


def test_the_tree_of_errors() -> None:
    """What the module's docstring draws is what there is."""
    drawn = {name for name in errors.__all__ if f"── {name} " in str(errors.__doc__) + " "}
    assert drawn | {"ClientError", "ModelVersionNotFound"} == set(errors.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), ClientError)


def test_errors_can_be_copied_and_pickled() -> None:
    error = ModelNotFound("Model not found: m", status=404, type="ModelNotFoundException", body=b"{}")
    for found in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(found) is ModelNotFound
        assert vars(found) == vars(error)
        assert str(found) == str(error)
