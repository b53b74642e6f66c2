"""The error for a metrics file that is not YAML; importing it imports PyYAML."""

from __future__ import annotations

import yaml


class MetricsCachePyYamlError(yaml.YAMLError):
    """The metrics file is not YAML."""

    def __init__(self, message: object) -> None:
        super().__init__(f"Error parsing file: {message}")
