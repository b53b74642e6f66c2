"""Generates the Python modules of `src/relight/protos` from the .proto files; `--check` only compares.

The generated modules use relight's own descriptor pool (see the package's docstring), which protoc has no option for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from google.rpc import status_pb2
from grpc_tools import protoc

SOURCE = Path(__file__).parent.parent / "src"
PROTOS = SOURCE / "relight" / "protos"
REPLACED = {
    "from google.protobuf import descriptor_pool as _descriptor_pool": "from relight.protos.pool import POOL as _POOL",
    "_descriptor_pool.Default().AddSerializedFile(": "_POOL.AddSerializedFile(",
}


def generate(target: Path) -> None:
    """Write the modules of all files below a folder."""
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={SOURCE}",
            f"--proto_path={Path(protoc.__file__).parent / '_proto'}",
            f"--proto_path={Path(status_pb2.__file__).parents[2]}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet,readable_stubs:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *(str(path) for path in sorted(PROTOS.glob("*.proto"))),
        ]
    )
    if status:
        raise SystemExit(status)
    for path in target.rglob("*_pb2.py"):
        text = path.read_text()
        for old, new in REPLACED.items():
            if text.count(old) != 1:
                raise SystemExit(f"{path.name}: protoc writes other code than expected; adapt REPLACED")
            text = text.replace(old, new)
        path.write_text(text)


def main() -> int:
    """Rewrite the modules, or check them."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = {path.name: path.read_text() for path in Path(folder).rglob("*_pb2*.py*")}
    present = {path.name: path.read_text() for path in PROTOS.glob("*_pb2*.py*")}
    if "--check" in sys.argv[1:]:
        stale = sorted(name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name))
        if stale:
            print(f"src/relight/protos: {', '.join(stale)} out of date: run make protos", file=sys.stderr)
        return bool(stale)
    for name in present.keys() - fresh.keys():
        (PROTOS / name).unlink()
    for name, text in fresh.items():
        (PROTOS / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
