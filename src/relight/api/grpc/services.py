"""The two gRPC listeners, and which services each of them has (grpc_api.md §1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2

from relight.api.grpc import inference, management, open_inference
from relight.api.grpc.health import HealthService
from relight.api.grpc.inference import InferenceService
from relight.api.grpc.interceptors import ModelControlInterceptor, TokenInterceptor
from relight.api.grpc.listener import GrpcListener, Limits
from relight.api.grpc.management import ManagementService
from relight.api.grpc.open_inference import OpenInferenceService
from relight.api.grpc.reflection import ReflectionService
from relight.api.grpc.sequences import SequenceService
from relight.protos import inference_pb2, management_pb2, open_inference_grpc_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

    from relight.api.grpc.interceptors import Interceptor
    from relight.security.tokens import TokenAuthority
    from relight.serving.registry import Registry
    from relight.settings import Settings
    from relight.telemetry.access_log import AccessLog


def inference_listener(
    settings: Settings, registry: Registry, access_log: AccessLog, tokens: TokenAuthority | None
) -> GrpcListener:
    """The listener of the inference port.

    Args:
        settings: Of the server.
        registry: The models.
        access_log: Where calls are recorded.
        tokens: Who may call; None without token authorization.
    """
    interceptors = [TokenInterceptor(tokens, "inference")] if tokens is not None else []
    listener = GrpcListener(Limits(settings, "inference"), access_log, interceptors)
    listener.add(InferenceService(registry).methods())
    listener.add(SequenceService(registry, settings).methods())
    names = [inference.SERVICE]
    # The details of an error (StreamPredictions2) are of a type that nothing else refers to.
    files: list[FileDescriptor] = [inference_pb2.DESCRIPTOR, error_details_pb2.DESCRIPTOR]
    renamed: list[tuple[FileDescriptor, str]] = []
    if settings.ts_open_inference_protocol:
        listener.add(OpenInferenceService(registry).methods())
        names += [open_inference.TORCHSERVE_SERVICE, open_inference.OFFICIAL_SERVICE]
        files.append(open_inference_grpc_pb2.DESCRIPTOR)
        renamed.append((open_inference_grpc_pb2.DESCRIPTOR, open_inference.OFFICIAL_PACKAGE))
    listener.add(HealthService(registry, frozenset(names)).methods())
    listener.add(ReflectionService([*files, health_pb2.DESCRIPTOR], renamed).methods())
    return listener


def management_listener(
    settings: Settings, registry: Registry, access_log: AccessLog, tokens: TokenAuthority | None
) -> GrpcListener:
    """The listener of the management port; the arguments are those of `inference_listener`."""
    interceptors: list[Interceptor] = []
    if tokens is not None:
        interceptors.append(TokenInterceptor(tokens, "management"))
    if not settings.enable_model_api:
        interceptors.append(ModelControlInterceptor())
    listener = GrpcListener(Limits(settings, "management"), access_log, interceptors)
    listener.add(ManagementService(registry, listener).methods())
    listener.add(HealthService(registry, frozenset([management.SERVICE])).methods())
    listener.add(ReflectionService([management_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR]).methods())
    return listener
