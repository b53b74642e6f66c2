"""`ts.torch_handler.request_envelope.kserve`."""

from relight.handlers.envelopes.kserve import KServeEnvelope

__all__ = ["KServeEnvelope"]
