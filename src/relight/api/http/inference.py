"""The inference API: from routes to jobs (rest_api.md §3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.api.http import openapi
from relight.api.http.forms import boundary_of, media_type, parse_multipart, parse_urlencoded
from relight.api.http.json_text import status_body
from relight.api.http.paths import parse_query
from relight.api.http.sequence_headers import name_sequence
from relight.errors import BadRequestError, ResourceNotFoundError
from relight.serving.job import Job

if TYPE_CHECKING:
    from relight.api.http.exchange import Exchange
    from relight.serving.registry import Registry

_HEALTHY = status_body("Healthy")
_UNHEALTHY = status_body("Unhealthy")
_PREDICT = {"explain": "False", "url_path": ""}
_EXPLAIN = {"explain": "True", "url_path": ""}
_KSERVE = {"predict": {"explain": "False"}, "explain": {"explain": "True"}}
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_FIRST_SEGMENTS = frozenset({"ping", "predictions", "explanations", "invocations"})


class InferenceApi:
    """Routes of the inference API.

    Args:
        registry: The models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @staticmethod
    def claims(segments: tuple[str, ...]) -> bool:
        """Whether a path belongs to this API, on a listener that serves others too."""
        first, count = segments[0], len(segments)
        return (
            first in _FIRST_SEGMENTS
            or (count == 3 and first == "models" and segments[2] == "invoke")
            or (first != "models" and 2 <= count <= 3 and segments[-1] == "predict")
            or (count == 3 and segments[:2] == ("v1", "models") and _kserve_v1(segments[2]) is not None)
            or (count == 4 and segments[:2] == ("v2", "models") and segments[3] in ("infer", "explain"))
        )

    def handle(self, exchange: Exchange, segments: tuple[str, ...], query: bytes) -> None:
        """Answer a request, or queue the job that answers it.

        Raises:
            RelightError: the request is refused.
        """
        first, count = segments[0], len(segments)
        if first == "predictions" or first == "explanations":
            if count < 2:
                raise ResourceNotFoundError
            added = _PREDICT if first == "predictions" else _EXPLAIN
            if count > 3:
                added = {"explain": added["explain"], "url_path": "/".join(segments[3:])}
            self._predict(exchange, segments[1], segments[2] if count > 2 else None, added, b"")
        elif first == "ping":
            self._ping(exchange)
        elif first == "invocations":
            self._invocations(exchange, segments, query)
        elif first == "models":
            self._predict(exchange, segments[1], None, {}, query)
        elif first == "v1" and count == 3 and segments[1] == "models":
            found = _kserve_v1(segments[2])
            if found is None:
                raise ResourceNotFoundError
            self._predict(exchange, found[0], None, _KSERVE[found[1]], b"")
        elif first == "v2" and count == 4 and segments[1] == "models":
            verb = "explain" if segments[3] == "explain" else "predict"
            self._predict(exchange, segments[2], None, _KSERVE[verb], b"")
        else:
            self._predict(exchange, first, segments[1] if count == 3 else None, {}, query)

    def _ping(self, exchange: Exchange) -> None:
        if self._registry.health() == "Healthy":
            exchange.respond(200, _HEALTHY)
        else:
            exchange.respond(500, _UNHEALTHY)

    def _invocations(self, exchange: Exchange, segments: tuple[str, ...], query: bytes) -> None:
        if len(segments) != 1:
            raise ResourceNotFoundError
        given = dict(parse_query(query))
        name = given.get("model_name")
        if not name and len(self._registry.startup_names) == 1:
            name = next(iter(self._registry.startup_names))
        if name is None:
            name = next(
                (
                    value.decode("utf-8", "replace")
                    for key, _, value in _form_parts(exchange) or []
                    if key == "model_name"
                ),
                None,
            )
        if name is None:
            raise BadRequestError("Parameter model_name is required.")
        self._predict(exchange, name, None, {}, query)

    def _predict(self, exchange: Exchange, name: str, version: str | None, added: dict[str, str], query: bytes) -> None:
        """Make a job of the request and hand it to the model.

        Args:
            exchange: The request.
            name: Name of the model.
            version: The version that the path names, if it does.
            added: Headers that the handler gets beside the client's.
            query: Query parameters that become inputs.
        """
        found = self._registry.resolve(name, version)
        parts, body, size = inputs_of(exchange, query)
        if exchange.method == "OPTIONS":
            exchange.json(openapi.model_inference_document(name))
            return
        job = Job(exchange.request_id, exchange.headers, added, parts, body, size, exchange, exchange.arrived)
        if found.sequences is not None:
            name_sequence(job, found.sequences)
        exchange.job = job
        exchange.body = []
        found.submit(job, version)


def _kserve_v1(segment: str) -> tuple[str, str] | None:
    """Model and verb of `model:predict` or `model:explain`; None for anything else."""
    for verb in ("predict", "explain"):
        if f":{verb}" in segment:
            return segment.partition(":")[0], verb
    return None


def _form_parts(exchange: Exchange) -> list[tuple[str, str, bytes]] | None:
    """The inputs of a form; None if the body is none."""
    content_type = exchange.content_type
    if content_type is None:
        return None
    kind = media_type(content_type).lower()
    if kind == _FORM:
        return parse_urlencoded(b"".join(exchange.body))
    if kind == _MULTIPART:
        boundary = boundary_of(content_type)
        if boundary is not None:
            return parse_multipart(b"".join(exchange.body), boundary)
    return None


def inputs_of(exchange: Exchange, query: bytes) -> tuple[list[tuple[str, str, int]], list[bytes], int]:
    """The named inputs of a request: their names, types and lengths, their bytes, and how many bytes that is."""
    form = _form_parts(exchange)
    if form is None and not query:
        return [("body", media_type(exchange.content_type), exchange.size)], exchange.body, exchange.size
    inputs: dict[str, tuple[str, list[bytes]]] = {
        name: ("", [value.encode()]) for name, value in (parse_query(query) if query else [])
    }
    if form is None:
        inputs["body"] = (media_type(exchange.content_type), exchange.body)
    else:
        for name, content_type, data in form:
            inputs[name] = (content_type, [data])
    parts = []
    body: list[bytes] = []
    for name, (content_type, pieces) in inputs.items():
        parts.append((name, content_type, sum(map(len, pieces))))
        body += pieces
    return parts, body, sum(length for _, _, length in parts)
