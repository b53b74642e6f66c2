"""Packs the handlers once, so that both servers load the very same files."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchError

HANDLERS = Path(__file__).parent / "handlers"
_PACK_SECONDS = 60


@dataclass(frozen=True)
class Archive:
    """One archive to pack.

    Args:
        name: The model's name; the file is ``{name}.mar``.
        handler: File name in ``benchmarks/handlers``.
        batch: Batch size and longest delay in ms, written into the archive's model-config.yaml; None for the defaults.
    """

    name: str
    handler: str
    batch: tuple[int, int] | None = None


ARCHIVES = {
    archive.name: archive
    for archive in (
        Archive("noop", "noop.py"),
        Archive("noop_b8", "noop.py", (8, 100)),
        Archive("noop_b8_d5", "noop.py", (8, 5)),
        Archive("sleep_b8", "sleep5.py", (8, 100)),
        Archive("echo", "echo.py"),
        Archive("stream", "stream.py"),
        Archive("torch_linear", "torch_linear.py"),
    )
}


def pack(venv: Path, store: Path, names: set[str]) -> None:
    """Write ``store/{name}.mar`` for each name with the environment's ``torch-model-archiver``.

    Raises:
        BenchError: The archiver is missing, failed, or took longer than a minute.
    """
    store.mkdir(parents=True, exist_ok=True)
    for name in sorted(names):
        archive = ARCHIVES[name]
        command = [str(venv / "bin" / "torch-model-archiver"), "--model-name", name, "--version", "1.0", "--force"]
        command += ["--handler", str(HANDLERS / archive.handler), "--export-path", str(store)]
        if archive.batch is not None:
            config = store / f"{name}.yaml"
            config.write_text(f"batchSize: {archive.batch[0]}\nmaxBatchDelay: {archive.batch[1]}\n")
            command += ["--config-file", str(config)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PACK_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchError(f"cannot pack {name}: {error}") from error
        if done.returncode != 0 or not (store / f"{name}.mar").is_file():
            raise BenchError(f"cannot pack {name}: {done.stderr or done.stdout}")
