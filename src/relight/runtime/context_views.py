"""The contexts of requests that run at the same time: each its own, all like the one that `initialize` was given."""

from __future__ import annotations

import copy
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relight.sdk.context import Context

logger = logging.getLogger("relight.worker")


class ContextViews:
    """Makes contexts for batches.

    As in TorchServe they are deep copies, so that what one request does to them no other one sees. Unlike there, what
    is not scratch space is shared: the model's properties, torch modules and tensors, and whatever cannot be copied.

    Args:
        context: The context that was built for the handler, before it is initialized.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._properties = frozenset(vars(context))
        self._shared: set[str] = set()

    def make(self) -> Context:
        """A context for one batch, with metrics that name the batch's requests."""
        source = self._context
        view = source.__class__.__new__(source.__class__)
        members = dict(vars(source))
        view.__dict__ = members
        members["_metrics"] = copy.copy(source.metrics)
        attached = members.keys() - self._properties
        if attached:
            memo: dict[int, Any] = {id(source): view}
            for name in attached:
                members[name] = self._copy(name, members[name], memo)
        return view

    def _copy(self, name: str, value: Any, memo: dict[int, Any]) -> Any:
        """A deep copy of an attribute that the handler has attached."""
        if name in self._shared:
            return value
        if _is_weights(value):
            self._shared.add(name)
            return value
        try:
            return copy.deepcopy(value, memo)
        except Exception as error:  # noqa: BLE001 - whatever a foreign object's copying raises
            logger.warning("context.%s is shared by all requests, as it cannot be copied: %s", name, error)
            self._shared.add(name)
            return value


def _is_weights(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.nn.Module, torch.Tensor))
