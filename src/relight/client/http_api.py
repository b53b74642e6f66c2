"""The operations over HTTP: TorchServe's REST API (rest_api.md §3, §4)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from relight.client import http_tensors
from relight.client.errors import PredictionFailed, ServerError, Unsupported
from relight.client.payload import Payload, as_payload
from relight.client.requests import HttpRequest, HttpResponse, StreamRequest
from relight.client.results import Health, ModelDescription, ModelPage, Prediction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relight.client.api import Inference, InferenceCall, KeyKind, PredictionCall, Turn
    from relight.client.requests import Flow, GrpcRequest

__all__ = ["HttpApi"]

_NO_SEQUENCES = "sequences need a gRPC address: over HTTP there is no call in which both sides go on talking"


class HttpApi:
    """The operations over HTTP."""

    def ping(self, timeout: float | None) -> Flow[Health]:
        """Ask for the server's health; unhealthy is no error."""
        try:
            response = yield HttpRequest("GET", "/ping", timeout=timeout)
            body = response.content
        except ServerError as error:  # unhealthy: a 500 with the same document
            body = error.body
            if b'"status"' not in body:
                raise
        return Health(json.loads(body)["status"])

    def predict(self, call: PredictionCall) -> Flow[Prediction]:
        """Post the data to the prediction route."""
        response: HttpResponse = yield _prediction(call)
        return Prediction(response.content, response.headers.get("content-type"), response.headers)

    def stream(self, call: PredictionCall) -> StreamRequest[bytes]:
        """Post the data to the prediction route; each chunk is a part."""
        return StreamRequest(_prediction(call), bytes)

    def infer(self, call: InferenceCall) -> Flow[Inference]:
        """Post tensors to the route of the Open Inference Protocol."""
        content, headers = http_tensors.encode(call)
        response: HttpResponse = yield HttpRequest(
            "POST",
            _path("v2", "models", call.model, *(["versions", call.version] if call.version else []), "infer"),
            headers=headers,
            content=content,
            timeout=call.timeout,
            failure=PredictionFailed,
        )
        return http_tensors.decode(response)

    def conversation(self, timeout: float | None) -> GrpcRequest:  # noqa: ARG002 - the interface
        """Refuse."""
        raise Unsupported(_NO_SEQUENCES)

    def turn(self, turn: Turn) -> Any:  # noqa: ARG002 - the interface
        """Refuse."""
        raise Unsupported(_NO_SEQUENCES)

    def answer(self, message: Any) -> Prediction:  # noqa: ARG002 - the interface
        """Refuse."""
        raise Unsupported(_NO_SEQUENCES)

    def register(self, options: Mapping[str, str | int | bool], timeout: float | None) -> Flow[str]:
        """Register a model."""
        return (yield from _status("POST", "/models", _params(options), timeout))

    def scale(
        self, model: str, version: str | None, options: Mapping[str, int | bool], timeout: float | None
    ) -> Flow[str]:
        """Change a model's number of workers."""
        return (yield from _status("PUT", _path("models", model, version), _params(options), timeout))

    def describe(
        self, model: str, version: str | None, *, customized: bool, timeout: float | None
    ) -> Flow[list[ModelDescription]]:
        """Describe a version, or `all`."""
        params = {"customized": "true"} if customized else {}
        failure = PredictionFailed if customized else ServerError
        request = HttpRequest("GET", _path("models", model, version), params, timeout=timeout, failure=failure)
        response: HttpResponse = yield request
        return [ModelDescription.parse(each) for each in json.loads(response.content)]

    def page(self, token: str | None, timeout: float | None) -> Flow[ModelPage]:
        """List models, from a token on."""
        params = {} if token is None else {"next_page_token": token}
        response: HttpResponse = yield HttpRequest("GET", "/models", params, timeout=timeout)
        return ModelPage.parse(response.content)

    def set_default(self, model: str, version: str, timeout: float | None) -> Flow[str]:
        """Make a version the default one."""
        return (yield from _status("PUT", _path("models", model, version, "set-default"), {}, timeout))

    def unregister(self, model: str, version: str | None, timeout: float | None) -> Flow[str]:
        """Remove a version."""
        return (yield from _status("DELETE", _path("models", model, version), {}, timeout))

    def renew(self, kind: KeyKind, api_key: str, timeout: float | None) -> Flow[None]:
        """Replace a token; the new one is in the key file."""
        headers = {"Authorization": f"Bearer {api_key}"}
        yield HttpRequest("GET", "/token", {"type": kind}, headers, timeout=timeout)


def _prediction(call: PredictionCall) -> HttpRequest:
    payload = as_payload(call.data)
    headers = dict(call.headers or {})
    if isinstance(payload, Payload) and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = payload.media_type
    return HttpRequest(
        "POST",
        _path("predictions", call.model, call.version),
        headers=headers,
        content=payload.content if isinstance(payload, Payload) else b"",
        parts=None if isinstance(payload, Payload) else payload,
        timeout=call.timeout,
        failure=PredictionFailed,
    )


def _status(method: str, path: str, params: Mapping[str, str], timeout: float | None) -> Flow[str]:
    response: HttpResponse = yield HttpRequest(method, path, params, timeout=timeout)
    status: str = json.loads(response.content)["status"]
    return status


def _path(*segments: str | None) -> str:
    given = [each for each in segments if each is not None]
    if not all(given):
        raise ValueError("names and versions cannot be empty")  # another route, and another meaning
    return "".join(f"/{quote(each, safe='')}" for each in given)


def _params(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
