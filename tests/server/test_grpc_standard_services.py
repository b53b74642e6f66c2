"""The standard health service and server reflection, which TorchServe does not have (grpc_api.md §1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.support.grpc_api import CALL_S, INFERENCE, MANAGEMENT, OPEN_INFERENCE, REFUSED, expect_error

if TYPE_CHECKING:
    from grpc import StreamStreamMultiCallable
    from tests.conftest import ServerFactory
    from tests.server.conftest import Connect
    from tests.support.grpc_api import Api

pytestmark = pytest.mark.fix

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def check(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    status: int = health_pb2_grpc.HealthStub(channel).Check(request, timeout=CALL_S).status
    return status


# Health


def test_health_of_the_inference_port(api: Api) -> None:
    assert check(api.inference_channel) == SERVING
    assert check(api.inference_channel, INFERENCE) == SERVING


def test_health_of_the_management_port(api: Api) -> None:
    assert check(api.management_channel) == SERVING
    assert check(api.management_channel, MANAGEMENT) == SERVING


def test_health_of_an_unknown_service(api: Api) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        check(api.inference_channel, "org.example.Nope")
    assert caught.value.code() == StatusCode.NOT_FOUND


def test_watch_of_an_unknown_service(api: Api) -> None:
    request = health_pb2.HealthCheckRequest(service="org.example.Nope")
    call = health_pb2_grpc.HealthStub(api.inference_channel).Watch(request, timeout=CALL_S)
    assert next(call).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    call.cancel()


def test_health_when_a_model_is_past_its_retry_window(make_grpc_server: ServerFactory, connect: Connect) -> None:
    server = make_grpc_server()
    api = connect(server)
    watched = health_pb2_grpc.HealthStub(api.inference_channel).Watch(health_pb2.HealthCheckRequest(), timeout=CALL_S)
    assert next(watched).status == SERVING
    name = "never"
    (server.gates / f"{name}.broken").touch()
    server.gate(name).open()
    assert server.register("loader_retry.mar", model_name=name, initial_workers=1, synchronous="false").status == 202
    assert next(watched).status == NOT_SERVING
    assert check(api.inference_channel) == NOT_SERVING
    server.unregister(name)
    assert next(watched).status == SERVING
    assert check(api.inference_channel) == SERVING
    watched.cancel()
    server.stop()


def test_health_needs_no_token_but_reflection_does(make_server: ServerFactory, connect: Connect) -> None:
    """Orchestrators probe without one."""
    server = make_server({"disable_token_authorization": "false"})
    api = connect(server)
    for channel in (api.inference_channel, api.management_channel):
        assert check(channel) == SERVING
        with expect_error(StatusCode.PERMISSION_DENIED, REFUSED):
            ProtoReflectionDescriptorDatabase(channel).get_services()
    server.stop()


# Reflection


def test_services_of_the_inference_port(api: Api) -> None:
    services = ProtoReflectionDescriptorDatabase(api.inference_channel).get_services()
    assert {INFERENCE, HEALTH, REFLECTION} <= set(services)
    assert MANAGEMENT not in services
    assert OPEN_INFERENCE not in services


def test_services_of_the_management_port(api: Api) -> None:
    services = ProtoReflectionDescriptorDatabase(api.management_channel).get_services()
    assert {MANAGEMENT, HEALTH, REFLECTION} <= set(services)
    assert INFERENCE not in services


def test_services_with_the_open_inference_protocol(make_server: ServerFactory, connect: Connect) -> None:
    server = make_server({"ts_open_inference_protocol": "true"})
    api = connect(server)
    database = ProtoReflectionDescriptorDatabase(api.inference_channel)
    assert {INFERENCE, OPEN_INFERENCE, "inference.GRPCInferenceService"} <= set(database.get_services())
    for name in (OPEN_INFERENCE, "inference.GRPCInferenceService"):
        service = DescriptorPool(database).FindServiceByName(name)
        assert service.methods_by_name["ModelInfer"].input_type.fields_by_name["raw_input_contents"].number == 7
    server.stop()


def test_description_of_the_inference_service(api: Api) -> None:
    """A client without any proto file finds out how to call, and calls."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(api.inference_channel))
    service = pool.FindServiceByName(INFERENCE)
    assert [method.name for method in service.methods] == [
        "Ping",
        "Predictions",
        "StreamPredictions",
        "StreamPredictions2",
    ]
    described = service.methods_by_name["StreamPredictions2"]
    assert (described.client_streaming, described.server_streaming) == (True, True)
    fields = described.input_type.fields_by_name
    assert {name: field.number for name, field in fields.items()} == {
        "model_name": 1,
        "model_version": 2,
        "input": 3,
        "sequence_id": 4,
    }
    status = described.output_type.fields_by_name["status"].message_type
    assert status is not None
    assert status.full_name == "google.rpc.Status"


def test_description_of_the_management_service(api: Api) -> None:
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(api.management_channel))
    service = pool.FindServiceByName(MANAGEMENT)
    assert {method.name for method in service.methods} == {
        "DescribeModel",
        "ListModels",
        "RegisterModel",
        "ScaleWorker",
        "SetDefault",
        "UnregisterModel",
    }
    assert {method.output_type.name for method in service.methods if method.output_type} == {"ManagementResponse"}
    scale = pool.FindMessageTypeByName("org.pytorch.serve.grpc.management.ScaleWorkerRequest")
    assert scale.fields_by_name["timeout"].number == 7


@pytest.mark.parametrize("name", [HEALTH, REFLECTION, "grpc.reflection.v1.ServerReflection"])
def test_description_of_the_standard_services(api: Api, name: str) -> None:
    for channel in (api.inference_channel, api.management_channel):
        service = DescriptorPool(ProtoReflectionDescriptorDatabase(channel)).FindServiceByName(name)
        assert service.full_name == name
        for method in service.methods:
            assert method.input_type is not None
            assert method.input_type.file.package == service.file.package


def test_description_of_the_details_of_an_error(api: Api) -> None:
    """A tool that prints an answer of StreamPredictions2 needs it; no field names the type."""
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(api.inference_channel))
    found = pool.FindMessageTypeByName("google.rpc.ErrorInfo")
    assert [field.name for field in found.fields] == ["reason", "domain", "metadata"]


def test_unknown_symbol(api: Api) -> None:
    with pytest.raises(KeyError):
        ProtoReflectionDescriptorDatabase(api.inference_channel).FindFileContainingSymbol("org.example.Nope")


def test_current_name_of_the_reflection_service(api: Api) -> None:
    """grpcurl asks for `v1` first; its messages are those of `v1alpha`."""
    call: StreamStreamMultiCallable[reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse]
    call = api.inference_channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    requests = [reflection_pb2.ServerReflectionRequest(list_services="*") for _ in range(2)]
    answers = list(call(iter(requests), timeout=CALL_S))
    assert len(answers) == 2
    for answer in answers:
        assert INFERENCE in {service.name for service in answer.list_services_response.service}
