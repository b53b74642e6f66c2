"""Server reflection, so that tools such as grpcurl need no .proto files (`grpc.reflection.v1` and `v1alpha`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as pb2

from relight.api.grpc.call import Call, Method
from relight.api.grpc.status import Code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.descriptor import FileDescriptor

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_NAME = "ServerReflection"


class ReflectionService:
    """Answers what services there are, and what their messages look like.

    The two versions of the protocol have the same messages, so one implementation serves both names.

    Args:
        files: The files that declare the services of the listener; what they import is found through them.
        renamed: Files that are served under another package too.
    """

    def __init__(self, files: Sequence[FileDescriptor], renamed: Sequence[tuple[FileDescriptor, str]] = ()) -> None:
        self._files: dict[str, FileDescriptorProto] = {}
        self._symbols: dict[str, str] = {}
        self._services: list[str] = []
        for file in (*files, pb2.DESCRIPTOR):
            self._add_with_imports(file)
        for file, package in (*renamed, (pb2.DESCRIPTOR, PACKAGES[0])):
            self._add(_under(file, package))
        declared = [*files, pb2.DESCRIPTOR]
        self._services = sorted(
            [f"{file.package}.{name}" for file in declared for name in file.services_by_name]
            + [f"{package}.{name}" for file, package in renamed for name in file.services_by_name]
            + [f"{PACKAGES[0]}.{_NAME}"]
        )

    def methods(self) -> list[Method]:
        """The methods, to be served."""
        return [
            Method(f"/{package}.{_NAME}/ServerReflectionInfo", self._message, lambda call: call.finish())
            for package in PACKAGES
        ]

    def _message(self, call: Call, message: bytes) -> None:
        request = pb2.ServerReflectionRequest.FromString(message)
        response = pb2.ServerReflectionResponse(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            self._answer_file(response, request.file_by_filename, request.file_by_filename)
        elif kind == "file_containing_symbol":
            symbol = request.file_containing_symbol
            self._answer_file(response, self._symbols.get(symbol, ""), symbol)
        elif kind == "all_extension_numbers_of_type" and request.all_extension_numbers_of_type in self._symbols:
            response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        else:
            _refuse(response, Code.NOT_FOUND, "Nothing of that kind is declared here")
        call.on_stop = call.finish
        call.send(response.SerializeToString())

    def _answer_file(self, response: Any, name: str, asked: str) -> None:
        if name not in self._files:
            _refuse(response, Code.NOT_FOUND, f"Not found: {asked}")
            return
        seen: dict[str, None] = {}
        pending = [name]
        while pending:
            current = pending.pop()
            if current not in seen and current in self._files:
                seen[current] = None
                pending += self._files[current].dependency
        for found in seen:
            response.file_descriptor_response.file_descriptor_proto.append(self._files[found].SerializeToString())

    # -- what is declared ----------------------------------------------------------------------------------------

    def _add_with_imports(self, file: FileDescriptor) -> None:
        if file.name not in self._files:
            for imported in file.dependencies:
                self._add_with_imports(imported)
            self._add(FileDescriptorProto.FromString(file.serialized_pb))

    def _add(self, file: FileDescriptorProto) -> None:
        self._files[file.name] = file
        for symbol in _symbols(file):
            self._symbols[symbol] = file.name


def _refuse(response: Any, code: Code, text: str) -> None:
    response.error_response.error_code = int(code)
    response.error_response.error_message = text


def _symbols(file: FileDescriptorProto) -> Iterator[str]:
    """The full names of all that a file declares."""
    for service in file.service:
        yield f"{file.package}.{service.name}"
        for method in service.method:
            yield f"{file.package}.{service.name}.{method.name}"
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}"
    for message in file.message_type:
        yield from _symbols_of_message(message, file.package)


def _symbols_of_message(message: Any, scope: str) -> Iterator[str]:
    name = f"{scope}.{message.name}"
    yield name
    for field in message.field:
        yield f"{name}.{field.name}"
    for enum in message.enum_type:
        yield f"{name}.{enum.name}"
    for nested in message.nested_type:
        yield from _symbols_of_message(nested, name)


def _under(file: FileDescriptor, package: str) -> FileDescriptorProto:
    """A copy of a file that declares the same in another package."""
    copy = FileDescriptorProto.FromString(file.serialized_pb)
    old, new = f".{copy.package}.", f".{package}."
    copy.name = f"{package.replace('.', '/')}/{copy.name.rpartition('/')[2]}"
    copy.package = package
    pending = list(copy.message_type)
    while pending:
        message = pending.pop()
        pending += message.nested_type
        for field in message.field:
            # Even an empty name would make a number a message.
            if field.type_name:
                field.type_name = field.type_name.replace(old, new, 1)
    for service in copy.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, new, 1)
            method.output_type = method.output_type.replace(old, new, 1)
    return copy
