"""Answers PNG files of handwritten digits with the digit and how sure the model is."""

import io
from typing import Any

import torch
from PIL import Image

from ts.torch_handler.base_handler import BaseHandler

SIDE = 8


class DigitHandler(BaseHandler):
    """Decodes the images of a batch, runs them through the network at once, and answers each of them."""

    def preprocess(self, data: list[dict[str, Any]]) -> torch.Tensor:
        """Turn one row per request into a tensor of shape (rows, 1, 8, 8)."""
        return torch.stack([scan(image_of(row)) for row in data])

    def postprocess(self, data: torch.Tensor) -> list[dict[str, Any]]:
        """Turn the scores into one answer per request."""
        confidence, digit = torch.softmax(data, dim=1).max(dim=1)
        return [
            {"digit": int(d), "confidence": round(float(c), 4)}
            for d, c in zip(digit.tolist(), confidence.tolist(), strict=True)
        ]


def image_of(row: dict[str, Any]) -> Image.Image:
    """The image of one request: a form or a gRPC call names it, a plain body has no name."""
    return Image.open(io.BytesIO(row["data"] if "data" in row else row["body"]))


def scan(image: Image.Image) -> torch.Tensor:
    """An image of one digit, as the network knows them."""
    pixels = image.convert("L").resize((SIDE, SIDE)).tobytes()
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(1, SIDE, SIDE) / 255
