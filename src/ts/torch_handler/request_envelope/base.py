"""`ts.torch_handler.request_envelope.base`."""

from relight.handlers.envelopes.base import BaseEnvelope

__all__ = ["BaseEnvelope"]
