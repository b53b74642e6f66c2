"""How a request is refused that no worker can take now, in TorchServe's words (rest_api.md §3.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from relight.serving.job import Job

_INFERENCE = (
    "has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence "
    "inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)
_DESCRIBE = "has no worker to serve describe request. Please use scale workers API to add workers."


def no_worker(model: str, job: Job, named_version: str | None = None) -> ServiceUnavailableError:
    """The error for a job that cannot be queued, or whose sequence has ended before it was begun.

    Args:
        model: Name of the model.
        job: The job.
        named_version: The version that the client asked for, if it named one.
    """
    if "describe" in job.added:
        return ServiceUnavailableError(f'Model "{model}" {_DESCRIBE}')
    if named_version is None:
        return ServiceUnavailableError(f'Model "{model}" {_INFERENCE}')
    # The stray quote is TorchServe's, and clients match the text.
    return ServiceUnavailableError(f'Model "{model}" Version {named_version}" {_INFERENCE}')
