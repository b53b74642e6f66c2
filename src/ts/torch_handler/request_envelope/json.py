"""`ts.torch_handler.request_envelope.json`."""

from relight.handlers.envelopes.instances import JSONEnvelope

__all__ = ["JSONEnvelope"]
