"""gRPC loads: what grpcgen.c sends, and what has to come back.

The messages are written by hand from the published protos, as they are two and neither server's code should make them.
"""

from __future__ import annotations

from dataclasses import dataclass

_SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"


@dataclass(frozen=True)
class GrpcLoad:
    """What one run of grpcgen.c sends.

    Args:
        method: ``Predictions`` or ``StreamPredictions``.
        predictions: The messages of each answer, in order.
        connections: As many channels.
        streams: Calls at a time on each connection.
    """

    method: str
    predictions: tuple[bytes, ...]
    connections: int = 1
    streams: int = 1

    @property
    def path(self) -> str:
        """Path of the method."""
        return f"{_SERVICE}/{self.method}"

    def request(self, model: str) -> bytes:
        """A PredictionsRequest: model_name is field 1, input field 3, a map from names to bytes."""
        entry = _field(1, b"data") + _field(2, b"x")
        return _field(1, model.encode()) + _field(3, entry)

    def answer(self) -> bytes:
        """The PredictionResponses of an answer, prediction being field 1, each with its flag and length."""
        messages = [_field(1, prediction) for prediction in self.predictions]
        return b"".join(b"\x00" + len(message).to_bytes(4, "big") + message for message in messages)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of less than 128 bytes."""
    return bytes((number << 3 | 2, len(content))) + content
