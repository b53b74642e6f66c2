"""Managing models: what the HTTP and the gRPC API do alike, and the texts that they answer with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from relight.api.describe import describe
from relight.errors import BadRequestError, ModelNotFoundError
from relight.serving.job import Job
from relight.serving.version_settings import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.errors import RelightError
    from relight.serving.model import ModelVersion
    from relight.serving.registry import Registry
    from relight.serving.version_settings import Registration
    from relight.wire.messages import Answer

LIST_LIMIT = 100
"""Models on a page of the list, at most and by default."""
_UPDATING = "Processing worker updates..."
_SCALING = "Workers scaling in progress..."


class Outcome(NamedTuple):
    """What is said of a registration or of scaling, and the HTTP status that goes with it."""

    text: str
    status: int


class ModelManager:
    """Registers, scales, lists and describes models.

    Args:
        registry: The models.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    async def register(self, registration: Registration) -> Outcome:
        """Register a version.

        Raises:
            RelightError: see `Registry.register`.
            BadRequestError: there is no such runtime.
        """
        if registration.runtime is not None and registration.runtime not in RUNTIMES:
            raise BadRequestError(f"Invalid RuntimeType value: {registration.runtime}")
        scaled = await self.registry.register(registration)
        settings = scaled.version.settings
        count = settings.min_workers
        start = f'Model "{settings.name}" Version: {settings.version} registered with {count} initial workers'
        if not count:
            return Outcome(f"{start}. Use scale workers API to add workers for the model.", 200)
        if not registration.synchronous:
            return Outcome(_UPDATING, 202)
        return Outcome(start, 200) if scaled.complete else Outcome(_SCALING, 206)

    async def scale(
        self,
        name: str,
        version: str | None,
        minimum: int,
        maximum: int,
        *,
        synchronous: bool,
        timeout: float | None,
        gpus: int | None,
    ) -> Outcome:
        """Change the number of workers; the arguments are those of `Registry.scale`.

        Raises:
            RelightError: see there.
        """
        scaled = await self.registry.scale(
            name, version, minimum, maximum, synchronous=synchronous, timeout=timeout, gpus=gpus
        )
        if not synchronous:
            return Outcome(_UPDATING, 202)
        if not scaled.complete:
            return Outcome(_SCALING, 206)
        named = "" if version is None else f", version: {version}"
        return Outcome(f"Workers scaled to {minimum} for model: {name}{named}", 200)

    def set_default(self, name: str, version: str) -> str:
        """Make a version the default one.

        Raises:
            RelightError: there is no such model or version.
        """
        self.registry.set_default(name, version)
        return f'Default version successfully updated for model "{name}" to "{version}"'

    async def unregister(self, name: str, version: str | None, timeout: float | None) -> str:
        """Unregister a version; the arguments are those of `Registry.unregister`.

        Raises:
            RelightError: see there.
        """
        await self.registry.unregister(name, version, timeout)
        return f'Model "{name}" unregistered'

    def listing(self, limit: int, start: int, *, token_at_end: bool = False) -> dict[str, Any]:
        """A page of the list of models.

        Args:
            limit: Most models on it.
            start: Index of its first model, in the order of the names.
            token_at_end: Whether a page that ends with the last model names a next one, an empty one.
        """
        models = sorted(self.registry.models.items())
        end = start + limit
        document: dict[str, Any] = {}
        if end < len(models) or (token_at_end and end == len(models)):
            document["nextPageToken"] = str(end)
        document["models"] = [
            {"modelName": name, "modelUrl": model.versions[model.default].settings.url}
            for name, model in models[start:end]
        ]
        return document

    def describe(self, name: str, version: str | None) -> list[dict[str, Any]]:
        """The description of a version, of the default one, or of `all`.

        Raises:
            RelightError: there is no such model or version.
        """
        if version == "all":
            model = self.registry.models.get(name)
            if model is None:
                raise ModelNotFoundError(f"Model not found: {name}")
            return [describe(found) for found in model.versions.values()]
        return [describe(self.registry.resolve(name, version))]


def describe_job(request_id: str, headers: list[tuple[bytes, bytes]], reply: CustomizedReply, arrived: float) -> Job:
    """The job that asks a handler to describe itself; it is never batched with others."""
    return Job(request_id, headers, {"describe": "True"}, [], [], 0, reply, arrived, alone=True)


class CustomizedReply:
    """The Reply of a describe job (rest_api.md §4.5).

    Args:
        version: What is described.
        respond: Given the description, with what the handler says of itself, and the handler's answer.
        fail: Given the error.
    """

    def __init__(
        self,
        version: ModelVersion,
        respond: Callable[[list[dict[str, Any]], Answer], None],
        fail: Callable[[RelightError], None],
    ) -> None:
        self._version = version
        self._respond = respond
        self._fail = fail
        self._chunks: list[bytes] = []

    def chunk(self, answer: Answer, body: bytes | memoryview) -> bool:  # noqa: ARG002 - a Reply's signature
        """A handler that streams its description gets it put together."""
        self._chunks.append(bytes(body))
        return True

    def finish(self, answer: Answer, body: bytes | memoryview) -> None:
        """Answer with the description."""
        text = b"".join([*self._chunks, body])
        document = describe(self._version)
        if text:
            document["customizedMetadata"] = _object(text)
        self._respond([document], answer)

    def fail(self, error: RelightError) -> None:
        """Answer with an error."""
        self._fail(error)


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object that a handler returned; anything else counts as an empty one."""
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
