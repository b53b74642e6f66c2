"""`ts.utils.util`."""

from relight.sdk.errors import PredictionException
from relight.sdk.util import (
    CLEANUP_REGEX,
    PT2Backend,
    check_valid_pt2_backend,
    deprecated,
    get_yaml_config,
    list_classes_from_module,
    load_label_mapping,
    map_class_to_label,
)

__all__ = [
    "CLEANUP_REGEX",
    "PT2Backend",
    "PredictionException",
    "check_valid_pt2_backend",
    "deprecated",
    "get_yaml_config",
    "list_classes_from_module",
    "load_label_mapping",
    "map_class_to_label",
]
