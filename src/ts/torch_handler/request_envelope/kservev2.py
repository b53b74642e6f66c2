"""`ts.torch_handler.request_envelope.kservev2`."""

from relight.handlers.envelopes.kservev2 import KServev2Envelope

__all__ = ["KServev2Envelope"]
