"""The guess whether a handler needs torch."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from relight.serving.torch_need import location_wants_torch, wants_torch

if TYPE_CHECKING:
    from pathlib import Path

CASES: list[Any] = [
    pytest.param({"h.py": "import json\n"}, "h.py", None, False, id="no import"),
    pytest.param({"h.py": "import torch\n"}, "h.py", None, True, id="import"),
    pytest.param({"h.py": "def f():\n    from torch.nn import Linear\n"}, "h.py:f", None, True, id="late import"),
    pytest.param({"h.py": "import torchvision.models\n"}, "h", None, True, id="a relative"),
    pytest.param(
        {"h.py": "from ts.torch_handler.base_handler import BaseHandler\n"}, "h.py", None, True, id="base class"
    ),
    pytest.param(
        {"h.py": "import torchlike\n# import torch\nx = 'import torch'\n"}, "h.py", None, False, id="no words"
    ),
    pytest.param({"h.py": "import helper\n", "helper.py": "import torch\n"}, "h.py", None, True, id="helper"),
    pytest.param({"h.py": "import helper\n", "sub/helper.py": "import torch"}, "h.py", None, True, id="deeper"),
    pytest.param({"h.py": ""}, "h.py", "model.pt", True, id="weights"),
    pytest.param({"h.py": ""}, "h.py", "model.safetensors", True, id="other weights"),
    pytest.param({"h.py": ""}, "h.py", "model.onnx", False, id="weights of something else"),
    pytest.param({}, "image_classifier", None, True, id="a stock handler"),
    pytest.param({"x.py": ""}, "h.py", None, True, id="no such file"),
    pytest.param({"h.py": b"\xff\xfe import\n"}, "h.py", None, False, id="no text"),
]


@pytest.mark.parametrize(("files", "handler", "weights", "expected"), CASES)
def test_an_archive(
    tmp_path: Path, files: dict[str, str | bytes], handler: str, weights: str | None, expected: bool
) -> None:
    model: dict[str, str] = {"handler": handler} | ({} if weights is None else {"serializedFile": weights})
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": model}))
        for name, text in files.items():
            archive.writestr(name, text)

    assert location_wants_torch(tmp_path, "m.mar") is expected
    assert location_wants_torch(tmp_path, "https://example.org/m.mar") is expected


@pytest.mark.parametrize(("files", "handler", "weights", "expected"), CASES)
def test_a_folder(
    tmp_path: Path, files: dict[str, str | bytes], handler: str, weights: str | None, expected: bool
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    assert wants_torch(tmp_path, handler, weights) is expected


def test_a_handler_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "h.py").write_text("import json\n")

    assert wants_torch(tmp_path, "sub/h.py", None) is False


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x05\x06" + b"\0" * 18], ids=["empty", "no zip", "no manifest"])
def test_what_cannot_be_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.mar").write_bytes(data)
    (tmp_path / "folder").mkdir()

    assert location_wants_torch(tmp_path, "m.mar") is None
    assert location_wants_torch(tmp_path, "folder") is None
    assert location_wants_torch(tmp_path, "absent.mar") is None


@pytest.mark.parametrize("document", ["[]", '{"model": 5}', '{"model": {}}', '{"model": {"handler": 5}}', "null", "{"])
def test_a_manifest_that_makes_no_sense(tmp_path: Path, document: str) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", document)

    assert location_wants_torch(tmp_path, "m.mar") is None
