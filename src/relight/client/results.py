"""What calls return."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Health", "ModelDescription", "ModelEntry", "ModelPage", "Prediction", "QueueStatus", "Worker"]


@dataclass(frozen=True)
class Health:
    """The server's answer to a ping.

    Attributes:
        status: `Healthy`, `Unhealthy`, or over gRPC also `Partial Healthy`.
    """

    status: str

    @property
    def healthy(self) -> bool:
        """Whether every model has the workers that it should have."""
        return self.status == "Healthy"


@dataclass(frozen=True)
class Prediction:
    """The answer of a handler.

    Attributes:
        content: Its bytes.
        content_type: The media type that the handler set; None without one, and over gRPC, which carries none.
        headers: The headers of an HTTP answer, their names in lower case; empty over gRPC.
        sequence_id: The sequence that it belongs to, in a conversation.
    """

    content: bytes
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    sequence_id: str | None = None

    @property
    def text(self) -> str:
        """The content as UTF-8."""
        return self.content.decode()

    def json(self) -> Any:
        """Return the content parsed as JSON.

        Raises:
            ValueError: It is no JSON.
        """
        return json.loads(self.content)

    def __bytes__(self) -> bytes:
        return self.content


@dataclass(frozen=True)
class ModelEntry:
    """A registered model, by its default version.

    Attributes:
        name: Its name.
        url: Where it came from, as given at its registration.
    """

    name: str
    url: str


@dataclass(frozen=True)
class ModelPage:
    """Part of the list of models.

    Attributes:
        models: The part.
        next_token: Where the next part begins; None at the end.
    """

    models: tuple[ModelEntry, ...]
    next_token: str | None

    @classmethod
    def parse(cls, content: bytes | str) -> ModelPage:
        """Read the server's answer (rest_api.md §4.6)."""
        document = json.loads(content)
        models = tuple(ModelEntry(each["modelName"], each.get("modelUrl", "")) for each in document["models"])
        return cls(models, document.get("nextPageToken"))


@dataclass(frozen=True)
class Worker:
    """A worker of a model.

    Attributes:
        id: Its number, as text.
        status: `READY` once it has loaded the model.
        pid: Its process; -1 before it has one.
        gpu: Whether it runs on a GPU.
        memory_usage: Bytes; 0 until measured.
        start_time: When it was created.
    """

    id: str
    status: str
    pid: int
    gpu: bool
    memory_usage: int
    start_time: str

    @property
    def ready(self) -> bool:
        """Whether it can serve."""
        return self.status == "READY"


@dataclass(frozen=True)
class QueueStatus:
    """The queue of a version.

    Attributes:
        remaining_capacity: How many more requests it takes.
        pending_requests: How many wait in it.
    """

    remaining_capacity: int
    pending_requests: int


@dataclass(frozen=True)
class ModelDescription:
    """One version of a model.

    Attributes:
        name: The model's name.
        version: The version.
        url: Where it came from.
        min_workers: How many workers it should have at least.
        max_workers: And at most.
        batch_size: The largest batch.
        max_batch_delay: Milliseconds that a batch may wait to fill.
        response_timeout: Seconds that a worker may take to answer.
        startup_timeout: Seconds that a worker may take to load.
        workers: Its workers.
        queue: Its queue; None where the server says nothing of it.
        customized_metadata: What the handler says of itself, if asked to.
        document: Everything that the server said, by the server's own names.
    """

    name: str
    version: str
    url: str
    min_workers: int
    max_workers: int
    batch_size: int
    max_batch_delay: int
    response_timeout: int
    startup_timeout: int
    workers: tuple[Worker, ...]
    queue: QueueStatus | None
    customized_metadata: Mapping[str, Any] | None
    document: Mapping[str, Any] = field(repr=False)

    @property
    def ready_workers(self) -> tuple[Worker, ...]:
        """The workers that can serve."""
        return tuple(worker for worker in self.workers if worker.ready)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ModelDescription:
        """Read one member of the server's answer (rest_api.md §4.4)."""
        queue = document.get("jobQueueStatus")
        return cls(
            name=document["modelName"],
            version=document["modelVersion"],
            url=document.get("modelUrl", ""),
            min_workers=document["minWorkers"],
            max_workers=document["maxWorkers"],
            batch_size=document["batchSize"],
            max_batch_delay=document["maxBatchDelay"],
            response_timeout=document["responseTimeout"],
            startup_timeout=document["startupTimeout"],
            workers=tuple(_worker(each) for each in document.get("workers", ())),
            queue=QueueStatus(queue["remainingCapacity"], queue["pendingRequests"]) if queue else None,
            customized_metadata=document.get("customizedMetadata"),
            document=document,
        )


def _worker(document: Mapping[str, Any]) -> Worker:
    return Worker(
        id=document["id"],
        status=document["status"],
        pid=document["pid"],
        gpu=document["gpu"],
        memory_usage=document["memoryUsage"],
        start_time=document["startTime"],
    )
