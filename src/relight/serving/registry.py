"""Models, their versions, and the default one of each: register, scale, unregister."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from relight.archive.model_config import ModelConfig, parse_model_config
from relight.errors import (
    BadRequestError,
    ConflictError,
    InternalServerError,
    InvalidModelError,
    InvalidModelVersionError,
    ModelNotFoundError,
    ModelVersionNotFoundError,
    RelightError,
)
from relight.serving.devices import DeviceAssigner, count_gpus
from relight.serving.model import ModelVersion
from relight.serving.torch_need import wants_torch
from relight.serving.version_settings import MOST_WORKERS, Registration, choose_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relight.archive.store import Archive, ModelStore
    from relight.serving.diagnosis import Diagnosis
    from relight.serving.launchers.base import Launcher
    from relight.settings import Settings

logger = logging.getLogger("relight.registry")

Health = Literal["Healthy", "Partial Healthy", "Unhealthy"]
"""Of all models: each has its workers; each has some of them; one has none of those it should have."""


@dataclass(slots=True)
class Model:
    """A name and its versions.

    Attributes:
        name: The registered name.
        default: The version that requests without one get: the first one registered, until another is chosen.
        versions: By version, in the order of registration.
    """

    name: str
    default: str
    versions: dict[str, ModelVersion] = field(default_factory=dict)


class Scaled(NamedTuple):
    """Outcome of a registration or of scaling: the version, and whether its workers are all there."""

    version: ModelVersion
    complete: bool


class Registry:
    """All models of one server. Every method runs on the event loop.

    Args:
        settings: Of the server.
        store: Where archives come from.
        launcher: Starts workers.
    """

    def __init__(self, settings: Settings, store: ModelStore, launcher: Launcher) -> None:
        self.models: dict[str, Model] = {}
        self.startup_names: set[str] = set()
        """Names of models loaded at start, unless a version of them was unregistered since."""
        self._settings = settings
        self._store = store
        self._launcher = launcher
        self._worker_ids = itertools.count(settings.initial_worker_port)
        found = count_gpus()
        self.gpus = found if settings.number_of_gpu is None else min(found, settings.number_of_gpu)

    # -- looking up ----------------------------------------------------------------------------------------------

    def resolve(self, name: str, version: str | None = None) -> ModelVersion:
        """The version that a request means.

        Args:
            name: Name of the model.
            version: The version; None for the default one.

        Raises:
            ModelNotFoundError: no such model.
            ModelVersionNotFoundError: no such version.
        """
        model = self.models.get(name)
        if model is None:
            raise ModelNotFoundError(f"Model not found: {name}")
        found = model.versions.get(model.default if version is None else version)
        if found is None:
            raise ModelVersionNotFoundError(f"Model version: {version} does not exist for model: {name}")
        return found

    def versions(self) -> Iterator[ModelVersion]:
        """All versions of all models."""
        for model in self.models.values():
            yield from model.versions.values()

    def health(self) -> Health:
        """Whether the default version of every model has its workers, counting those that may recover."""
        health: Health = "Healthy"
        for model in self.models.values():
            version = model.versions[model.default]
            if version.pool.alive < version.settings.min_workers:
                if not version.pool.alive:
                    return "Unhealthy"
                health = "Partial Healthy"
        return health

    # -- changing ------------------------------------------------------------------------------------------------

    async def register(self, registration: Registration) -> Scaled:
        """Register a version and start its workers.

        A registration that fails leaves nothing behind: no version, no worker, no file.

        Raises:
            RelightError: what was wrong; see `ModelStore.open` and `choose_settings` for the kinds.
            ConflictError: this version is registered already.
            InternalServerError: a worker could not load the model (only if `synchronous`).
        """
        version = await self._add(registration)
        settings = version.settings
        if not settings.min_workers:
            return Scaled(version, complete=True)
        started = await version.pool.scale(settings.min_workers, settings.max_workers)
        if not registration.synchronous:
            return Scaled(version, complete=False)
        diagnosis = await version.pool.loaded(started)
        if diagnosis is not None:
            await self._remove(version, 0)
            raise _failed_to_start(settings.name, settings.version, diagnosis)
        return Scaled(version, complete=version.pool.ready >= settings.min_workers)

    async def _add(self, registration: Registration) -> ModelVersion:
        archive = await asyncio.to_thread(
            self._store.open,
            registration.url,
            s3_sse_kms=registration.s3_sse_kms,
            trusted=registration.at_startup,
        )
        try:
            config = await asyncio.to_thread(_read_config, archive)
            settings = choose_settings(registration, archive, config, self._settings, self.gpus)
            self._check_new(settings.name, settings.version)
            serialized = archive.manifest.serialized_file if archive.manifest else None
            version = ModelVersion(
                settings,
                archive,
                self._launcher,
                lambda: next(self._worker_ids),
                DeviceAssigner(self._devices(settings.device_type, settings.device_ids)),
                wants_torch(archive.real_dir, settings.handler, serialized),
            )
        except BaseException:
            await asyncio.to_thread(archive.discard, delete_download=True)
            raise
        model = self.models.setdefault(settings.name, Model(settings.name, settings.version))
        model.versions[settings.version] = version
        if registration.at_startup:
            self.startup_names.add(settings.name)
        logger.info("Model %s version %s registered", settings.name, settings.version)
        return version

    def _check_new(self, name: str, version: str) -> None:
        model = self.models.get(name)
        if model is not None and version in model.versions:
            raise ConflictError(f"Model version {version} is already registered for model {name}")

    def _devices(self, device_type: str, device_ids: list[int]) -> list[int]:
        if device_type != "gpu":
            return []
        return device_ids or list(range(self.gpus))

    async def scale(
        self,
        name: str,
        version: str | None,
        minimum: int,
        maximum: int,
        *,
        synchronous: bool = False,
        timeout: float | None = None,
        gpus: int | None = None,
    ) -> Scaled:
        """Change the number of workers of a version.

        Args:
            name: Name of the model.
            version: The version; None for the default one.
            minimum: Fewest workers.
            maximum: Most workers.
            synchronous: Whether to wait until it is done.
            timeout: Seconds that a surplus worker may take for its pending requests; None for as long as it takes.
            gpus: How many of the workers are on GPUs; None for all, where there are any.

        Raises:
            BadRequestError: the numbers are impossible.
            ModelNotFoundError: no such model.
            ModelVersionNotFoundError: no such version.
            InternalServerError: a new worker could not load the model (only if `synchronous`).
        """
        if minimum < 0:
            raise BadRequestError("min_worker cannot be negative.")
        if maximum < minimum:
            raise BadRequestError("max_worker cannot be less than min_worker.")
        if minimum > MOST_WORKERS:
            raise BadRequestError(f"min_worker is {minimum}; a model may have {MOST_WORKERS} workers at most.")
        if gpus is not None and gpus > self.gpus:
            raise BadRequestError(f"number_gpu is {gpus}, but there are {self.gpus} GPUs.")
        found = self.resolve(name, version)
        scaling = asyncio.get_running_loop().create_task(found.pool.scale(minimum, maximum, timeout=timeout, gpus=gpus))
        _keep(scaling)
        if not synchronous:
            return Scaled(found, complete=False)
        diagnosis = await found.pool.loaded(await scaling)
        if diagnosis is not None:
            raise _failed_to_start(name, version, diagnosis)
        return Scaled(found, complete=found.pool.alive >= minimum)

    async def unregister(self, name: str, version: str | None, timeout: float | None = None) -> None:
        """Remove a version; pending requests are answered first.

        Args:
            name: Name of the model.
            version: The version; None for the default one.
            timeout: Seconds that pending requests may take; None for as long as it takes.

        Raises:
            ModelNotFoundError: no such model.
            ModelVersionNotFoundError: no such version.
            InvalidModelVersionError: it is the default version, and there are others.
        """
        found = self.resolve(name, version)
        model = self.models[name]
        if found.settings.version == model.default and len(model.versions) > 1:
            raise InvalidModelVersionError(f"Cannot remove default version for model {name}")
        await self._remove(found, timeout)

    async def _remove(self, version: ModelVersion, timeout: float | None) -> None:
        settings = version.settings
        model = self.models.get(settings.name)
        if model is None or model.versions.get(settings.version) is not version:
            return
        del model.versions[settings.version]
        self.startup_names.discard(settings.name)
        if not model.versions:
            del self.models[settings.name]
        elif model.default == settings.version:
            model.default = next(iter(model.versions))
        await version.close(timeout)
        await asyncio.to_thread(version.archive.discard, delete_download=True)
        logger.info("Model %s version %s unregistered", settings.name, settings.version)

    def set_default(self, name: str, version: str) -> None:
        """Make a version the default one.

        Raises:
            ModelNotFoundError: no such model.
            ModelVersionNotFoundError: no such version.
        """
        model = self.models.get(name)
        if model is None:
            raise ModelNotFoundError(f"Model not found: {name}")
        if version not in model.versions:
            raise ModelVersionNotFoundError(f"Model version {version} does not exist for model {name}")
        model.default = version

    # -- start and end -------------------------------------------------------------------------------------------

    async def load_initial(self) -> None:
        """Register the models that the settings name; one that fails is logged, and the others are loaded."""
        wanted = self._settings.load_models
        sources = [(None, name) for name in self._store.list_all()] if wanted == "all" else list(wanted)
        for name, location in sources:
            logger.info("Loading initial models: %s", location)
            try:
                await self.register(
                    Registration(
                        url=location,
                        model_name=name,
                        synchronous=False,
                        at_startup=True,
                        default_name=_name_from(location),
                    )
                )
            except RelightError as error:
                logger.warning("Failed to load model: %s: %s", location, error.message)

    async def close(self, timeout: float) -> None:
        """Let pending requests end and end all workers; downloads are broken off.

        Args:
            timeout: Seconds that pending requests may take.
        """
        self._store.close()
        versions = list(self.versions())
        await asyncio.gather(*(version.close(timeout) for version in versions))
        for version in versions:
            await asyncio.to_thread(version.archive.discard, delete_download=False)
        self.models.clear()


def _read_config(archive: Archive) -> ModelConfig:
    name = archive.manifest.config_file if archive.manifest else None
    if name is None:
        return ModelConfig()
    config, warnings = parse_model_config(archive.path_of(name))
    try:
        msgspec.msgpack.encode(config.raw)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # What YAML can say and no worker can be told, such as a list that contains itself.
        raise InvalidModelError(f"Failed to parse model config yaml file. {error}") from error
    for warning in warnings:
        logger.warning("%s", warning)
    return config


def _failed_to_start(name: str, version: str | None, diagnosis: Diagnosis) -> InternalServerError:
    return InternalServerError(
        # TorchServe's text for scaling without a version says null; clients match it.
        f"Failed to start workers for model {name} version: {'null' if version is None else version}",
        507 if diagnosis.exhausted else 500,
    )


def _name_from(location: str) -> str:
    """The name of a start-up model whose archive has none: the file's, without its last extension."""
    return re.sub(r"\W", "_", Path(location.rstrip("/")).stem)


_background: set[asyncio.Task[object]] = set()


def _keep(task: asyncio.Task[object]) -> None:
    """Hold a reference to a task that nobody awaits, as the event loop does not."""
    _background.add(task)
    task.add_done_callback(_background.discard)
