"""The worker's end of the channel: blocking reads and writes of frames."""

from __future__ import annotations

import os
import socket
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

from relight.wire.frames import HEADER_SIZE, Frame, FrameDecoder, decode_header, encode_head

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUFFER_SIZE = 256 * 1024
_OWN_BUFFER = 32 * 1024
"""Payloads from this size on are received into a buffer of their own, which the handler then gets without a copy."""
_JOIN = 16 * 1024
"""Below this size one send of head and payload joined is cheaper than two buffers in a gathering send."""
_YIELD_INTERVAL = 0.0002
"""Seconds, see `Channel.let_frontend_run`: the least time between two yields."""


class Channel:
    """Frames over a connected stream socket.

    Args:
        sock: The socket; the channel owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(True)
        self._buffer = bytearray(_BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._yielded = 0.0
        self._decoder: FrameDecoder | None = None

    def receive(self) -> Frame | None:
        """The next frame, or None when the frontend has closed the channel.

        A large payload is a bytearray that belongs to the caller; a small one is a copy.

        Raises:
            WireError: the peer does not speak this protocol.
        """
        if not self._fill(HEADER_SIZE):
            return None
        kind, meta, payload = decode_header(self._buffer, self._start, sys.maxsize)
        head = HEADER_SIZE + meta
        size = head if payload >= _OWN_BUFFER else head + payload
        if not self._fill(size):
            return None
        start = self._start
        message = bytes(self._view[start + HEADER_SIZE : start + head])
        if size == head and payload:
            self._start = start + head
            body = self._receive_large(payload)
            return None if body is None else Frame(kind, message, memoryview(body))
        self._start = start + size
        return Frame(kind, message, bytes(self._view[start + head : start + size]))

    def poll(self) -> Iterator[Frame] | None:
        """The frames that have come, without waiting for any; None when the frontend has closed the channel.

        From its first call on, `receive` must not be called any more.

        Raises:
            WireError: the peer does not speak this protocol.
        """
        if self._decoder is None:
            self._decoder = FrameDecoder(sys.maxsize)
            data = bytes(self._view[self._start : self._end])
            self._start = self._end = 0
        else:
            data = b""
        try:
            received = self._sock.recv(_BUFFER_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self._decoder.feed(data)
        return self._decoder.feed(data + received) if received else None

    def fileno(self) -> int:
        """The socket's descriptor, for an event loop to watch."""
        return self._sock.fileno()

    def send(self, kind: int, message: Any, bodies: list[bytes | bytearray] | None = None, length: int = 0) -> None:
        """Send a frame; returns when the kernel has it.

        Args:
            kind: Kind of the frame.
            message: Its struct.
            bodies: Its payload, in pieces.
            length: Bytes of all pieces together.
        """
        head = encode_head(kind, message, length)
        if not bodies:
            self._sock.sendall(head)
        elif length < _JOIN:
            self._sock.sendall(b"".join([head, *bodies]))
        else:
            self._sock.sendall(head)
            for body in bodies:
                self._sock.sendall(body)

    def let_frontend_run(self) -> None:
        """Yield the core, where that gets what was just sent to its client sooner.

        The kernel likes to wake the frontend on the worker's own core, as if the worker were about to sleep. One that
        goes on computing would keep the frontend waiting for a whole time slice: the first chunk of a fast stream took
        3.8 ms to its client, and takes 0.4 ms now. Not each chunk of a fast stream is worth the system call. Nor is the
        end of a batch: the frontend then takes the core from the next one, which costs 6 % of the throughput.
        """
        now = monotonic()
        if now - self._yielded > _YIELD_INTERVAL:
            self._yielded = now
            os.sched_yield()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _fill(self, size: int) -> bool:
        """Have at least `size` unread bytes in the buffer; False at the end of the stream."""
        if self._end - self._start >= size:
            return True
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._buffer) - self._start < size:
            self._move(size)
        while self._end - self._start < size:
            received = self._sock.recv_into(self._view[self._end :])
            if not received:
                return False
            self._end += received
        return True

    def _move(self, size: int) -> None:
        """Move the unread bytes to the front of the buffer, or of a larger one."""
        rest = bytes(self._view[self._start : self._end])
        if size > len(self._buffer):
            self._view.release()
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def _receive_large(self, length: int) -> bytearray | None:
        body = bytearray(length)
        view = memoryview(body)
        held = min(length, self._end - self._start)
        view[:held] = self._view[self._start : self._start + held]
        self._start += held
        while held < length:
            received = self._sock.recv_into(view[held:])
            if not received:
                return None
            held += received
        return body
