"""The calls of the gRPC management API, as functions that return the text of the answer."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from tests.support.grpc_api import CALL_S

from relight.protos import management_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.grpc_api import Api
    from tests.support.server import Server

PROCESSING = "Processing worker updates..."
NO_WORKERS = (
    'Model "{}" Version: {} registered with 0 initial workers. Use scale workers API to add workers for the model.'
)


def register(api: Api, url: str = "", *, timeout: float = CALL_S, **fields: Any) -> str:
    """Register a model; the fields are those of `RegisterModelRequest`."""
    message = management_pb2.RegisterModelRequest(url=url, **fields)
    return api.management.RegisterModel(message, timeout=timeout, metadata=api.metadata).msg


def unregister(api: Api, model: str = "", version: str = "") -> str:
    """Unregister a version, the default one unless given."""
    message = management_pb2.UnregisterModelRequest(model_name=model, model_version=version)
    return api.management.UnregisterModel(message, timeout=CALL_S, metadata=api.metadata).msg


def scale(api: Api, model: str = "", **fields: Any) -> str:
    """Scale a model; the fields are those of `ScaleWorkerRequest`."""
    message = management_pb2.ScaleWorkerRequest(model_name=model, **fields)
    return api.management.ScaleWorker(message, timeout=CALL_S, metadata=api.metadata).msg


def set_default(api: Api, model: str = "", version: str = "") -> str:
    """Make a version the default one."""
    message = management_pb2.SetDefaultRequest(model_name=model, model_version=version)
    return api.management.SetDefault(message, timeout=CALL_S, metadata=api.metadata).msg


def list_models(api: Api, **fields: int) -> str:
    """List the models; the fields are those of `ListModelsRequest`."""
    message = management_pb2.ListModelsRequest(**fields)
    return api.management.ListModels(message, timeout=CALL_S, metadata=api.metadata).msg


def describe(api: Api, model: str = "", version: str = "", *, customized: bool = False) -> list[dict[str, Any]]:
    """Describe a version, or `all`; the text must be JSON as the server writes it."""
    message = management_pb2.DescribeModelRequest(model_name=model, model_version=version, customized=customized)
    text = api.management.DescribeModel(message, timeout=CALL_S, metadata=api.metadata).msg
    document: list[dict[str, Any]] = json.loads(text)
    assert text == pretty(document)
    return document


def pretty(document: object) -> str:
    """Return the document as the server writes it (§3.3)."""
    return json.dumps(document, indent=2, ensure_ascii=False)


@contextlib.contextmanager
def cleared(server: Server, *names: str) -> Iterator[None]:
    """Have these models gone at the end of the block."""
    try:
        yield
    finally:
        for name in names:
            server.unregister(name)
