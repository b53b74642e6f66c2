"""A client of relight and TorchServe: synchronous and asynchronous, over HTTP and gRPC, behind one interface.

    from relight.client import Client

    with Client("http://127.0.0.1:8080", management="http://127.0.0.1:8081", key_file="key_file.json") as client:
        print(client.predict("digits", image).json())

Addresses that begin with `grpc://` are spoken to over gRPC; the calls stay the same. grpcio, httpx and numpy are
imported when they are needed.
"""

from relight.client.async_client import AsyncClient
from relight.client.endpoint import TLS
from relight.client.errors import (
    Cancelled,
    ClientError,
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    ModelNotFound,
    ModelVersionNotFound,
    NotFound,
    PredictionFailed,
    ServerError,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
    WorkerDied,
)
from relight.client.keys import KeyFile, Keys, from_key_file
from relight.client.payload import Inputs
from relight.client.results import Health, ModelDescription, ModelEntry, Prediction, QueueStatus, Worker
from relight.client.sessions import AsyncSession, Session
from relight.client.sync_client import Client

__all__ = [
    "TLS",
    "AsyncClient",
    "AsyncSession",
    "Cancelled",
    "Client",
    "ClientError",
    "Conflict",
    "DeadlineExceeded",
    "Forbidden",
    "Health",
    "Inputs",
    "InvalidRequest",
    "KeyFile",
    "Keys",
    "ModelDescription",
    "ModelEntry",
    "ModelNotFound",
    "ModelVersionNotFound",
    "NotFound",
    "Prediction",
    "PredictionFailed",
    "QueueStatus",
    "ServerError",
    "Session",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unsupported",
    "Worker",
    "WorkerDied",
    "from_key_file",
]
