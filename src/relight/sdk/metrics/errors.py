"""Errors of the metrics API. The one for unreadable YAML stands apart, so that this module does not need PyYAML."""

from __future__ import annotations


class GeneralMetricsCacheError(Exception):
    """An error of no other kind."""

    def __init__(self, message: object) -> None:
        super().__init__(f"Generic error: {message}")


class MetricsCacheIOError(OSError):
    """The metrics file cannot be read."""

    def __init__(self, message: object) -> None:
        super().__init__(f"Error reading file: {message}")


class MetricsCacheTypeError(TypeError):
    """An argument of a metric call has the wrong type."""


class MetricsCacheValueError(ValueError):
    """An argument of a metric call, or an entry of the metrics file, has a value that means nothing."""


class MetricsCacheKeyError(KeyError):
    """No such metric, or a required key is missing in the metrics file."""
