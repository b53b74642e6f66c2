"""`BaseHandler`, which most custom handlers extend: load a PyTorch model, then preprocess, inference, postprocess.

Names, order of steps and log texts are TorchServe's. Importing this module imports torch and nothing that may touch a
GPU: a worker is forked from a process that must not have done so.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from relight.handlers import compilation, devices
from relight.handlers.profiling import run_profiled
from relight.sdk.timing import timed
from relight.sdk.util import list_classes_from_module, load_label_mapping

if TYPE_CHECKING:
    from relight.sdk.context import Context

logger = logging.getLogger(__name__)

# Constants that handlers import. Availability is looked up without importing the package.
PROFILER_AVAILABLE = True
PT2_AVAILABLE = True
PT230_AVAILABLE = bool(torch.__version__ >= "2.3")
ONNX_AVAILABLE = importlib.util.find_spec("onnxruntime") is not None
XLA_AVAILABLE = devices.XLA_AVAILABLE
IPEX_AVAILABLE = compilation.IPEX_AVAILABLE

MAPPING_FILE = "index_to_name.json"


class BaseHandler(abc.ABC):  # noqa: B024 - every method has a default; abstract as in TorchServe
    """Loads the model that the manifest names, and runs batches through `preprocess`, `inference` and `postprocess`.

    Subclasses override what differs. Many leave out `super().__init__()`, so no method here counts on the attributes
    set by it.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target: Any = 0
        self.profiler_args: dict[str, Any] = {}

    def initialize(self, context: Context) -> None:
        """Load the model onto the worker's device, compile it where the configuration says so, read the labels.

        Args:
            context: The worker's context.

        Raises:
            RuntimeError: There are no weights that this handler can load, or the model file is missing.
            ValueError: The model file does not define exactly one class.
        """
        properties = context.system_properties
        self.model_yaml_config = getattr(context, "model_yaml_config", None) or {}
        self.device, self.map_location = devices.choose(properties.get("gpu_id"))
        self.manifest = context.manifest
        model_dir: str = properties["model_dir"]
        model_section: dict[str, str] = self.manifest["model"]
        serialized = model_section.get("serializedFile")
        self.model_pt_path = os.path.join(model_dir, serialized) if serialized else None  # noqa: PTH118 - a str, for overrides

        self.model = self._load_model(model_dir, model_section.get("modelFile"))
        options = compilation.compile_options(self.model_yaml_config)
        if options is not None:
            self.model = compilation.compile_model(self.model, options)
        elif IPEX_AVAILABLE:
            self.model = compilation.optimize_with_ipex(self.model)
        logger.debug("Model file %s loaded successfully", self.model_pt_path)

        self.mapping = load_label_mapping(os.path.join(model_dir, MAPPING_FILE))  # noqa: PTH118 - the path is logged as joined
        self.initialized = True

    def _load_model(self, model_dir: str, model_file: str | None) -> Any:
        path = self.model_pt_path
        if model_file:
            logger.debug("Loading eager model")
            model = self._load_pickled_model(model_dir, model_file, path)
            model.to(self.device)
            model.eval()
            return model
        if path is None:
            raise RuntimeError("No model weights could be loaded")
        suffix = Path(path).suffix
        if suffix == ".pt":
            logger.debug("Loading torchscript model")
            model = self._load_torchscript_model(path)
            model.eval()
            return model
        if suffix == ".onnx" and ONNX_AVAILABLE:
            return setup_ort_session(path, self.map_location)
        if suffix == ".so" and PT230_AVAILABLE and self._use_torch_export_aot_compile():
            return self._load_torch_export_aot_compile(path)
        raise RuntimeError("No model weights could be loaded")

    def _use_torch_export_aot_compile(self) -> bool:
        pt2 = self.model_yaml_config.get("pt2")
        export = pt2.get("export") if isinstance(pt2, dict) else None
        return isinstance(export, dict) and export.get("aot_compile") is True

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        """Load a model that `torch.export` compiled ahead of time into a shared library."""
        # torch offers no public name for it.
        return torch._export.aot_load(model_so_path, self.map_location or "cpu")  # noqa: SLF001

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        """Load a TorchScript model onto the worker's device."""
        compilation.import_backend("torch_tensorrt")
        load: Any = torch.jit.load
        return load(model_pt_path, map_location=self.device)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """Build the model from its file's single class, and load the state dict into it where there is one."""
        if not (Path(model_dir) / model_file).is_file():
            raise RuntimeError("Missing the model.py file")
        if model_dir not in sys.path:
            # Without a server (unit tests) nobody else has put it there.
            sys.path.insert(0, model_dir)
        module = importlib.import_module(model_file.split(".")[0])
        classes = list_classes_from_module(module)
        if len(classes) != 1:
            raise ValueError(f"Expected only one class as model definition. {classes}")
        model = classes[0]()
        if model_pt_path:
            model.load_state_dict(torch.load(model_pt_path, map_location=self.device))
        return model

    @timed
    def preprocess(self, data: Any) -> Any:
        """Turn the batch into a tensor on the worker's device."""
        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model on what `preprocess` returned, without recording gradients."""
        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        """Turn the model's output into a list with one item per request."""
        return data.tolist()

    def handle(self, data: list[Any], context: Context) -> Any:
        """Answer one batch.

        Args:
            data: One row per request.
            context: The worker's context.

        Returns:
            A list with one item per request.
        """
        start = time.perf_counter()
        self.context = context
        if os.environ.get("ENABLE_TORCH_PROFILER"):
            output, _ = self._infer_with_profiler(data)
        elif self._is_describe():
            output = [self.describe_handle()]
        else:
            prepared = self.preprocess(data)
            if self._is_explain():
                output = self.explain_handle(prepared, data)
            else:
                output = self.postprocess(self.inference(prepared))
        elapsed_ms = round((time.perf_counter() - start) * 1000, 2)
        context.metrics.add_time("HandlerTime", elapsed_ms, None, "ms")
        return output

    def explain_handle(self, data_preprocess: Any, raw_data: list[Any]) -> Any:
        """Explain the answer to the first row, by the subclass's `get_insights(tensor, inputs, target)`.

        Args:
            data_preprocess: What `preprocess` returned.
            raw_data: The batch as it came.
        """
        row = raw_data[0]
        inputs = row.get("data") or row.get("body")
        target = row.get("target") or 0
        logger.info("Calculating Explanations")
        return self.get_insights(data_preprocess, inputs, target)  # type: ignore[attr-defined]  # the subclass's

    def describe_handle(self) -> Any:
        """Return what `GET /models/{name}?customized=true` shows of the model; to be overridden."""
        logger.info("Collect customized metadata")

    def get_device(self) -> Any:
        """Return the worker's device."""
        return self.device

    def _is_explain(self) -> bool:
        if self.context and self.context.get_request_header(0, "explain") == "True":
            self.explain = True
            return True
        return False

    def _is_describe(self) -> bool:
        return bool(self.context and self.context.get_request_header(0, "describe") == "True")

    def _infer_with_profiler(self, data: list[Any]) -> tuple[Any, Any]:
        """Answer one batch under the torch profiler; returns the answer and the profiler."""
        return run_profiled(self, data)


def setup_ort_session(model_path: str, map_location: str | None) -> Any:
    """Return an ONNX Runtime session for a model; `inference` has to be overridden to use it.

    Args:
        model_path: The `.onnx` file.
        map_location: `cuda` prefers the GPU, everything else runs on the CPU.
    """
    onnxruntime = importlib.import_module("onnxruntime")
    providers = ["CPUExecutionProvider"]
    if map_location == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    return onnxruntime.InferenceSession(model_path, providers=providers, sess_options=options)
