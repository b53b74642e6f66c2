"""The REST API of the Open Inference Protocol (rest_api.md §3.7; the protocol's "HTTP/REST").

Served where `ts_open_inference_protocol` is on. `/v2/models/{model}/infer` is there without it, too; requests that ask
for nothing more are answered in the same way here: the handler gets the body, the client gets what it returned.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, NamedTuple

from relight.api.http import openapi
from relight.api.http.exchange import header_lines
from relight.api.http.forms import media_type
from relight.api.http.inference import inputs_of
from relight.api.http.json_text import dump
from relight.api.open_inference import metadata
from relight.api.open_inference.request import Target, read_rest
from relight.api.open_inference.response import read_result, to_rest
from relight.errors import BadRequestError, InternalServerError, MethodNotAllowedError, RelightError
from relight.serving.job import Job

if TYPE_CHECKING:
    from relight.api.http.exchange import Exchange
    from relight.api.open_inference.request import AnswerForm
    from relight.serving.job import Reply
    from relight.serving.model import ModelVersion
    from relight.serving.registry import Registry
    from relight.wire.messages import Answer

logger = logging.getLogger("relight.http")

_JSON = "application/json"
_JSON_HEADER = b"content-type: application/json\r\n"
_BINARY_HEADERS = b"content-type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
_JSON_LENGTH = b"inference-header-content-length"
_PREDICT = {"explain": "False"}
_SERVER_ROUTES: dict[tuple[str, ...], dict[str, object]] = {
    ("v2", "health", "live"): {"live": True},
    ("v2", "health", "ready"): {"ready": True},
    ("v2",): {
        "name": "Torchserve",
        "version": metadata.SERVER_VERSION,
        "extenstion": ["kserve", "kubeflow"],  # TorchServe's spelling, which its clients read
        "extensions": list(metadata.REST_EXTENSIONS),
    },
}
# Members that ask for more than the handler's own answer. They are looked for in the bytes, so that the body of most
# requests is parsed once only, by the worker.
_MORE = (b'"outputs"', b'"binary_data')


class _Path(NamedTuple):
    """A route of a model: what is asked of which version (None for the default one)."""

    model: str
    version: str | None
    verb: str


class OpenInferenceApi:
    """Routes of the protocol.

    Args:
        registry: The models.
        max_request_size: Largest body, in bytes, for those that are compressed.
    """

    def __init__(self, registry: Registry, max_request_size: int) -> None:
        self._registry = registry
        self._max_request_size = max_request_size

    @staticmethod
    def claims(segments: tuple[str, ...]) -> bool:
        """Whether a path belongs to the protocol."""
        return segments[0] == "v2" and (segments in _SERVER_ROUTES or _path(segments) is not None)

    @staticmethod
    def refuse_versions(exchange: Exchange, segments: tuple[str, ...]) -> bool:
        """Answer to paths that nobody claims, if they look like those with a version (KEEP).

        Returns:
            Whether it was one.
        """
        if len(segments) < 5 or not any(segment.startswith("versions") for segment in segments):
            return False
        exchange.json({"error": "Model versioning is not yet supported."}, 501)
        return True

    def handle(self, exchange: Exchange, segments: tuple[str, ...]) -> None:
        """Answer a request, or queue the job that answers it.

        Raises:
            RelightError: the request is refused, and TorchServe has the route: errors are answered as ever.
        """
        document = _SERVER_ROUTES.get(segments)
        path = _path(segments)
        if document is not None:
            exchange.json(document)
        elif path is not None and path.verb == "infer" and path.version is None and not _asks_more(exchange):
            self._infer(exchange, path)
        elif path is not None:
            try:
                self._handle_model(exchange, path)
            except RelightError as error:
                _fail(exchange, error)

    def _handle_model(self, exchange: Exchange, path: _Path) -> None:
        if path.verb == "infer":
            self._infer(exchange, path)
        elif exchange.method not in ("GET", "HEAD"):
            raise MethodNotAllowedError
        elif path.verb == "ready":
            ready = metadata.is_ready(self._registry.resolve(path.model, path.version))
            exchange.json({"name": path.model, "ready": ready}, 200 if ready else 503)
        else:
            exchange.json(metadata.of_model(self._registry, path.model, path.version).document())

    def _infer(self, exchange: Exchange, path: _Path) -> None:
        found = self._registry.resolve(path.model, path.version)
        if exchange.method == "OPTIONS":
            exchange.json(openapi.model_inference_document(path.model))
            return
        if exchange.content_type is None:
            # The protocol's body is JSON, and not every client says so.
            exchange.content_type = _JSON.encode()
        if _asks_more(exchange):
            job = self._extended_job(exchange, found)
        else:
            parts, body, size = inputs_of(exchange, b"")
            reply: Reply = exchange if path.version is None else _Reply(exchange, None)
            job = Job(exchange.request_id, exchange.headers, _PREDICT, parts, body, size, reply, exchange.arrived)
        exchange.job = job
        exchange.body = []
        found.submit(job, path.version)

    def _extended_job(self, exchange: Exchange, found: ModelVersion) -> Job:
        """The job of a request with binary data, or one that says how it wants its outputs."""
        settings = found.settings
        body = b"".join(exchange.body)
        length = _json_length(exchange)
        if length is not None:
            body = self._decompressed(exchange, body)
        text, form = read_rest(body, length, Target(settings.name, settings.version, settings.config))
        return Job(
            exchange.request_id,
            exchange.headers,
            _PREDICT,
            [("body", _JSON, len(text))],
            [text],
            len(text),
            _Reply(exchange, form),
            exchange.arrived,
        )

    def _decompressed(self, exchange: Exchange, body: bytes) -> bytes:
        """The body as it was before a client compressed it.

        Raises:
            BadRequestError: it cannot be restored, or is larger than a request may be.
        """
        encoding = _header(exchange, b"content-encoding")
        if encoding is None or encoding.lower() not in (b"gzip", b"deflate"):
            return body
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            plain = inflater.decompress(body, self._max_request_size + 1)
        except zlib.error as error:
            raise BadRequestError(f"The body cannot be decompressed: {error}") from error
        if len(plain) > self._max_request_size:
            raise BadRequestError(f"The body has more than max_request_size {self._max_request_size} bytes.")
        if not inflater.eof:
            raise BadRequestError("The compressed body ends too early.")
        return plain


class _Reply:
    """Answers a request in the protocol's form.

    Args:
        exchange: The request.
        form: How the answer is wanted; None if the handler's own is passed on.
    """

    def __init__(self, exchange: Exchange, form: AnswerForm | None) -> None:
        self._exchange = exchange
        self._form = form
        self._chunks: list[bytes] = []

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:
        """Put the pieces of a handler that streams together, or pass them on."""
        if self._form is None:
            return self._exchange.chunk(answer, body)
        self._chunks.append(bytes(body))
        return True

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        """Write the handler's answer; one with a status of its own is passed on as it is."""
        if self._chunks:
            body = b"".join((*self._chunks, body))
        form = self._form
        if form is None or answer.status != 200:
            self._exchange.finish(answer, body)
            return
        try:
            head, binary = to_rest(read_result(body, form), form)
        except RelightError as error:
            if form.any_raw or isinstance(error, BadRequestError):
                self.fail(error)
            else:
                # Nothing but JSON is asked for, and whatever JSON a handler answers with is passed on (KEEP).
                self._exchange.finish(answer, body)
            return
        except Exception:
            # A Reply never raises.
            logger.exception("The answer of model %s could not be converted", form.model_name)
            self.fail(InternalServerError("Internal server error, see the server's log."))
            return
        lines = _BINARY_HEADERS % len(head) if binary else _JSON_HEADER
        kept = {name: value for name, value in (answer.headers or {}).items() if name.lower() != "content-type"}
        self._exchange.respond(200, b"".join((head, *binary)), lines + header_lines(kept))

    def fail(self, error: RelightError) -> None:
        """Answer with an error."""
        _fail(self._exchange, error)


