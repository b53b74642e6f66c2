"""JSON as TorchServe writes it: two-space indent, nothing escaped beyond JSON's own need."""

from __future__ import annotations

import json
from typing import Any


def json_text(document: Any) -> str:
    """The text of a document, without a newline at its end (rest_api.md §1.6, grpc_api.md §3.3)."""
    return json.dumps(document, indent=2, ensure_ascii=False)
