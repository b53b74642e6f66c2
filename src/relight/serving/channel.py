"""The frontend's end of the channel to a worker: frames out, frames in, on the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec

from relight.wire.frames import Frame, FrameDecoder, WireError, encode_head

if TYPE_CHECKING:
    from collections.abc import Callable

_JOIN = 64 * 1024
"""Below this size joining the pieces costs less than handing them over one by one."""


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
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

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
        """Send a frame, together with all others of this turn of the event loop: one system call for many frames.

        Args:
            kind: Kind of the frame.
            message: Its struct.
            body: Its payload, in pieces.
            size: Bytes in `body`.
        """
        self.write(encode_head(kind, message, size))
        if body:
            self._unsent += body
        self._unsent_bytes += size

    def write(self, frame: bytes) -> None:
        """Send an encoded frame."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(frame)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        size, self._unsent_bytes = self._unsent_bytes, 0
        transport = self._transport
        if transport is None:
            return
        if size < _JOIN:
            transport.write(b"".join(unsent))
        else:
            transport.writelines(unsent)

    def pause(self) -> None:
        """Read nothing more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the channel: the worker ends when it has finished what it is doing."""
        self._flush()
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
