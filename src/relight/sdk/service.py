"""The object that pairs a handler's entry point with its context, for code that was written against `ts.service`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relight.sdk.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable

PREDICTION_METRIC = "PredictionTime"
"""Name of the metric that a worker records for every batch, in milliseconds."""


class Service:
    """A loaded handler.

    Args:
        model_name: Registered name of the model.
        model_dir: Directory of the unpacked archive.
        manifest: Decoded manifest, None without one.
        entry_point: Called with the batch and the context.
        gpu: Index of the worker's GPU, None on CPU.
        batch_size: The model's configured batch size.
        limit_max_image_pixels: Kept for old callers; without effect.
        metrics_cache: Metrics of the worker.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any] | None,
        entry_point: Callable[[list[Any], Context], Any] | None,
        gpu: int | None,
        batch_size: int,
        limit_max_image_pixels: bool = True,
        metrics_cache: Any = None,
    ) -> None:
        self._context = Context(
            model_name,
            model_dir,
            manifest,
            batch_size,
            gpu,
            limit_max_image_pixels=limit_max_image_pixels,
            metrics=metrics_cache,
        )
        self._entry_point = entry_point

    @property
    def context(self) -> Context:
        """The context that the entry point is given."""
        return self._context
