"""What routes are described with, and what several of them share: kinds of parameters, answers and their schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JSON = "application/json"
ANY = "*/*"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Shape of a value.

    Args:
        type: JSON type.
        format: Refinement of the type.
        properties: Members of an object, in order.
        items: What an array holds.
        description: What the value means.
        enum: The values allowed; any if empty.
        default: What an absent value counts as. Always text, whatever the type (KEEP).
    """

    type: Literal["string", "integer", "boolean", "object", "array"]
    format: str | None = None
    properties: tuple[Property, ...] = ()
    items: Schema | None = None
    description: str | None = None
    enum: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Property:
    """A member of an object."""

    name: str
    schema: Schema
    required: bool = True


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path or the query."""

    place: Literal["path", "query"]
    name: str
    description: str
    schema: Schema
    required: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """What a request must carry."""

    description: str
    media: str
    schema: Schema


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; without a body where `media` or `schema` is None."""

    status: int
    description: str
    media: str | None = None
    schema: Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation: a method on a path template."""

    path: str
    method: Literal["get", "post", "put", "delete", "options"]
    operation_id: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    responses: tuple[Response, ...]
    deprecated: bool = False


def _text(description: str, *, enum: tuple[str, ...] = ()) -> Schema:
    return Schema(type="string", description=description, enum=enum)


def _integer(description: str) -> Schema:
    return Schema(type="integer", description=description)


def _object(*properties: Property, description: str | None = None) -> Schema:
    return Schema(type="object", properties=properties, description=description)


def query(
    name: str,
    kind: Literal["string", "integer", "boolean"],
    default: str | None,
    description: str,
    *,
    enum: tuple[str, ...] = (),
    required: bool = False,
) -> Parameter:
    """A parameter in the query.

    Args:
        name: Of the parameter.
        kind: JSON type of its value.
        default: Text of what its absence counts as, if that is always the same.
        description: What it does.
        enum: The values allowed; any if empty.
        required: Whether it must be given.
    """
    return Parameter("query", name, description, Schema(type=kind, enum=enum, default=default), required)


# -- what answers look like ----------------------------------------------------------------------------------------

BINARY = Schema(type="string", format="binary")
_ERROR = _object(
    Property("code", _integer("HTTP status of the error.")),
    Property("type", _text("Name of the kind of error.")),
    Property("message", _text("What went wrong.")),
)
_STATUS = _object(Property("status", _text("What was done, or the state that was asked for.")))
_DOCUMENT = _object(
    Property("openapi", Schema(type="string")),
    Property("info", Schema(type="object")),
    Property("paths", Schema(type="object")),
)
MODEL_LIST = _object(
    Property("nextPageToken", _text("The `next_page_token` of the next page; absent on the last."), required=False),
    Property(
        "models",
        Schema(
            type="array",
            description="One entry per model, sorted by name.",
            items=_object(
                Property("modelName", _text("Name of the model.")),
                Property("modelUrl", _text("Where the archive came from.")),
            ),
        ),
    ),
)
_WORKER = _object(
    Property("id", _text("Id of the worker.")),
    Property("startTime", _text("When the worker was created, in UTC.")),
    Property("gpu", Schema(type="boolean", description="Whether the worker uses a GPU."), required=False),
    Property("status", _text("State of the worker.", enum=("READY", "LOADING", "UNLOADING"))),
)
# TorchServe declares an object and sends an array of them; `status` and `metrics` are required, yet never sent (KEEP).
DESCRIPTION = _object(
    Property("modelName", _text("Name of the model.")),
    Property("modelVersion", _text("Version of the model.")),
    Property("modelUrl", _text("Where the archive came from.")),
    Property("minWorkers", _integer("Least number of workers.")),
    Property("maxWorkers", _integer("Greatest number of workers.")),
    Property("batchSize", _integer("Most requests that a worker gets at once."), required=False),
    Property("maxBatchDelay", _integer("Longest wait for a batch to fill, in milliseconds."), required=False),
    Property("status", _text("State of the model. No longer sent.")),
    Property("workers", Schema(type="array", items=_WORKER, description="The workers of this version.")),
    Property(
        "metrics",
        _object(
            Property("rejectedRequests", _integer("Requests refused.")),
            Property("waitingQueueSize", _integer("Requests waiting for a worker.")),
            Property("requests", _integer("Requests taken.")),
            description="Counts of requests. No longer sent.",
        ),
    ),
    Property(
        "jobQueueStatus",
        _object(
            Property("remainingCapacity", _integer("How many more requests the queue takes.")),
            Property("pendingRequests", _integer("Requests waiting in the queue.")),
        ),
    ),
)
SAMPLES = _object(
    Property("# HELP", _text("What the metric measures.")),
    Property("# TYPE", _text("Kind of the metric.")),
    Property("metric", _text("Name, labels and value of the metric.")),
)
READINESS = _object(
    Property("name", _text("Name of the model.")),
    Property("ready", Schema(type="boolean", description="Whether a worker can serve it.")),
)


def error(code: int, description: str) -> Response:
    """An error answer (rest_api.md §1.7)."""
    return Response(code, description, JSON, _ERROR)


def status(code: int, description: str) -> Response:
    """An answer that has nothing but a status text."""
    return Response(code, description, JSON, _STATUS)


NO_MODEL = error(404, "There is no such model, or no such version of it.")
INTERNAL = error(500, "The server failed.")
NOT_STARTED = error(500, "The workers could not be started.")
ACCEPTED = status(202, "Accepted; the workers are started and stopped in the background.")
SCALING = status(206, "Done in part: fewer workers run than were asked for.")
DESCRIBED = (Response(200, "The OpenAPI document.", JSON, _DOCUMENT), INTERNAL)
