"""The management API (rest_api.md §4)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from relight.api.http import openapi
from relight.api.http.exchange import header_lines
from relight.api.http.forms import media_type
from relight.api.http.paths import Parameters, parse_query
from relight.api.management import LIST_LIMIT, CustomizedReply, ModelManager, describe_job
from relight.errors import BadRequestError, MethodNotAllowedError, ResourceNotFoundError
from relight.serving.version_settings import Registration

if TYPE_CHECKING:
    from relight.api.http.exchange import Exchange
    from relight.serving.registry import Registry
    from relight.wire.messages import Answer

_SURROGATE = re.compile("[\ud800-\udfff]")


class ManagementApi:
    """Routes of the management API.

    Args:
        registry: The models.
        enable_model_api: Whether clients may register and unregister models.
        title_version: Version that the OpenAPI documents name.
    """

    def __init__(self, registry: Registry, *, enable_model_api: bool) -> None:
        self._registry = registry
        self._manager = ModelManager(registry)
        self._enable_model_api = enable_model_api

    @staticmethod
    def claims(segments: tuple[str, ...]) -> bool:
        """Whether a path belongs to this API, on a listener that serves others too."""
        return (
            segments[0] == "models"
            or (len(segments) == 4 and segments[3] == "set-default")
            or (len(segments) == 3 and segments[:2] == ("v1", "models"))
        )

    async def handle(self, exchange: Exchange, segments: tuple[str, ...], query: bytes) -> None:
        """Answer a request.

        Raises:
            RelightError: the request is refused.
        """
        count = len(segments)
        if count == 3 and segments[0] == "v1":
            self._kserve_ready(exchange, segments[2])
        elif segments[0] != "models" or count > 4 or (count == 4 and segments[3] != "set-default"):
            raise ResourceNotFoundError
        elif count == 1:
            await self._models(exchange, query)
        elif count == 4:
            self._set_default(exchange, segments[1], segments[2])
        else:
            await self._model(exchange, segments[1], segments[2] if count == 3 else None, query)

    async def _models(self, exchange: Exchange, query: bytes) -> None:
        if exchange.method == "GET":
            self._list(exchange, Parameters(parse_query(query)))
        elif exchange.method == "POST" and self._enable_model_api:
            await self._register(exchange, query)
        else:
            raise MethodNotAllowedError

    async def _model(self, exchange: Exchange, name: str, version: str | None, query: bytes) -> None:
        method = exchange.method
        if method == "GET":
            self._describe(exchange, name, version, Parameters(parse_query(query)))
        elif method == "PUT":
            await self._scale(exchange, name, version, Parameters(parse_query(query)))
        elif method == "DELETE" and self._enable_model_api:
            parameters = Parameters(parse_query(query))
            exchange.json({"status": await self._manager.unregister(name, version, _timeout(parameters))})
        elif method == "OPTIONS":
            self._registry.resolve(name, version)
            exchange.json(openapi.model_management_document(name))
        else:
            raise MethodNotAllowedError

    # -- register ------------------------------------------------------------------------------------------------

    async def _register(self, exchange: Exchange, query: bytes) -> None:
        if media_type(exchange.content_type).lower() == "application/json":
            parameters = _json_parameters(b"".join(exchange.body))
        else:
            parameters = Parameters(parse_query(query))
        url = parameters.text("url")
        if url is None:
            raise BadRequestError("Parameter url is required.")
        outcome = await self._manager.register(
            Registration(
                url=url,
                model_name=parameters.nonempty("model_name"),
                handler=parameters.text("handler"),
                runtime=parameters.nonempty("runtime"),
                batch_size=_at_least(parameters, "batch_size", 1, unset=-1),
                max_batch_delay=_unless(parameters.integer("max_batch_delay"), -100),
                initial_workers=parameters.integer("initial_workers"),
                response_timeout=_at_least(parameters, "response_timeout", 1, unset=-1),
                startup_timeout=_at_least(parameters, "startup_timeout", 1, unset=-1),
                synchronous=parameters.boolean("synchronous", default=True),
                s3_sse_kms=parameters.boolean("s3_sse_kms", default=False),
            )
        )
        exchange.json({"status": outcome.text}, outcome.status)

    # -- scale, default, list ------------------------------------------------------------------------------------

    async def _scale(self, exchange: Exchange, name: str, version: str | None, parameters: Parameters) -> None:
        version = version or parameters.nonempty("model_version")
        minimum = parameters.integer("min_worker")
        minimum = 1 if minimum is None else minimum
        maximum = parameters.integer("max_worker")
        maximum = minimum if maximum is None else maximum
        outcome = await self._manager.scale(
            name,
            version,
            minimum,
            maximum,
            synchronous=parameters.boolean("synchronous", default=False),
            timeout=_timeout(parameters),
            gpus=parameters.integer("number_gpu"),
        )
        exchange.json({"status": outcome.text}, outcome.status)

    def _set_default(self, exchange: Exchange, name: str, version: str) -> None:
        if exchange.method == "GET":
            # TorchServe describes the default version here.
            self._describe(exchange, name, None, Parameters([]))
            return
        if exchange.method != "PUT":
            raise MethodNotAllowedError
        exchange.json({"status": self._manager.set_default(name, version)})

    def _list(self, exchange: Exchange, parameters: Parameters) -> None:
        limit = parameters.integer("limit")
        limit = LIST_LIMIT if limit is None or not 0 <= limit <= LIST_LIMIT else limit
        exchange.json(self._manager.listing(limit, max(0, parameters.integer("next_page_token") or 0)))

    # -- describe ------------------------------------------------------------------------------------------------

    def _describe(self, exchange: Exchange, name: str, version: str | None, parameters: Parameters) -> None:
        if version == "all" or not parameters.boolean("customized", default=False):
            exchange.json(self._manager.describe(name, version))
            return
        found = self._registry.resolve(name, version)

        def respond(document: list[dict[str, Any]], answer: Answer) -> None:
            headers = dict(answer.headers or {})
            if not any(name.lower() == "content-type" for name in headers):
                headers["content-type"] = "application/json"
            exchange.json(document, answer.status, answer.phrase, header_lines(headers))

        reply = CustomizedReply(found, respond, exchange.fail)
        exchange.job = describe_job(exchange.request_id, exchange.headers, reply, exchange.arrived)
        found.submit(exchange.job)

    def _kserve_ready(self, exchange: Exchange, segment: str) -> None:
        if exchange.method != "GET":
            raise MethodNotAllowedError
        name = segment.partition(":")[0]
        exchange.json({"name": name, "ready": self._registry.resolve(name).pool.ready > 0})


def _json_parameters(body: bytes) -> Parameters:
    """Parameters of a JSON body; values that are not text are taken as their JSON text.

    Raises:
        BadRequestError: it is not a JSON object, or a number is not whole.
    """
    try:
        document = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The body is not JSON: {error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise BadRequestError("The body must be a JSON object of parameters.")
    pairs = []
    for name, value in document.items():
        if value is None:
            continue
        if isinstance(value, float):
            if not value.is_integer():
                raise BadRequestError(f"Parameter {name} must be a whole number, not {value}.")
            value = int(value)
        text = value if isinstance(value, str) else json.dumps(value)
        if not text.isascii() and _SURROGATE.search(text):
            # Half of a pair can be written neither to a file nor to a worker.
            raise BadRequestError(f"Parameter {name} is not valid Unicode.")
        pairs.append((name, text))
    return Parameters(pairs)


def _unless(value: int | None, unset: int) -> int | None:
    return None if value == unset else value


def _at_least(parameters: Parameters, name: str, least: int, unset: int) -> int | None:
    """An integer parameter; None if it is absent or has the value that means so.

    Raises:
        BadRequestError: it is too small.
    """
    value = _unless(parameters.integer(name), unset)
    if value is not None and value < least:
        raise BadRequestError(f"Parameter {name} must be at least {least}, not {value}.")
    return value


def _timeout(parameters: Parameters) -> float | None:
    """Seconds that a worker may take for its pending requests; -1, the default, is without limit.

    Raises:
        BadRequestError: it is below -1.
    """
    value = parameters.integer("timeout")
    if value is None or value == -1:
        return None
    if value < -1:
        raise BadRequestError(f"Parameter timeout must be -1 or more, not {value}.")
    return float(value)
