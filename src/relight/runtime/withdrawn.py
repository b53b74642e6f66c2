"""Requests whose clients have gone before their batch began: no handler sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from relight.wire.messages import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from relight.wire.messages import Item


class Remaining(NamedTuple):
    """What is left of a batch.

    Attributes:
        items: The requests to be handled.
        payload: Their inputs.
        positions: Where they were in the batch.
        size: How many requests it had.
    """

    items: list[Item]
    payload: bytes | memoryview
    positions: list[int]
    size: int

    def spread(self, answers: list[Answer]) -> list[Answer]:
        """The answers, each in its request's place, and empty ones between them that nobody reads."""
        all_answers = [Answer(0) for _ in range(self.size)]
        for position, answer in zip(self.positions, answers, strict=True):
            all_answers[position] = answer
        return all_answers


def without_withdrawn(items: list[Item], payload: bytes | memoryview, withdrawn: Callable[[int], bool]) -> Remaining:
    """A batch without the requests that nobody waits for.

    Args:
        items: All requests.
        payload: Their inputs, one after the other.
        withdrawn: Whether the client of a request, by its position, has gone.
    """
    kept = []
    positions = []
    pieces = []
    at = 0
    for position, item in enumerate(items):
        end = at + sum(length for _, _, length in item.parts)
        if not withdrawn(position):
            kept.append(item)
            positions.append(position)
            pieces.append(payload[at:end])
        at = end
    return Remaining(kept, b"".join(pieces), positions, len(items))
