"""The standard health service (`grpc.health.v1`): the server as a whole, and each service that is served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2

from relight.api.grpc.call import Call, Method
from relight.api.grpc.status import Code, Status

if TYPE_CHECKING:
    from relight.serving.registry import Registry

SERVICE = "grpc.health.v1.Health"
_INTERVAL = 1.0
"""Seconds between two looks at the models, while anybody watches."""
_Answer = health_pb2.HealthCheckResponse


class HealthService:
    """`Check` and `Watch`.

    Args:
        registry: The models.
        services: Full names of the services beside this one.
    """

    def __init__(self, registry: Registry, services: frozenset[str]) -> None:
        self._registry = registry
        self._services = services | {"", SERVICE}
        self._watchers: dict[Call, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def methods(self) -> list[Method]:
        """The methods, to be served."""
        return [Method(f"/{SERVICE}/Check", self._check), Method(f"/{SERVICE}/Watch", self._watch)]

    def _status(self) -> int:
        return int(_Answer.NOT_SERVING if self._registry.health() == "Unhealthy" else _Answer.SERVING)

    def _check(self, call: Call, message: bytes) -> None:
        service = health_pb2.HealthCheckRequest.FromString(message).service
        if service not in self._services:
            call.end(Status(Code.NOT_FOUND, f"Unknown service: {service}"))
        else:
            call.finish(_response(self._status()))

    def _watch(self, call: Call, message: bytes) -> None:
        service = health_pb2.HealthCheckRequest.FromString(message).service
        if service not in self._services:
            # A service may come to be; here none does, but the call stays open as the protocol has it.
            call.send(_response(_Answer.SERVICE_UNKNOWN))
            call.on_stop = call.finish
            return
        status = self._status()
        call.send(_response(status))
        self._watchers[call] = status
        call.on_cancel = lambda: self._forget(call)
        call.on_stop = lambda: self._stop(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _forget(self, call: Call) -> None:
        self._watchers.pop(call, None)

    def _stop(self, call: Call) -> None:
        self._forget(call)
        call.finish(_response(_Answer.NOT_SERVING))

    def _look(self) -> None:
        """Tell those who watch what has changed."""
        self._timer = None
        status = self._status()
        for call, told in list(self._watchers.items()):
            if told != status:
                self._watchers[call] = status
                call.send(_response(status))
        if self._watchers:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._look)


def _response(status: int) -> bytes:
    return _Answer(status=status).SerializeToString()  # type: ignore[no-any-return]
