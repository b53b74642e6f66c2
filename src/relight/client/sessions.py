"""Sequences of requests to a stateful model, in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.client.api import Turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from relight.client.api import Api
    from relight.client.payload import Data
    from relight.client.results import Prediction
    from relight.client.transports import AsyncConversation, Conversation

__all__ = ["AsyncSession", "Session"]


class Session:
    """A sequence of requests, handled one after the other. A context manager; `Client.session` opens it.

    Iterating over it gives the answers until the server ends the call, which it does after `end()`.

    Attributes:
        model: The model.
        sequence_id: The sequence.
    """

    def __init__(self, conversation: Conversation, api: Api, model: str, version: str | None, sequence_id: str) -> None:
        self.model = model
        self.sequence_id = sequence_id
        self._version = version
        self._conversation = conversation
        self._api = api

    def send(self, data: Data, *, end: bool = False) -> None:
        """Send a request, and do not wait for its answer.

        Args:
            data: What the model gets.
            end: Whether it is the last of the sequence, which tells the handler to forget it.

        Raises:
            Unavailable: The call has ended.
        """
        turn = Turn(self.model, self.sequence_id, data, self._version, end)
        self._conversation.write(self._api.turn(turn))

    def receive(self) -> Prediction:
        """Return the next answer. A handler that sends intermediate results gives several to a request.

        Raises:
            ClientError: The request failed. The session goes on, unless the call itself ended.
            EOFError: The server has ended the call.
        """
        message = self._conversation.read()
        if message is None:
            raise EOFError("the server has ended the session")
        return self._api.answer(message)

    def predict(self, data: Data, *, end: bool = False) -> Prediction:
        """Send a request and return its answer: of a handler that gives one answer to each.

        Raises:
            ClientError: The request failed.
            EOFError: The server has ended the call.
        """
        self.send(data, end=end)
        return self.receive()

    def end(self) -> None:
        """Say that no request will follow. The answers that are still to come can be received."""
        self._conversation.half_close()

    def __iter__(self) -> Iterator[Prediction]:
        while (message := self._conversation.read()) is not None:
            yield self._api.answer(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the call; answers that have not been received are lost."""
        self._conversation.half_close()
        self._conversation.cancel()


class AsyncSession:
    """As `Session`, for `AsyncClient`.

    Attributes:
        model: The model.
        sequence_id: The sequence.
    """

    def __init__(
        self, conversation: AsyncConversation, api: Api, model: str, version: str | None, sequence_id: str
    ) -> None:
        self.model = model
        self.sequence_id = sequence_id
        self._version = version
        self._conversation = conversation
        self._api = api

    async def send(self, data: Data, *, end: bool = False) -> None:
        """As `Session.send`."""
        turn = Turn(self.model, self.sequence_id, data, self._version, end)
        await self._conversation.write(self._api.turn(turn))

    async def receive(self) -> Prediction:
        """As `Session.receive`."""
        message = await self._conversation.read()
        if message is None:
            raise EOFError("the server has ended the session")
        return self._api.answer(message)

    async def predict(self, data: Data, *, end: bool = False) -> Prediction:
        """As `Session.predict`."""
        await self.send(data, end=end)
        return await self.receive()

    async def end(self) -> None:
        """As `Session.end`."""
        await self._conversation.half_close()

    async def __aiter__(self) -> AsyncIterator[Prediction]:
        while (message := await self._conversation.read()) is not None:
            yield self._api.answer(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Session.close`."""
        self._conversation.cancel()
