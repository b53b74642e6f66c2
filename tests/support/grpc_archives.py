"""The model archives of the gRPC conformance data (grpc_api.md §11), built from tests/handlers/grpc_*.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.archives import HANDLERS, contents, write_mar

if TYPE_CHECKING:
    from pathlib import Path

SEQUENCES = """\
minWorkers: 1
maxWorkers: 1
batchSize: 4
maxBatchDelay: 10
sequenceBatching: true
sequenceMaxIdleMSec: 20000
"""
WIDE = f"{SEQUENCES}maxNumSequence: 4\nmaxSequenceJobQueueSize: 10\n"

MODULES = ("gates.py", "grpc_inputs.py")

ARCHIVES = {
    "probe": ("grpc_probe", None),
    "probe_narrow": ("grpc_probe", "jobQueueSize: 1\n"),
    "probe_ticket": ("grpc_probe", "useJobTicket: true\n"),
    "probe_impatient": ("grpc_probe", "clientTimeoutInMills: 1000\n"),
    "streamer": ("grpc_streamer", None),
    "streamer_seq": ("grpc_streamer", WIDE),
    "sequencer": ("grpc_sequencer", WIDE),
    "sequencer_full": ("grpc_sequencer", f"{SEQUENCES}maxNumSequence: 2\nmaxSequenceJobQueueSize: 2\n"),
    "loader": ("grpc_loader", None),
    "loader_retry": ("grpc_loader", "maxRetryTimeoutInSec: 1\n"),
    "quitter": ("grpc_quitter", None),
    "describer": ("grpc_describer", None),
    "stepper": ("grpc_stepper", "continuousBatching: true\nbatchSize: 4\nmaxBatchDelay: 10\n"),
    "concurrent": ("grpc_concurrent", "asyncCommunication: true\n"),
}
"""Name of the archive and of its model: handler, model configuration."""


def build(folder: Path, name: str, handler: str, config: str | None = None, version: str = "1.0") -> Path:
    """Write one archive, `<name>.mar`, with the modules that the handlers import."""
    files = contents(name, handler, version, config=config)
    files |= {module: (HANDLERS / module).read_bytes() for module in MODULES}
    return write_mar(folder / f"{name}.mar", files)


def build_all(folder: Path) -> list[Path]:
    """Write every archive of the gRPC conformance data into the folder and return them."""
    made = [build(folder, name, handler, config) for name, (handler, config) in ARCHIVES.items()]
    second = folder / "second"
    second.mkdir()
    made.append(build(second, "probe", "grpc_probe", version="2.0").rename(folder / "probe_v2.mar"))
    second.rmdir()
    return made
