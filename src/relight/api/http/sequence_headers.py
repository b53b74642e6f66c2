"""How an HTTP request says which sequence it belongs to (batching_and_llm.md §7.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relight.serving.job import Job
    from relight.serving.sequence import SequenceSettings


def name_sequence(job: Job, settings: SequenceSettings) -> None:
    """Read a job's headers; one that names no sequence begins a new one."""
    given = {name.lower(): value.strip() for name, value in job.headers}
    job.sequence_id = given.get(settings.id_header.lower().encode(), b"").decode("latin-1") or None
    job.sequence_start = job.sequence_id is None or _says_so(given.get(settings.start_header.lower().encode()))
    job.sequence_end = _says_so(given.get(settings.end_header.lower().encode()))


def _says_so(value: bytes | None) -> bool:
    return value is not None and value.lower() == b"true"
