"""The model archives of the conformance data (rest_api.md §8), built from tests/handlers."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.server import command_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

HANDLERS = Path(__file__).resolve().parent.parent / "handlers"

CFG1 = """\
minWorkers: 1
maxWorkers: 2
batchSize: 2
maxBatchDelay: 300
responseTimeout: 55
startupTimeout: 66
maxRetryTimeoutInSec: 7
clientTimeoutInMills: 1500
jobQueueSize: 2
"""


def manifest(name: str | None, handler: str, version: str | None = "1.0", **model: object) -> dict[str, object]:
    """Return a manifest (archives_and_handlers.md §1.3); extra members go into its `model`."""
    entry: dict[str, object] = {"handler": f"{handler}.py", **model}
    if name is not None:
        entry["modelName"] = name
    if version is not None:
        entry["modelVersion"] = version
    return {
        "createdOn": "20/11/2026 05:14:04",
        "runtime": "python",
        "model": entry,
        "archiverVersion": "0.12.0",
    }


def contents(
    name: str | None, handler: str, version: str | None = "1.0", *, config: str | None = None
) -> dict[str, bytes]:
    """Return the files of a model, by their path in the archive."""
    extra = {} if config is None else {"configFile": "model-config.yaml"}
    files = {f"{handler}.py": (HANDLERS / f"{handler}.py").read_bytes()}
    if config is not None:
        files["model-config.yaml"] = config.encode()
    files["MAR-INF/MANIFEST.json"] = json.dumps(manifest(name, handler, version, **extra), indent=2).encode()
    return files


def write_mar(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write a `.mar`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: Mapping[str, bytes], root: str) -> Path:
    """Write a `.tar.gz` with its root folder."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_folder(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write a model directory."""
    for name, data in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


def with_archiver(folder: Path, name: str, handler: str) -> Path:
    """Write a `.mar` with the torch-model-archiver under test."""
    command = [str(command_folder() / "torch-model-archiver"), "--model-name", name, "--version", "1.0"]
    command += ["--handler", str(HANDLERS / f"{handler}.py"), "--export-path", str(folder), "--force"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / f"{name}.mar"


def build_all(folder: Path) -> list[Path]:
    """Write every archive of the conformance data into the folder and return them."""
    made = [
        write_mar(folder / f"swiss_v{number}.mar", contents("swiss", "swiss", f"{number}.0")) for number in (1, 2, 3)
    ]
    made += [write_mar(folder / f"{name}.mar", contents(name, name)) for name in ("badrt", "badve", "badmem")]
    made += [write_mar(folder / f"{name}.mar", contents(name, name)) for name in ("slowinit",)]
    made.append(with_archiver(folder, "noop", "noop"))
    made.append(write_mar(folder / "cfg1.mar", contents("cfg1", "swiss", config=CFG1)))
    literal = f"{CFG1}batchPolicy: fixed\n"  # relight's name for the literal wait for a full batch
    made.append(write_mar(folder / "cfg1fixed.mar", contents("cfg1fixed", "swiss", config=literal)))
    made.append(write_mar(folder / "badretry.mar", contents("badretry", "badve", config="maxRetryTimeoutInSec: 1\n")))
    made.append(write_mar(folder / "ticket.mar", contents("ticket", "swiss", config="useJobTicket: true\n")))
    made.append(
        write_mar(folder / "impatient.mar", contents("impatient", "swiss", config="clientTimeoutInMills: 500\n"))
    )
    made.append(write_mar(folder / "narrow.mar", contents("narrow", "swiss", config="jobQueueSize: 2\n")))
    made.append(write_mar(folder / "nameless.mar", contents(None, "noop")))
    made.append(write_mar(folder / "versionless.mar", contents("versionless", "noop", None)))
    made.append(write_tar(folder / "tgzm.tar.gz", contents("tgzm", "noop", "1.6"), "tgzm"))
    made.append(write_folder(folder / "dirm", contents("dirm", "noop", "1.5")))
    return made + _broken(folder)


def _broken(folder: Path) -> list[Path]:
    noop = contents("x", "noop")
    without = {key: value for key, value in noop.items() if not key.startswith("MAR-INF")}
    weird = {**noop, "MAR-INF/MANIFEST.json": json.dumps({**manifest("weird", "noop"), "runtime": "weird"}).encode()}
    files = {
        "garb.mar": b"this is no zip file",
        "empty.mar": b"",
        "garb.tar.gz": b"this is no gzip file",
        "half.tar.gz": gzip.compress(b"this is no tar file"),
    }
    made = [write_mar(folder / "noman.mar", without)]
    made.append(write_mar(folder / "badman.mar", {**noop, "MAR-INF/MANIFEST.json": b"{bad"}))
    made.append(write_mar(folder / "weird.mar", weird))
    made.append(write_mar(folder / "slip.mar", {**noop, "../slipped.txt": b"out"}))
    for name, data in files.items():
        (folder / name).write_bytes(data)
        made.append(folder / name)
    sub = folder / "sub"
    sub.mkdir()
    write_mar(sub / "subnoop.mar", contents("subnoop", "noop"))
    return [*made, sub]
