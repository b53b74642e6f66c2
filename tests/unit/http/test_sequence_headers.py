"""Which sequence an HTTP request belongs to."""

from __future__ import annotations

import pytest
from tests.unit.serving.support import make_job

from relight.api.http.sequence_headers import name_sequence
from relight.serving.sequence import SequenceSettings

NAMES = SequenceSettings(id_header="X-Id", start_header="x-start", end_header="x-end")


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ([], (None, True, False)),
        ([(b"x-id", b"")], (None, True, False)),
        ([(b"x-id", b"a")], ("a", False, False)),
        ([(b"X-ID", b" a ")], ("a", False, False)),
        ([(b"x-id", b"a"), (b"x-id", b"b")], ("b", False, False)),
        ([(b"x-id", b"\xfc")], ("ü", False, False)),
        ([(b"x-id", b"a"), (b"x-start", b"true"), (b"x-end", b"True")], ("a", True, True)),
        ([(b"x-id", b"a"), (b"x-start", b"1"), (b"x-end", b"yes")], ("a", False, False)),
        ([(b"x-end", b"true")], (None, True, True)),
    ],
)
def test_headers(headers: list[tuple[bytes, bytes]], wanted: tuple[str | None, bool, bool]) -> None:
    job, _ = make_job()
    job.headers = headers

    name_sequence(job, NAMES)

    assert (job.sequence_id, job.sequence_start, job.sequence_end) == wanted
