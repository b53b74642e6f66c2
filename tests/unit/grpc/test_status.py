"""Codes and texts of failed calls."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight import errors
from relight.api.grpc.call import escaped
from relight.api.grpc.status import Code, Status, code_of_number, inference_status, management_status

ISE = "org.pytorch.serve.http.InternalServerException"
MODEL = "org.pytorch.serve.archive.model."


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *((400, 3), (401, 16), (403, 7), (404, 5), (409, 10), (413, 8), (416, 11), (418, 9), (429, 8), (499, 1)),
        *((500, 13), (501, 12), (503, 14), (504, 4), (507, 13), (599, 13), (204, 13)),
        *((100, 2), (302, 2), (600, 2), (0, 2), (-1, 2)),
    ],
)
def test_codes_of_numbers(number: int, code: int) -> None:
    assert code_of_number(number) == code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.BadRequestError("m"), Status(Code.INTERNAL, "m", "BadRequestException.()")),
        (errors.ServiceUnavailableError("m"), Status(Code.INTERNAL, "m", "InternalServerException.()")),
        (errors.ModelNotFoundError("m"), Status(Code.INTERNAL, "m", MODEL + "ModelNotFoundException")),
        (errors.ModelVersionNotFoundError("m"), Status(Code.INTERNAL, "m", MODEL + "ModelVersionNotFoundException")),
        (errors.InternalServerError("m", 404), Status(Code.NOT_FOUND, "m", ISE)),
        (errors.InternalServerError("m", 12345), Status(Code.UNKNOWN, "m", ISE)),
        (errors.WorkerDiedError(), Status(Code.INTERNAL, "Worker died.", ISE)),
        (errors.WorkerDiedError(out_of_memory=True), Status(Code.RESOURCE_EXHAUSTED, "Worker died.", ISE)),
        (errors.WorkerStoppedError(), Status(Code.INTERNAL, "Worker scaled down.", ISE)),
        (errors.RequestTimeoutError("m"), Status(Code.DEADLINE_EXCEEDED, "m", ISE)),
        (errors.InvalidKeyError("m"), Status(Code.PERMISSION_DENIED, "m")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_inference(error: errors.RelightError, status: Status) -> None:
    assert inference_status(error) == status


@pytest.mark.parametrize(
    ("error", "code", "label"),
    [
        (errors.BadRequestError("m"), Code.INVALID_ARGUMENT, "org.pytorch.serve.http.BadRequestException"),
        (errors.ModelNotFoundError("m"), Code.NOT_FOUND, MODEL + "ModelNotFoundException"),
        (errors.InvalidModelError("m"), Code.INVALID_ARGUMENT, MODEL + "InvalidModelException"),
        (errors.ConflictError("m"), Code.ABORTED, "org.pytorch.serve.http.ConflictStatusException"),
        (
            errors.DownloadArchiveError("m"),
            Code.INVALID_ARGUMENT,
            "org.pytorch.serve.archive.DownloadArchiveException",
        ),
        (
            errors.InvalidModelVersionError("m"),
            Code.PERMISSION_DENIED,
            "org.pytorch.serve.http.InvalidModelVersionException",
        ),
        (errors.InternalServerError("m"), Code.INTERNAL, ISE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_management(error: errors.RelightError, code: Code, label: str) -> None:
    assert management_status(error) == Status(code, "m", label)
    assert management_status(error).details == f"m\n{label}"


@given(st.text(max_size=600))
def test_texts_arrive_as_they_are(text: str) -> None:
    encoded = escaped(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode(), errors="strict") == text


@given(st.text(min_size=1, max_size=3).map(lambda text: text * 3000))
def test_long_texts_are_cut_off_between_characters(text: str) -> None:
    encoded = escaped(text)
    assert len(encoded) <= 3 * 2048
    assert text.startswith(unquote(encoded.decode(), errors="strict"))
