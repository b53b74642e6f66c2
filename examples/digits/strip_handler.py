"""Reads strips of handwritten digits, scans side by side, and sends each digit as soon as it is read."""

from typing import Any

from handler import DigitHandler, image_of, scan

from ts.handler_utils.utils import send_intermediate_predict_response


class StripHandler(DigitHandler):
    """Reads one strip at a time, as they differ in length; packed without a batch size."""

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        """Send an answer for each digit, from left to right; the last one is what is returned."""
        strip = image_of(data[0])
        side = strip.height
        answer: dict[str, Any] | None = None
        for left in range(0, strip.width, side):
            if answer is not None:
                send_intermediate_predict_response([answer], context.request_ids, "", 200, context)
            digit = scan(strip.crop((left, 0, left + side, side)))
            (answer,) = self.postprocess(self.inference(digit.unsqueeze(0)))
        assert answer is not None, "no image is without width"
        return [answer]
