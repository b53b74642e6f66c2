"""stub"""

from typing import Any


def listener_document(**k: bool) -> dict[str, object]:
    return {}


def model_management_document(n: str) -> dict[str, object]:
    return {}


def model_inference_document(n: str) -> dict[str, object]:
    return {}
