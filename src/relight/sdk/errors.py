"""The error that a handler raises to choose what its clients are told."""

from __future__ import annotations


class PredictionException(Exception):  # noqa: N818 - the name is TorchServe's, handlers import it
    """Fails every request of the batch with a status of the handler's choice.

    For an error of one item, use `Context.set_response_status(..., idx=i)` and return a body for that item.

    Args:
        message: The text that the clients read.
        error_code: HTTP status of the answers.
    """

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"
