"""What each protocol offers, and what the operations need to know. Nothing here talks to a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from relight.client.payload import Data
    from relight.client.requests import Flow, GrpcRequest, StreamRequest
    from relight.client.results import Health, ModelDescription, ModelPage, Prediction

__all__ = ["Api", "Inference", "InferenceCall", "KeyKind", "PredictionCall", "Turn"]

KeyKind = Literal["inference", "management"]
Inference = dict[str, "NDArray[Any]"]


@dataclass(frozen=True)
class PredictionCall:
    """One prediction: the model, its version (None for the default one), and what it gets."""

    model: str
    data: Data
    version: str | None = None
    headers: Mapping[str, str] | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class InferenceCall:
    """One inference on tensors."""

    model: str
    inputs: Mapping[str, ArrayLike]
    version: str | None = None
    outputs: Sequence[str] = ()
    parameters: Mapping[str, bool | int | str] = field(default_factory=dict)
    binary: bool = True
    timeout: float | None = None


@dataclass(frozen=True)
class Turn:
    """One request of a sequence."""

    model: str
    sequence_id: str
    data: Data
    version: str | None = None
    end: bool = False


class Api(Protocol):
    """The operations in one protocol. Every `timeout` is in seconds; None is no limit."""

    def ping(self, timeout: float | None) -> Flow[Health]:
        """Ask for the server's health."""

    def predict(self, call: PredictionCall) -> Flow[Prediction]:
        """Ask a model."""

    def stream(self, call: PredictionCall) -> StreamRequest[bytes]:
        """Ask a model for an answer in parts."""

    def infer(self, call: InferenceCall) -> Flow[Inference]:
        """Ask a model that speaks the Open Inference Protocol."""

    def conversation(self, timeout: float | None) -> GrpcRequest:
        """Open a call in which turns are sent and answered."""

    def turn(self, turn: Turn) -> Any:
        """Return the message of one turn."""

    def answer(self, message: Any) -> Prediction:
        """Read one message of the server in a conversation, or raise the error that it is."""

    def register(self, options: Mapping[str, str | int | bool], timeout: float | None) -> Flow[str]:
        """Register a model; the options are those of the management API, by its names."""

    def scale(
        self, model: str, version: str | None, options: Mapping[str, int | bool], timeout: float | None
    ) -> Flow[str]:
        """Change a model's number of workers; the options are those of the management API, by its names."""

    def describe(
        self, model: str, version: str | None, *, customized: bool, timeout: float | None
    ) -> Flow[list[ModelDescription]]:
        """Describe a version, or `all`."""

    def page(self, token: str | None, timeout: float | None) -> Flow[ModelPage]:
        """List models, from a token on."""

    def set_default(self, model: str, version: str, timeout: float | None) -> Flow[str]:
        """Make a version the default one."""

    def unregister(self, model: str, version: str | None, timeout: float | None) -> Flow[str]:
        """Remove a version; None for the default one."""

    def renew(self, kind: KeyKind, api_key: str, timeout: float | None) -> Flow[None]:
        """Replace a token."""
