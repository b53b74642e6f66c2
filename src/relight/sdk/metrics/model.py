"""The small values that metrics are made of: dimensions, types, units."""

from __future__ import annotations

import enum
from typing import Any


class Dimension:
    """A named label value of a metric.

    Args:
        name: Label name.
        value: Label value; written with `str`.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, Any]:
        """Return the dimension as `{"Name": ..., "Value": ...}`."""
        return {"Name": self.name, "Value": self.value}


class MetricTypes(enum.Enum):
    """How values of one metric relate: summed, replaced, or counted into buckets."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


UNIT_NAMES: dict[str | None, str] = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    "": "unit",
    None: "unit",
}
"""Short unit to the name that is written; units not listed are written as given."""


class Units:
    """The unit table as the object that existing code expects, in attribute `units`."""

    def __init__(self) -> None:
        self.units = dict(UNIT_NAMES)
