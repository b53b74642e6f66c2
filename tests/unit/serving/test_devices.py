"""Counting and assigning devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relight.serving.devices import DeviceAssigner, count_gpus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0", 1),
        ("0,1,2", 3),
        ("3,1", 2),
        (" 0 , 1 ", 2),
        ("0,0,1", 2),
        ("-1", 0),
        ("0,-1,1", 1),
        ("NoDevFiles", 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1),
        ("GPU-8932f937,GPU-aaaa", 2),
        ("MIG-GPU-8932f937/1/2", 1),
        ("0,,1", 1),
        (",", 0),
        ("a", 0),
    ],
)
def test_visible_devices(visible: str, count: int) -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": visible}) == count


def nvidia_smi(folder: Path, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ('[ "$*" = "--query-gpu=index --format=csv,noheader" ] && printf "0\\n1\\n"', 2),
        ("echo 'No devices were found'", 0),
        ("exit 9", 0),
        ("echo 0; exit 1", 0),
    ],
)
@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_the_tool_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, count: int, environ: dict[str, str]
) -> None:
    nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert count_gpus(environ) == count


def test_without_the_tool_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert count_gpus({}) == 0


def test_a_tool_that_hangs_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvidia_smi(tmp_path, "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("relight.serving.devices._QUERY_TIMEOUT", 0.05)

    assert count_gpus({}) == 0


@pytest.mark.parametrize(
    ("devices", "in_use", "expected"),
    [
        ([], [], None),
        ([], [None, 0], None),
        ([0, 1], [], 0),
        ([0, 1], [0], 1),
        ([0, 1], [0, 1], 0),
        ([0, 1], [1, 0, 1], 0),
        ([0, 1], [None, None], 0),
        ([3, 1], [], 3),
        ([3, 1], [3], 1),
        ([1], [0, 0, 2], 1),
    ],
)
def test_the_device_of_the_next_worker(devices: list[int], in_use: list[int | None], expected: int | None) -> None:
    assert DeviceAssigner(devices).next(in_use) == expected
