"""The envelope of a server (`service_envelope`), found by its name and put around a handler."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING

from relight.handlers.envelopes.base import BaseEnvelope

if TYPE_CHECKING:
    from relight.runtime.handler_loader import EntryPoint

ENVELOPES = {
    "body": "relight.handlers.envelopes.body:BodyEnvelope",
    "json": "relight.handlers.envelopes.instances:JSONEnvelope",
    "kserve": "relight.handlers.envelopes.kserve:KServeEnvelope",
    "kservev2": "relight.handlers.envelopes.kservev2:KServev2Envelope",
}
"""Where the built-in envelopes are, by the names that `service_envelope` knows them under."""


class EnvelopeError(Exception):
    """The configured envelope does not exist, or is none."""


def enclose(entry: EntryPoint, name: str) -> EntryPoint:
    """Return an entry point whose batches go through an envelope; its `initialize` is the handler's own.

    Args:
        entry: The handler.
        name: One of `ENVELOPES`, or `module:Class`, a `BaseEnvelope` from the archive, PYTHONPATH or a package.

    Raises:
        EnvelopeError: There is no such envelope.
        Exception: Whatever importing the module or creating the object raises, unchanged.
    """
    return replace(entry, handle=_envelope_class(name)(entry.handle).handle)


def _envelope_class(name: str) -> type[BaseEnvelope]:
    module_name, separator, class_name = ENVELOPES.get(name, name).partition(":")
    if not separator:
        raise EnvelopeError(f"service_envelope={name}: known are {', '.join(ENVELOPES)} and module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise EnvelopeError(f"service_envelope={name}: there is no module {module_name}") from None
    found = getattr(module, class_name, None)
    if not inspect.isclass(found) or not issubclass(found, BaseEnvelope):
        raise EnvelopeError(f"service_envelope={name}: {module_name} has no BaseEnvelope {class_name!r}")
    return found
