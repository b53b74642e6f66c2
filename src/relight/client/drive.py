"""Drives operations to their end: sends what they ask for, and waits where they wait."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from relight.client.errors import ClientError
from relight.client.requests import Pause

if TYPE_CHECKING:
    from relight.client.requests import Flow
    from relight.client.transports import AsyncTransport, Transport

__all__ = ["run", "run_async"]

T = TypeVar("T")


def run(flow: Flow[T], transport: Transport) -> T:
    """Return the operation's result."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                step = next(flow)
                continue
            try:
                answer = transport.send(step)
            except ClientError as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def run_async(flow: Flow[T], transport: AsyncTransport) -> T:
    """Return the operation's result."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                step = next(flow)
                continue
            try:
                answer = await transport.send(step)
            except ClientError as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
