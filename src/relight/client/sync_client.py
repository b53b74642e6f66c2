"""The client for programs that wait."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from relight.client import flows
from relight.client.api import InferenceCall, PredictionCall, Turn
from relight.client.drive import run
from relight.client.links import DEFAULT_TIMEOUT_S, Links, limit, new_sequence_id
from relight.client.sessions import Session
from relight.client.sync_management import ManagementCalls
from relight.client.transports import Transport, connect

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from relight.client.endpoint import TLS
    from relight.client.keys import TokenSource
    from relight.client.payload import Data
    from relight.client.requests import StreamRequest
    from relight.client.results import Health, Prediction

__all__ = ["Client"]


class Client(ManagementCalls):
    """A client of a server, over HTTP or gRPC. It may be shared by threads; a context manager.

    Addresses are `http://host:port`, `https://...`, `grpc://...`, `grpcs://...`, or `unix:/path` for HTTP over a unix
    socket; the two may differ in protocol. Nothing is sent before the first call.

    Limits in time are for the whole call, in seconds; `float("inf")` is none. Over HTTP each wait for the network is
    limited, and the sum is looked at whenever something arrives.

    Every call raises ClientError, or one of its kinds (relight.client.errors).

    Args:
        url: Address of the inference API.
        management: Address of the management API, for the calls that need it.
        token: Token for the inference API, or what returns the current one.
        management_token: Token for the management API.
        key_file: The server's `key_file.json`, for the tokens that are not given; read again when it changes.
        timeout: Limit of a call that has none of its own; streams, sessions, `register` and `scale` have none then.
        tls: What to trust and what to show, for `https` and `grpcs`.

    Raises:
        ValueError: An address is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        management: str | None = None,
        token: TokenSource | None = None,
        management_token: TokenSource | None = None,
        key_file: str | os.PathLike[str] | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        tls: TLS | None = None,
    ) -> None:
        self._timeout = timeout
        self._links: Links[Transport] = Links(connect, url, management, token, management_token, key_file, tls)

    def close(self) -> None:
        """Close the connections."""
        for transport in self._links.all:
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def ping(self, *, timeout: float | None = None) -> Health:
        """Return the server's health. Unhealthy is an answer, no error."""
        link = self._links.inference
        return run(link.api.ping(limit(timeout, self._timeout)), link)

    def predict(
        self,
        model: str,
        data: Data,
        *,
        version: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Prediction:
        """Ask a model.

        Args:
            model: Its name.
            data: Bytes; text; named inputs (`Inputs`, or a mapping with bytes among its values); or what JSON can say.
            version: Its version; None for the default one.
            headers: What the handler finds among its request's headers; HTTP only.
            timeout: Limit of this call.
        """
        link = self._links.inference
        call = PredictionCall(model, data, version, headers, limit(timeout, self._timeout))
        return run(link.api.predict(call), link)

    def stream(
        self,
        model: str,
        data: Data,
        *,
        version: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Generator[bytes, None, None]:
        """Ask a model, and yield the parts of its answer as they come. Closing the generator cancels the call.

        Over gRPC each part is one that the handler sent. Over HTTP it is a chunk, and a large chunk may come in pieces.

        Args:
            model: As `predict`.
            data: As `predict`.
            version: As `predict`.
            headers: As `predict`.
            timeout: Limit for the whole stream; by default none.
        """
        link = self._links.inference
        stream = link.api.stream(PredictionCall(model, data, version, headers, limit(timeout, math.inf)))
        return _parts(link, stream)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike],
        *,
        version: str | None = None,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, bool | int | str] | None = None,
        binary: bool = True,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Ask a model that speaks the Open Inference Protocol, in numpy arrays.

        Args:
            model: Its name.
            inputs: Arrays, or what numpy makes an array of, by the names of the inputs; texts become BYTES.
            version: Its version; None for the default one.
            outputs: The outputs wanted; none for all.
            parameters: Sent along.
            binary: Send the numbers as they lie in memory. False: as JSON or typed contents, as TorchServe needs them.
            timeout: Limit of this call.

        Raises:
            ImportError: Numpy is not installed.
            TypeError: An array has a type that the protocol does not know.
        """
        link = self._links.inference
        limit_s = limit(timeout, self._timeout)
        call = InferenceCall(model, inputs, version, tuple(outputs), parameters or {}, binary, limit_s)
        return run(link.api.infer(call), link)

    def session(
        self,
        model: str,
        sequence_id: str | None = None,
        *,
        version: str | None = None,
        timeout: float | None = None,
    ) -> Session:
        """Open a sequence of requests to a stateful model; gRPC only.

        Args:
            model: Its name.
            sequence_id: The name of the sequence; None for a new one.
            version: Its version; None for the default one.
            timeout: Limit for the whole session; by default none.

        Raises:
            Unsupported: The address is an HTTP one.
        """
        link = self._links.inference
        conversation = link.converse(link.api.conversation(limit(timeout, math.inf)))
        return Session(conversation, link.api, model, version, sequence_id or new_sequence_id())

    def stream_sequence(
        self,
        model: str,
        items: Iterable[Data],
        *,
        sequence_id: str | None = None,
        version: str | None = None,
        timeout: float | None = None,
    ) -> Generator[Prediction, None, None]:
        """Send the items as one sequence, as fast as the server takes them, and yield its answers as they come.

        An item that fails ends it. gRPC only. TorchServe drops the answers that come after the last item; use `session`
        there.

        Args:
            model: Its name.
            items: What the model gets, one after the other; iterated over in another thread.
            sequence_id: The name of the sequence; None for a new one.
            version: Its version; None for the default one.
            timeout: Limit for the whole sequence; by default none.

        Raises:
            Unsupported: The address is an HTTP one.
        """
        link = self._links.inference
        name = sequence_id or new_sequence_id()
        turns = (link.api.turn(Turn(model, name, item, version)) for item in items)
        request = link.api.conversation(limit(timeout, math.inf))
        return _answers(link, request, turns)

    def wait_healthy(self, timeout: float = DEFAULT_TIMEOUT_S) -> Health:
        """Wait until the server is up and answers a ping with `Healthy`.

        Args:
            timeout: Seconds to wait.

        Raises:
            DeadlineExceeded: It answered otherwise until then.
            Unavailable: There was no server until then.
        """
        link = self._links.inference
        return run(flows.wait_healthy(link.api, timeout), link)


def _parts(link: Transport, stream: StreamRequest[bytes]) -> Generator[bytes, None, None]:
    with contextlib.closing(link.stream(stream.request)) as parts:
        for part in parts:
            yield stream.part(part)


def _answers(link: Transport, request: Any, turns: Iterable[Any]) -> Generator[Prediction, None, None]:
    conversation = link.converse(request, turns)
    try:
        while (message := conversation.read()) is not None:
            yield link.api.answer(message)
    finally:
        conversation.cancel()