def _fail(exchange: Exchange, error: RelightError) -> None:
    """Answer with an error as the protocol has them, or break off an answer that has begun."""
    if exchange.status:
        exchange.fail(error)
    else:
        exchange.respond(error.status, dump({"error": error.message}))


def _path(segments: tuple[str, ...]) -> _Path | None:
    """What a path of a model means; None if it means nothing here."""
    if len(segments) < 3 or segments[:2] != ("v2", "models"):
        return None
    model, rest, version = segments[2], segments[3:], None
    if len(rest) > 1 and rest[0] == "versions":
        version, rest = rest[1], rest[2:]
    if not rest:
        return _Path(model, version, "")
    if len(rest) == 1 and rest[0] in ("ready", "infer"):
        return _Path(model, version, rest[0])
    return None


def _asks_more(exchange: Exchange) -> bool:
    """Whether a request goes beyond the body that the handler gets and the answer that it gives."""
    if _header(exchange, _JSON_LENGTH) is not None:
        return True
    if media_type(exchange.content_type) not in ("", _JSON):
        return False
    if len(exchange.body) > 1:
        exchange.body = [b"".join(exchange.body)]
    return any(member in piece for piece in exchange.body for member in _MORE)


def _json_length(exchange: Exchange) -> int | None:
    """Bytes of the JSON object before binary data, if the request says so."""
    value = _header(exchange, _JSON_LENGTH)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise BadRequestError("Inference-Header-Content-Length is not a number of bytes.")
    return int(value)


def _header(exchange: Exchange, name: bytes) -> bytes | None:
    return next((value for key, value in exchange.headers if key.lower() == name), None)
