"""The helpers that handlers import."""

from __future__ import annotations

import json
import json.decoder
import logging
import types
from typing import TYPE_CHECKING, Any

import pytest

from relight.sdk.errors import PredictionException
from relight.sdk.metrics import MetricsCacheYamlImpl
from relight.sdk.timing import timed
from relight.sdk.util import (
    CLEANUP_REGEX,
    check_valid_pt2_backend,
    deprecated,
    get_yaml_config,
    import_class,
    list_classes_from_module,
    load_label_mapping,
    map_class_to_label,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ({"0": "cat", "1": ["n01", "tench"]}, {"0": "cat", "1": "tench"}),
        ({"object_type_names": ["bg", "person"]}, {"0": "bg", "1": "person"}),
        ({"object_type_names": ["bg"], "0": "z"}, {"0": "bg"}),
        ({"object_type_names": "x"}, {"object_type_names": "x"}),
    ],
)
def test_label_mapping(tmp_path: Path, content: Any, labels: dict[str, str]) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(json.dumps(content))
    assert load_label_mapping(str(path)) == labels


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[1]", 'index->name JSON mapping should be in "class": "label" format.'),
        ('{"0": 3}', "labels in index->name mapping must be either str or List[str]"),
        ('{"0": ["a", 3]}', "labels in index->name mapping must be either str or List[str]"),
        ('{"0": []}', "list index out of range"),
        ("{x", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_bad_label_mapping(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text(content)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is compared below
        load_label_mapping(path)
    assert str(caught.value) == text


def test_missing_label_mapping(caplog: pytest.LogCaptureFixture) -> None:
    assert load_label_mapping("/nope/index_to_name.json") is None
    assert caplog.messages == ["'/nope/index_to_name.json' is missing. Inference output will not include class name."]


def test_map_class_to_label() -> None:
    labels = {"0": "cat", "1": "dog"}
    assert map_class_to_label([[0.1, 0.9]], labels) == [{"cat": 0.1, "dog": 0.9}]
    assert map_class_to_label([[0.1, 0.9], [0.3]], labels, [[1, 0], [1]]) == [{"dog": 0.1, "cat": 0.9}, {"dog": 0.3}]
    assert map_class_to_label([[0.1, 0.9]]) == [{"0": 0.1, "1": 0.9}]
    with pytest.raises(KeyError, match="2"):
        map_class_to_label([[1, 2, 3]], labels)
    with pytest.raises(Exception, match="Convert classes to list before doing mapping"):
        map_class_to_label(((1,),), labels)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="Mapping must be a dict"):
        map_class_to_label([[1]], "x")  # type: ignore[arg-type]


def test_list_classes_from_module() -> None:
    assert list_classes_from_module(json.decoder) == [json.JSONDecodeError, json.JSONDecoder]
    assert list_classes_from_module(json.decoder, ValueError) == [json.JSONDecodeError]


@pytest.mark.parametrize("arguments", [("json.JSONDecoder",), ("JSONDecoder", "json"), ("decoder.JSONDecoder", "json")])
def test_import_class(arguments: tuple[str, ...]) -> None:
    assert import_class(*arguments) is json.JSONDecoder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "class name is not defined"),
        ("JSONDecoder", "module name is not defined."),
        ("json.Nope", "class:Nope not found in module:json."),
        ("no_such_module.Nope", "No module named 'no_such_module'"),
    ],
)
def test_import_class_errors(name: str, text: str) -> None:
    with pytest.raises(ImportError) as caught:
        import_class(name)
    assert str(caught.value) == text


def test_cleanup_regex() -> None:
    assert CLEANUP_REGEX.sub("", "<b>a</b>&nbsp;b&#12;&#xaf;&AMP;") == "ab&AMP;"


def test_pt2_backends(caplog: pytest.LogCaptureFixture) -> None:
    assert check_valid_pt2_backend("inductor")
    assert not check_valid_pt2_backend("zz")
    assert caplog.messages == ["zz is not a supported backend"]


def test_yaml_config(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: 1\n")
    assert get_yaml_config(path) == {"a": 1}
    path.write_text("")
    assert get_yaml_config(path) is None


def test_deprecated() -> None:
    @deprecated("1.0", "elsewhere")
    def old(value: int) -> int:
        return value + 1

    with pytest.warns(PendingDeprecationWarning, match=r"^old is deprecated in 1.0 and moved to elsewhere$"):
        assert old(2) == 3


def test_prediction_exception() -> None:
    error = PredictionException("no", 404)
    assert (error.message, error.error_code, str(error), error.args) == ("no", 404, "no : 404", ("no",))
    assert PredictionException("no").error_code == 500


class Stage:
    """A handler that never called a base class's `__init__`."""

    @timed
    def preprocess(self, data: int, *, twice: bool = False) -> int:
        return data * 2 if twice else data


@pytest.mark.parametrize("config", [None, {}, {"handler": None}, {"handler": {"profile": False}}])
def test_timed_is_off_by_default(config: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stage: Any = Stage()
    assert stage.preprocess(1) == 1
    stage.context = types.SimpleNamespace(model_yaml_config=config)
    assert stage.preprocess(1, twice=True) == 2
    assert not caplog.records


def test_timed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = MetricsCacheYamlImpl()
    metrics.model_name = "mm"
    metrics.set_request_ids({0: "r"})
    stage: Any = Stage()
    stage.context = types.SimpleNamespace(model_yaml_config={"handler": {"profile": True}}, metrics=metrics)
    assert stage.preprocess(3, twice=True) == 6
    (message,) = caplog.messages
    assert message.startswith("[METRICS]ts_handler_preprocess.Milliseconds:")
    assert "|#ModelName:mm,Level:Model|#type:GAUGE|" in message
