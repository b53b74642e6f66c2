"""The frontend's end of the channel to a worker: frames out, frames in, on the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec

from relight.wire.frames import Frame, FrameDecoder, WireError, encode_head

if TYPE_CHECKING:
    from collections.abc import Callable

_JOIN = 16 * 1024


class WorkerChannel(asyncio.Protocol):
    """Frames over the socket of one worker.

    Args:
        max_payload: Largest payload accepted from the worker, in bytes.
        on_frame: Called with each frame.
        on_lost: Called once, when the worker has closed the channel or broken the protocol.
    """

    def __init__(
        self, max_payload: int, on_frame: Callable[[Frame], None], on_lost: Callable[[Exception | None], None]
    ) -> None:
        self._decoder = FrameDecoder(max_payload)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are not instances of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand on the frames that are complete."""
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except (WireError, ValueError, msgspec.MsgspecError) as error:
            self._lose(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The worker has ended, or closed its end."""
        self._lose(exc)

    def send(self, kind: int, message: Any, body: list[bytes] | None = None, size: int = 0) -> None:
        """Send a frame; it is buffered until the worker reads it.

        Args:
            kind: Kind of the frame.
            message: Its struct.
            body: Its payload, in pieces.
            size: Bytes in `body`.
        """
        transport = self._transport
        if transport is None:
            return
        head = encode_head(kind, message, size)
        if not body:
            transport.write(head)
        elif size < _JOIN:
            transport.write(b"".join([head, *body]))
        else:
            transport.writelines([head, *body])

    def close(self) -> None:
        """Close the channel: the worker ends when it has finished what it is doing."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def _lose(self, error: Exception | None) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._on_lost(error)
