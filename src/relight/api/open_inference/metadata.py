"""What the server and its models say of themselves.

A model declares its tensors in its configuration file (model-config.yaml), with keys of relight's own:

    platform: pytorch_torchscript
    inputs:
      - {name: input0, datatype: FP32, shape: [-1, 4]}
    outputs:
      - {name: output0, datatype: FP32, shape: [-1, 2]}

Handlers may use these keys for purposes of their own, so that what does not look like this is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relight.version import TORCHSERVE_VERSION

if TYPE_CHECKING:
    from relight.serving.model import ModelVersion
    from relight.serving.registry import Registry

SERVER_NAME = "torchserve"
SERVER_VERSION = TORCHSERVE_VERSION
REST_EXTENSIONS = ("binary_tensor_data",)
"""Extensions of the protocol that the REST API has."""

_LARGEST = 2**63


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """A tensor that a model declares; a dimension of any size is -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def document(self) -> dict[str, Any]:
        """As the REST API has it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model says of itself; the tensors are those that it declares."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]

    def document(self) -> dict[str, Any]:
        """As the REST API has it."""
        return {
            "name": self.name,
            "versions": list(self.versions),
            "platform": self.platform,
            "inputs": [tensor.document() for tensor in self.inputs],
            "outputs": [tensor.document() for tensor in self.outputs],
        }


def of_model(registry: Registry, name: str, version: str | None) -> ModelMetadata:
    """The metadata of a model.

    Args:
        registry: The models.
        name: Name of the model.
        version: The version whose declarations count; None for the default one.

    Raises:
        ModelNotFoundError: no such model.
        ModelVersionNotFoundError: no such version.
    """
    config = registry.resolve(name, version).settings.config
    platform = config.get("platform")
    return ModelMetadata(
        name,
        tuple(registry.models[name].versions),
        platform if isinstance(platform, str) else "",
        _tensors(config.get("inputs")),
        _tensors(config.get("outputs")),
    )


def _tensors(declared: Any) -> tuple[TensorMetadata, ...]:
    entries = declared if isinstance(declared, list) else []
    return tuple(tensor for entry in entries if (tensor := _tensor(entry)) is not None)


def _tensor(entry: Any) -> TensorMetadata | None:
    if not isinstance(entry, dict):
        return None
    name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
        return None
    if not all(type(dimension) is int and -1 <= dimension < _LARGEST for dimension in shape):
        return None
    return TensorMetadata(name, datatype, tuple(shape))


def is_ready(version: ModelVersion) -> bool:
    """Whether a version can serve now."""
    return version.pool.ready > 0


def is_healthy(version: ModelVersion) -> bool:
    """What TorchServe's service means by ready: nothing is known to be wrong; true while workers load (KEEP)."""
    return version.pool.alive >= version.settings.min_workers
