"""Unix sockets in detail, and what a server writes into its log files (rest_api.md §1.1, configuration.md §10.1)."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.server import is_reference
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.conftest import ServerFactory
    from tests.support.server import Server

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"
ROLES = ("inference", "management", "metrics")


@pytest.fixture(scope="module")
def unix_server(make_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server on three unix sockets, with the model `swiss`; started under an ordinary umask."""
    folder = tmp_path_factory.mktemp("u")
    before = os.umask(0o022)
    try:
        server = make_server({f"{role}_address": f"unix:{folder / role}" for role in ROLES})
    finally:
        os.umask(before)
    assert server.register("swiss_v1.mar", initial_workers=1).status == 200
    return server


@pytest.fixture(scope="module")
def tcp_server(make_server: ServerFactory) -> Server:
    """A server with the model `swiss`."""
    server = make_server()
    assert server.register("swiss_v1.mar", initial_workers=1).status == 200
    return server


def lines_with(server: Server, file: str, text: str, count: int = 1) -> list[str]:
    """Return the lines of a log file that hold a text, when there are that many."""
    path = server.logs / file
    return wait_for(
        f"{count} lines with {text} in {file}",
        lambda: (
            lines if len(lines := [line for line in path.read_text().splitlines() if text in line]) >= count else None
        ),
    )


def test_socket_files_have_the_mode_of_the_umask(unix_server: Server) -> None:
    for listener in (unix_server.inference, unix_server.management, unix_server.metrics):
        mode = Path(str(listener.address)).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o755


def test_large_bodies_over_a_unix_socket(unix_server: Server) -> None:
    response = unix_server.inference.request("POST", "/predictions/swiss", body=b"x" * 2_000_000)

    assert response.json()["row"]["body"]["len"] == 2_000_000


def test_many_requests_over_one_unix_connection(unix_server: Server) -> None:
    with unix_server.inference.connect() as connection:
        for _ in range(50):
            assert connection.request("GET", "/ping").status == 200


def test_the_peer_of_a_unix_socket_in_the_access_log(unix_server: Server) -> None:
    assert unix_server.inference.get("/ping?over=unix").status == 200

    (line,) = lines_with(unix_server, "access_log.log", "/ping?over=unix")
    assert re.fullmatch(rf'{STAMP} - 127\.0\.0\.1 "GET /ping\?over=unix HTTP/1\.1" 200 \d+', line)


def test_a_stale_socket_does_not_hinder_a_restart(unix_server: Server) -> None:
    unix_server.stop()
    path = str(unix_server.metrics.address)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert Path(path).exists()

    unix_server.start()

    with unix_server.metrics.connect() as connection:
        assert connection.request("GET", "/metrics").status == 200


def test_every_answer_has_a_line_in_the_access_log(tcp_server: Server) -> None:
    with tcp_server.inference.connect() as connection:
        port = connection.socket.getsockname()[1]
        for number in range(20):
            assert connection.request("GET", f"/ping?n={number}&mark=many").status == 200
        connection.send(b"GET /nowhere?mark=many HTTP/1.0\r\n\r\n")
        assert connection.read_response().status == 404

    lines = lines_with(tcp_server, "access_log.log", "mark=many", 21)
    expected = [f"GET /ping?n={number}&mark=many HTTP/1.1" for number in range(20)] + [
        "GET /nowhere?mark=many HTTP/1.0"
    ]
    for line, request in zip(lines, expected, strict=True):
        status = 404 if "nowhere" in request else 200
        assert re.fullmatch(rf'{STAMP} - /127\.0\.0\.1:{port} "{re.escape(request)}" {status} \d+', line)


def test_the_access_log_is_in_the_server_log_once(tcp_server: Server) -> None:
    assert tcp_server.inference.get("/ping?mark=once").status == 200

    (line,) = lines_with(tcp_server, "ts_log.log", "mark=once")
    assert re.fullmatch(
        rf'{STAMP} \[INFO \] \S+ ACCESS_LOG - /127\.0\.0\.1:\d+ "GET /ping\?mark=once HTTP/1\.1" 200 \d+', line
    )
    wait_for("the line on the console", lambda: tcp_server.log.count("mark=once") == 1)


def test_refused_requests_without_a_line(tcp_server: Server) -> None:
    body = b"x" * 6_553_501
    assert tcp_server.inference.request("POST", "/predictions/swiss?mark=large", body=body).status == 413
    assert tcp_server.inference.get("/ping?mark=after").status == 200

    lines_with(tcp_server, "access_log.log", "mark=after")
    assert "mark=large" not in (tcp_server.logs / "access_log.log").read_text()


@pytest.mark.skipif(is_reference(), reason="TorchServe logs each record twice")
def test_what_a_worker_prints(tcp_server: Server) -> None:
    headers = {"x-op": "raise"}
    assert tcp_server.inference.get("/predictions/swiss", headers).status == 503

    name = r"W-\d+-swiss_1\.0-stdout"
    for file in ("model_log.log", "ts_log.log"):
        last = lines_with(tcp_server, file, "RuntimeError: boom")[-1]
        assert re.fullmatch(rf"{STAMP} \[INFO \] {name} MODEL_LOG - RuntimeError: boom", last)
        (line,) = lines_with(tcp_server, file, "Invoking custom service failed.")
        assert re.fullmatch(rf"{STAMP} \[INFO \] {name} MODEL_LOG - Invoking custom service failed\.", line)
