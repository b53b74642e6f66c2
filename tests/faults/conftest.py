"""Fixtures of the fault tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.faults.support import Clients

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Connections of one test."""
    made = Clients()
    yield made
    made.close()
