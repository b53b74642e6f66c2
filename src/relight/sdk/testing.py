"""What handlers are unit-tested with, without a server."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from relight.sdk.metrics.legacy import MetricsStore
from relight.sdk.util import get_yaml_config


class MockContext:
    """A context good enough for `initialize` and `handle` of most handlers.

    Args:
        model_pt_file: The manifest's `serializedFile`; None leaves it out.
        model_dir: Directory that the other files are in.
        model_file: The manifest's `modelFile`; None leaves it out.
        gpu_id: Index of the GPU, used where CUDA is available.
        model_name: `ModelName` of the metrics.
        model_yaml_config_file: YAML configuration in `model_dir`.

    Raises:
        OSError: The YAML configuration cannot be read.
    """

    def __init__(
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = "model.py",
        gpu_id: str | int | None = "0",
        model_name: str = "mnist",
        model_yaml_config_file: str | None = None,
    ) -> None:
        model = {"serializedFile": model_pt_file, "modelFile": model_file}
        self.manifest: dict[str, Any] = {"model": {key: value for key, value in model.items() if value}}
        self.system_properties: dict[str, Any] = {"model_dir": model_dir}
        if _cuda_is_available():
            self.system_properties["gpu_id"] = gpu_id
        self.explain = False
        self.metrics = MetricsStore({0: str(uuid.uuid4())}, model_name)
        self.model_yaml_config: dict[str, Any] = {}
        if model_yaml_config_file is not None:
            self.model_yaml_config = get_yaml_config(Path(model_dir) / model_yaml_config_file)

    def get_request_header(self, idx: int | str, exp: str) -> Any:
        """Return whether `idx`, `exp` and `explain` are all truthy."""
        return bool(idx and exp and self.explain)


def _cuda_is_available() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())
