"""OpenAPI 3.0.1 documents, rendered from the tables of `routes` (rest_api.md §5).

Members are in TorchServe's order and everything is inlined: there are no `components`, `servers` or `tags`. Calls share
documents, so whoever gets one must not change it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from relight.api.http import routes
from relight.version import TORCHSERVE_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relight.api.http.route_parts import Body, Parameter, Response, Route, Schema

_OPENAPI = "3.0.1"


@cache
def listener_document(*, inference: bool, management: bool, metrics: bool) -> dict[str, object]:
    """What a listener serves.

    Args:
        inference: Whether it serves the inference API.
        management: Whether it serves the management API.
        metrics: Whether it serves the metrics API. Beside either of the others `/metrics` is listed in any case (KEEP).
    """
    listed: list[Route] = []
    if inference or management:
        listed += routes.ROOT
    if inference:
        listed += (*routes.INFERENCE, *routes.API_DESCRIPTION)
    if management:
        listed += (*routes.MODELS, *routes.MODEL)
    if management and not inference:
        listed += routes.API_DESCRIPTION
    if inference or management or metrics:
        listed += routes.METRICS
    if inference:
        listed += routes.MORE_INFERENCE
    if management:
        listed += routes.MORE_MANAGEMENT
    info = {
        "title": "TorchServe APIs",
        "description": "Serves PyTorch models; compatible with TorchServe.",
        "version": TORCHSERVE_VERSION,
    }
    return {"openapi": _OPENAPI, "info": info, "paths": _paths(listed)}


def model_management_document(name: str) -> dict[str, object]:
    """How to manage one model (rest_api.md §5.2).

    Args:
        name: Of the model.
    """
    info = {"title": f"RESTful Management API for: {name}", "version": TORCHSERVE_VERSION}
    return {"openapi": _OPENAPI, "info": info, "paths": _management_paths()}


def model_inference_document(name: str) -> dict[str, object]:
    """How to predict with one model (rest_api.md §5.3).

    Args:
        name: Of the model.
    """
    # Not cached: models come and go, and their names would stay.
    info = {"title": f"RESTful API for: {name}", "version": "1.0.0"}
    return {"openapi": _OPENAPI, "info": info, "paths": _paths(routes.predictions_of(name))}


@cache
def _management_paths() -> dict[str, dict[str, object]]:
    return _paths(routes.MODEL)


def _paths(listed: Iterable[Route]) -> dict[str, dict[str, object]]:
    paths: dict[str, dict[str, object]] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return paths


def _operation(route: Route) -> dict[str, object]:
    operation: dict[str, object] = {
        "description": route.description,
        "operationId": route.operation_id,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
    }
    if route.body is not None:
        operation["requestBody"] = _body(route.body)
    operation["responses"] = {str(response.status): _response(response) for response in route.responses}
    if route.deprecated:
        operation["deprecated"] = True
    return operation


def _parameter(parameter: Parameter) -> dict[str, object]:
    return {
        "in": parameter.place,
        "name": parameter.name,
        "description": parameter.description,
        "required": parameter.required,
        "schema": _schema(parameter.schema),
    }


def _body(body: Body) -> dict[str, object]:
    return {
        "description": body.description,
        "content": {body.media: {"schema": _schema(body.schema)}},
        "required": True,
    }


def _response(response: Response) -> dict[str, object]:
    rendered: dict[str, object] = {"description": response.description}
    if response.media is not None and response.schema is not None:
        rendered["content"] = {response.media: {"schema": _schema(response.schema)}}
    return rendered


def _schema(schema: Schema) -> dict[str, object]:
    required = [member.name for member in schema.properties if member.required]
    members: dict[str, object] = {
        "type": schema.type,
        "format": schema.format,
        "required": required,
        "properties": {member.name: _schema(member.schema) for member in schema.properties},
        "items": None if schema.items is None else _schema(schema.items),
        "description": schema.description,
        "enum": list(schema.enum),
        "default": schema.default,
    }
    # Whatever is absent is empty, but a default may be the empty text.
    return {name: value for name, value in members.items() if value or (name == "default" and value is not None)}
