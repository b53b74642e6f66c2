"""What a handler knows of its model and of the requests in the current batch.

Names, signatures and defaults are TorchServe's (`ts.context`); handlers, and the attributes they hang on a Context in
`initialize`, depend on them. Both classes sit on the path of every request, so headers and response dictionaries are
only built when a handler asks for them.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from relight.version import TORCHSERVE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONTENT_TYPE = "content-type"

# Bound to the worker's connection: a copy of a Context must keep talking through the same one.
_SHARED_ON_COPY = frozenset({"intermediate_sender", "cancel_probe", "cl_socket"})


class RequestProcessor:
    """One request of a batch: its headers, and the status and headers that the handler answers with.

    Args:
        request_header: The request's header dictionary, or a function without arguments that builds it on first use.
    """

    # `code`, `phrase` and `response` (None until a header is set) are read directly by the worker's reply path.
    __slots__ = ("_request", "code", "phrase", "response")

    def __init__(self, request_header: dict[str, Any] | Callable[[], dict[str, Any]]) -> None:
        self._request = request_header
        self.code: int = 200
        self.phrase: str | None = None
        self.response: dict[str, str] | None = None

    def get_request_properties(self) -> dict[str, Any]:
        """Return all request headers, by the client's own spelling."""
        headers = self._request
        if callable(headers):
            headers = self._request = headers()
        return headers

    def get_request_property(self, key: str) -> Any:
        """Return one request header, or None. The lookup is case-sensitive."""
        return self.get_request_properties().get(key)

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Set the status code and reason phrase of the answer."""
        self.code = code
        self.phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """Return the status code of the answer; 200 unless set."""
        return self.code

    def get_response_status_phrase(self) -> str | None:
        """Return the reason phrase of the answer; None unless set."""
        return self.phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Set a response header, replacing an earlier value of the same spelling."""
        self.get_response_headers()[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """Return the response headers as the dictionary that is sent."""
        if self.response is None:
            self.response = {}
        return self.response

    def get_response_header(self, key: str) -> str | None:
        """Return one response header, or None."""
        return None if self.response is None else self.response.get(key)


class Context:
    """The model's properties, and the current batch's requests; one object lives as long as its worker.

    Handlers may set attributes of their own on it in `initialize` and find them again in `handle`.

    Args:
        model_name: Name under which the model is registered.
        model_dir: Directory of the unpacked archive.
        manifest: `MAR-INF/MANIFEST.json`, decoded; None when there is none.
        batch_size: The model's configured batch size, not the current batch's.
        gpu: Index of the worker's GPU, None on CPU.
        mms_version: What `system_properties["server_version"]` says.
        limit_max_image_pixels: Kept for old handlers; without effect.
        metrics: The metrics cache.
        model_yaml_config: The model's YAML configuration, decoded.

    Attributes:
        request_ids: Batch position to request id; None before the first request.
        stopping_criteria: Set by handlers with continuous batching: one callable per batch position.
        intermediate_sender: Set by the worker: sends one streamed part per request, `(parts, code, message)`.
        cancel_probe: Set by the worker: whether the client of a batch position has gone.
    """

    # Class attributes, not instance ones: `vars(context)` and equality stay those of TorchServe.
    intermediate_sender: Callable[[list[Any], int, str], None] | None = None
    cancel_probe: Callable[[int], bool] | None = None
    cl_socket: Any = None

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any] | None,
        batch_size: int,
        gpu: int | None,
        mms_version: str = TORCHSERVE_VERSION,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self._system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.request_ids: Mapping[int, str] | None = None
        self._request_processor: list[RequestProcessor] | None = None
        self._metrics = metrics
        self._limit_max_image_pixels = True
        self.model_yaml_config = model_yaml_config
        self.stopping_criteria: list[Callable[..., bool | None]] | None = None
        self.header_key_sequence_id = os.environ.get("TS_REQUEST_SEQUENCE_ID", "ts_request_sequence_id")
        self.header_key_sequence_start = os.environ.get("TS_REQUEST_SEQUENCE_START", "ts_request_sequence_start")
        self.header_key_sequence_end = os.environ.get("TS_REQUEST_SEQUENCE_END", "ts_request_sequence_end")

    @property
    def system_properties(self) -> dict[str, Any]:
        """The model's directory, GPU, batch size and the server's name and version."""
        return self._system_properties

    @property
    def request_processor(self) -> list[RequestProcessor]:
        """The requests of the current batch, in its order; None outside of one."""
        return self._request_processor  # type: ignore[return-value]  # handlers index it without a check, as before

    @request_processor.setter
    def request_processor(self, request_processor: list[RequestProcessor] | None) -> None:
        self._request_processor = request_processor

    @property
    def metrics(self) -> Any:
        """The metrics cache (`relight.sdk.metrics.MetricsCacheYamlImpl`)."""
        return self._metrics

    @metrics.setter
    def metrics(self, metrics: Any) -> None:
        self._metrics = metrics

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the id of the request at a batch position, None where there is none."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """Return one request header, or None. The lookup is case-sensitive, keys keep the client's spelling.

        Raises:
            IndexError: The batch has no such position.
        """
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """Return all headers of the request at a batch position."""
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the `content-type` of one answer."""
        self.set_response_header(idx, CONTENT_TYPE, value)

    def get_response_content_type(self, idx: int) -> str | None:
        """Return the `content-type` of one answer, None unless set under exactly this spelling."""
        return self.request_processor[idx].get_response_header(CONTENT_TYPE)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """Return status code and reason phrase of one answer, `(200, None)` unless set."""
        processor = self.request_processor[idx]
        return processor.code, processor.phrase

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set status code and reason phrase of one answer; without effect outside of a request."""
        if self._request_processor is not None:
            self._request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set status code and reason phrase of every answer of the batch."""
        for processor in self.request_processor:
            processor.report_status(code, phrase)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """Return the response headers of one answer."""
        return self.request_processor[idx].get_response_headers()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a response header of one answer. The value must be a str."""
        self.request_processor[idx].add_response_property(key, value)

    def get_sequence_id(self, idx: int) -> str | None:
        """Return the id of the sequence that a request belongs to, None outside of sequence batching."""
        value: str | None = self.get_request_header(idx, self.header_key_sequence_id)
        return value

    def is_cancelled(self, idx: int = 0) -> bool:
        """Whether nobody waits for this answer any more: the client has gone, or its deadline has passed.

        A handler that works in steps may ask between them and stop early. False where the worker cannot know.
        """
        return self.cancel_probe is not None and self.cancel_probe(idx)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and type(self) is type(other) and self.__dict__ == other.__dict__

    # As with any class that defines equality alone; stated because contexts are mutable by design.
    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Context:
        clone = self.__class__.__new__(self.__class__)
        memo[id(self)] = clone
        for name, value in self.__dict__.items():
            clone.__dict__[name] = value if name in _SHARED_ON_COPY else copy.deepcopy(value, memo)
        return clone
