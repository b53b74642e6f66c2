"""Builds the Context that a handler is initialised with."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relight.sdk.context import Context
from relight.sdk.streaming import set_current_context

if TYPE_CHECKING:
    from relight.wire.messages import Load


def build_context(load: Load) -> Context:
    """The context of a model that is being loaded (archives_and_handlers.md §2.4, §3).

    Raises:
        OSError: the metrics configuration cannot be read.
        ValueError: the manifest is not JSON.
    """
    from relight.sdk.metrics.cache import MetricsCacheYamlImpl

    metrics = MetricsCacheYamlImpl(load.metrics_config)
    metrics.initialize_cache()
    metrics.set_request_ids(str(uuid.uuid4()))
    metrics.model_name = load.model_name
    context = Context(
        load.model_name,
        load.model_dir,
        _manifest(Path(load.model_dir)),
        load.batch_size,
        load.gpu_id,
        "0.12.0",
        load.limit_max_image_pixels,
        metrics,
        load.config,
    )
    set_current_context(context)
    return context


def _manifest(model_dir: Path) -> dict[str, Any] | None:
    path = model_dir / "MAR-INF" / "MANIFEST.json"
    if not path.is_file():
        return None
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    return manifest
