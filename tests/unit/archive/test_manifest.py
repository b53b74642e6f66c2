"""MAR-INF/MANIFEST.json, read and written."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.archive.manifest import Manifest, parse_manifest, read_manifest, render_manifest
from relight.errors import InvalidModelError

if TYPE_CHECKING:
    from pathlib import Path


def manifest(model: Any, **top: Any) -> bytes:
    return json.dumps({"runtime": "python", **top, "model": model}).encode()


FULL = {
    "modelName": "n6",
    "serializedFile": "w.pt",
    "handler": "h:fn",
    "modelFile": "m.py",
    "modelVersion": "1",
    "requirementsFile": "r.txt",
    "configFile": "c.yaml",
    "sourceVocab": "v.pt",
}


def test_every_entry_is_read() -> None:
    data = manifest(FULL, createdOn="x", archiverVersion="0.12.0")
    found = parse_manifest(data)
    assert found == Manifest("n6", "1", "python", "h:fn", "w.pt", "m.py", "r.txt", "c.yaml", raw=json.loads(data))
    assert found.raw["model"]["sourceVocab"] == "v.pt"


def test_what_is_absent_has_defaults() -> None:
    assert parse_manifest(b"{}") == Manifest(raw={})
    assert parse_manifest(b"{}").model_version == "1.0"
    assert parse_manifest(b"{}").runtime == "python"


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_name_is_no_name(empty: str | None) -> None:
    assert parse_manifest(manifest({"modelName": empty})).model_name is None


@pytest.mark.parametrize(
    ("literal", "text"), [("2", "2"), ("1.50", "1.50"), ("true", "true"), ('""', ""), ("null", "1.0"), ('"x"', "x")]
)
def test_a_version_is_the_text_that_was_written(literal: str, text: str) -> None:
    assert parse_manifest(f'{{"model": {{"modelVersion": {literal}}}}}'.encode()).model_version == text


def test_numbers_stay_numbers_for_handlers() -> None:
    assert parse_manifest(b'{"model": {"modelVersion": 2.5}}').raw == {"model": {"modelVersion": 2.5}}


def test_a_byte_order_mark_is_tolerated() -> None:
    assert parse_manifest("\ufeff{}".encode()) == Manifest()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{bad",
        b'{"runtime": "python"} x',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        manifest("text"),
        manifest({"modelName": ["a"]}),
        manifest({"handler": {}}),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidModelError, match=r"^Failed to parse signature\.json\.$"):
        parse_manifest(data)


@pytest.mark.parametrize("runtime", ["weird", "", None, 3, True])
def test_unknown_runtimes_are_refused(runtime: Any) -> None:
    with pytest.raises(InvalidModelError, match=r"^Runtime is not defined or invalid\.$"):
        parse_manifest(manifest({}, runtime=runtime))


@pytest.mark.parametrize(("given_", "runtime"), [("PYTHON", "python"), ("python3", "python3"), ("lsp", "LSP")])
def test_runtimes_are_read_in_any_case(given_: str, runtime: str) -> None:
    assert parse_manifest(manifest({}, runtime=given_)).runtime == runtime


def test_a_null_model_is_refused() -> None:
    with pytest.raises(InvalidModelError, match=r"^Missing Model entry in manifest file\.$"):
        parse_manifest(manifest(None))


@given(st.binary())
def test_any_bytes_give_a_manifest_or_a_clear_error(data: bytes) -> None:
    with contextlib.suppress(InvalidModelError):
        parse_manifest(data)


def test_a_directory_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


def test_the_written_manifest_is_the_archivers_to_the_byte() -> None:
    text = render_manifest(
        model_name="n6",
        model_version="1",
        handler="h",
        serialized_file="w.pt",
        model_file="m.py",
        requirements_file="r.txt",
        config_file="c.yaml",
        created_on="20/11/2026 05:14:04",
    )
    assert text == (
        '{\n  "createdOn": "20/11/2026 05:14:04",\n  "runtime": "python",\n  "model": {\n    "modelName": "n6",\n'
        '    "serializedFile": "w.pt",\n    "handler": "h",\n    "modelFile": "m.py",\n    "modelVersion": "1",\n'
        '    "requirementsFile": "r.txt",\n    "configFile": "c.yaml"\n  },\n  "archiverVersion": "0.12.0"\n}'
    )


def test_nothing_is_written_as_null() -> None:
    document = json.loads(render_manifest(model_name="m", model_version="", handler="h"))
    assert document == {"runtime": "python", "model": {"modelName": "m", "handler": "h"}, "archiverVersion": "0.12.0"}
