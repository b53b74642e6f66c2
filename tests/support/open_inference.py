"""A server with the Open Inference Protocol, and models for it, built from tests/handlers/oip_numpy.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.archives import contents, write_mar

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import ServerFactory
    from tests.support.server import Server

DECLARING = """\
batchSize: 8
maxBatchDelay: 300
batchPolicy: fixed
platform: numpy_python
inputs:
  - {name: a, datatype: FP32, shape: [-1, 2]}
  - {name: broken, datatype: FP32, shape: two}
  - nonsense
outputs:
  - {name: a_out, datatype: FP32, shape: [-1, 2]}
"""
STRANGE = "inputs: 5\noutputs: {a: b}\nplatform: [1]\n"
PLAIN = "plainBytes: true\n"


def build_all(folder: Path) -> list[Path]:
    """Write the archives into the folder and return them."""
    made = [write_mar(folder / "oip.mar", contents("oip", "oip_numpy"))]
    made.append(write_mar(folder / "oip_v2.mar", contents("oip", "oip_numpy", "2.0")))
    for name, config in (("oip_batch", DECLARING), ("oip_strange", STRANGE), ("oip_plain", PLAIN)):
        made.append(write_mar(folder / f"{name}.mar", contents(name, "oip_numpy", config=config)))
    return made


def start(make_server: ServerFactory, folder: Path, config: dict[str, str] | None = None) -> Server:
    """Start a server with the protocol on; `oip` 1.0 and 2.0, `oip_batch` and `oip_plain` have a worker each."""
    server = make_server({"ts_open_inference_protocol": "true", **(config or {})})
    for archive in build_all(folder):
        archive.rename(server.store / archive.name)
    for name in ("oip", "oip_v2", "oip_batch", "oip_plain"):
        assert server.register(f"{name}.mar", initial_workers=1, synchronous="false").status == 202
    for name in ("oip", "oip/2.0", "oip_batch", "oip_plain"):
        server.wait_ready(name)
    assert server.register("oip_strange.mar").status == 200
    return server
