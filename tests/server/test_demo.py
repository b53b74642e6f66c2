"""`make demo`: the main job, as a newcomer runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = EXAMPLES / "digits"
WAYS = [f"{protocol}, {clients}" for protocol in ("REST", "gRPC") for clients in ("one by one", "8 at a time")]

pytest.importorskip("torch")
pytest.importorskip("sklearn")


def run_demo(folder: Path, script: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder), "TS_CONFIG_FILE": "/nonexistent/other.properties"}
    return subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=170, check=False
    )


def test_the_demo_reads_the_digits_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "t", EXAMPLE / "demo.py")

    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(REST, .+?|gRPC, .+?) +(\d+) +(\d+) +(\d+\.\d)% ", done.stdout, re.MULTILINE)
    assert [(label, images) for label, images, _, _ in rows] == [(way, "100") for way in (*WAYS, "gRPC, streamed")]
    assert all(int(right) >= 95 for _, _, right, _ in rows)
    assert 'Model "strip" Version: 1.0 registered with 1 initial workers' in done.stdout
    assert 'Model "strip" unregistered' in done.stdout
    assert list((tmp_path / "t").glob("relight-demo-*")) == []


def test_a_failing_demo_shows_the_log_and_ends_its_server(tmp_path: Path) -> None:
    example = tmp_path / "digits"
    shutil.copytree(EXAMPLE, example)
    shutil.copytree(EXAMPLES / "common", tmp_path / "common")
    with (example / "handler.py").open("a") as file:
        file.write("\nraise ValueError('no such luck')\n")

    done = run_demo(tmp_path / "t", example / "demo.py")

    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stdout
    assert "The demo failed: PUT /models/digits was answered 500" in done.stderr
    (kept,) = (tmp_path / "t").glob("relight-demo-*")
    assert not (kept / "key_file.json").exists()
