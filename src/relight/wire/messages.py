"""What the frames say: one struct per kind of frame, encoded as MessagePack arrays.

Bodies are not in these structs: they follow as the frame's payload, one after the other, and the structs give their
lengths. So a body is never copied into an encoder's buffer.
"""

from __future__ import annotations

from typing import Any

import msgspec

FAILED_TO_LOAD = "Failed to load model "
"""How the line begins in the model log after which a worker prints the traceback that LOAD_FAILED carries too."""


class Kind:
    """Kinds of frames. Frontend to worker: those below 16. Worker to frontend: the rest.

    CANCEL, STOP, HOLD and RELEASE carry a Notice, and only workers that run batches concurrently get them; the others
    read nothing while they run a batch.
    """

    LOAD = 1
    BATCH = 2
    CANCEL = 3
    """Nobody waits for one request of the batch any more."""
    STOP = 4
    """The batch has had its time: it ends now, and the worker says so with a REPLY."""
    HOLD = 5
    """The client of the batch does not keep up: its handler should wait."""
    RELEASE = 6
    """It does again."""
    LOADED = 16
    LOAD_FAILED = 17
    REPLY = 18
    CHUNK = 19


class Load(msgspec.Struct, array_like=True):
    """Load a model: the first frame a worker gets."""

    model_name: str
    model_version: str
    handler: str
    model_dir: str
    real_dir: str
    batch_size: int
    extra_path: list[str]
    config: dict[str, Any]
    gpu_id: int | None
    envelope: str | None
    limit_max_image_pixels: bool
    decode_input: bool
    metrics_config: str | None
    max_response_size: int
    threads: int
    """Threads for torch and OpenMP; 0 leaves them alone."""
    environment: dict[str, str]
    concurrent: bool = False
    """Whether batches run at the same time (`asyncCommunication`)."""
    continuous: bool = False
    """Whether requests that the handler does not end come again with the next batch (continuous batching)."""


class Item(msgspec.Struct, array_like=True, gc=False):
    """One request of a batch.

    `headers` are the client's, as received; `added` are those the server adds (`explain`, `url_path`, `describe`).
    `parts` holds (name, content type, length in bytes) of each input, in the order of their bytes in the payload.
    """

    request_id: str
    headers: list[tuple[bytes, bytes]]
    added: dict[str, str]
    parts: list[tuple[str, str, int]]


class Batch(msgspec.Struct, array_like=True, gc=False):
    """Requests to be handled by one call of the handler."""

    seq: int
    items: list[Item]


class Notice(msgspec.Struct, array_like=True, gc=False):
    """What a worker is told of a batch that it is running; `index` is that of one of its requests."""

    seq: int
    index: int = 0


class Answer(msgspec.Struct, array_like=True, gc=False):
    """The answer to one request: `length` bytes of the payload, with status, phrase and headers of the handler.

    With `error` the bytes are the message of an error that concerns this request alone. With `more` they are a part:
    the request is not done, and comes again, without its inputs (continuous batching).
    """

    length: int
    status: int = 200
    phrase: str | None = None
    headers: dict[str, str] | None = None
    error: bool = False
    more: bool = False


class Failure(msgspec.Struct, array_like=True, gc=False):
    """The handler failed: every request of the batch is answered with this."""

    status: int
    message: str


class Reply(msgspec.Struct, array_like=True, gc=False):
    """Answers to a batch (REPLY), or one intermediate result for each of its requests (CHUNK)."""

    seq: int
    answers: list[Answer]
    failure: Failure | None = None


class Loaded(msgspec.Struct, array_like=True):
    """The model is loaded."""

    pid: int


class LoadFailed(msgspec.Struct, array_like=True):
    """The model could not be loaded: `phase` is `import` or `initialize`; `status` 507 means out of memory."""

    phase: str
    status: int
    message: str
    traceback: str
