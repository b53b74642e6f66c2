"""Streams 2,000 chunks of 9 bytes: 1,999 sent on the way and one returned."""

from ts.handler_utils.utils import send_intermediate_predict_response

CHUNKS = 2000


def handle(data, context):
    """Send all chunks but the last as intermediate responses; return the last."""
    if not data:
        return None
    rows = len(data)
    for number in range(CHUNKS - 1):
        chunk = f"chunk{number:04d}"
        send_intermediate_predict_response([chunk] * rows, context.request_ids, "Intermediate", 200, context)
    return [f"chunk{CHUNKS - 1:04d}"] * rows
