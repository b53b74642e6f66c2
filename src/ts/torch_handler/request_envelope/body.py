"""`ts.torch_handler.request_envelope.body`."""

from relight.handlers.envelopes.body import BodyEnvelope

__all__ = ["BodyEnvelope"]
