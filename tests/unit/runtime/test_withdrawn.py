"""Batches of which some clients have gone before they began."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relight.runtime.withdrawn import without_withdrawn
from relight.wire.messages import Answer, Item

REQUESTS = st.lists(st.tuples(st.lists(st.binary(max_size=5), max_size=3), st.booleans()), max_size=8)


@given(REQUESTS)
def test_what_is_left(requests: list[tuple[list[bytes], bool]]) -> None:
    items = [
        Item(str(position), [], {}, [(str(index), "", len(value)) for index, value in enumerate(values)])
        for position, (values, _) in enumerate(requests)
    ]
    payload = b"".join(value for values, _ in requests for value in values)

    remaining = without_withdrawn(items, payload, lambda position: requests[position][1])

    kept = [position for position, (_, gone) in enumerate(requests) if not gone]
    assert [item.request_id for item in remaining.items] == [str(position) for position in kept]
    assert remaining.payload == b"".join(value for position in kept for value in requests[position][0])
    answers = remaining.spread([Answer(7, 200 + position) for position in kept])
    assert len(answers) == len(requests)
    assert [(answer.length, answer.status) for answer in answers] == [
        (0, 200) if gone else (7, 200 + position) for position, (_, gone) in enumerate(requests)
    ]
