"""The descriptor pool of relight's messages."""

from google.protobuf import any_pb2, empty_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.rpc import status_pb2


def _with_dependencies() -> DescriptorPool:
    pool = DescriptorPool()
    for module in (any_pb2, empty_pb2, status_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return pool


POOL = _with_dependencies()
"""Holds the files of this package and what they import."""
