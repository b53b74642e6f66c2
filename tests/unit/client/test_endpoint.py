from __future__ import annotations

import pytest

from relight.client.endpoint import Endpoint, parse


@pytest.mark.parametrize(
    ("address", "protocol", "secure", "authority", "url"),
    [
        ("http://127.0.0.1:8080", "http", False, "127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://models", "http", False, "models:80", "http://models:80"),
        ("https://models", "http", True, "models:443", "https://models:443"),
        ("HTTPS://Models:8443/", "http", True, "models:8443", "https://models:8443"),
        ("http://proxy/some/prefix/", "http", False, "proxy:80", "http://proxy:80/some/prefix"),
        ("grpc://127.0.0.1:7070", "grpc", False, "127.0.0.1:7070", "http://127.0.0.1:7070"),
        ("grpc://models", "grpc", False, "models:7070", "http://models:7070"),
        ("grpcs://models:9000/", "grpc", True, "models:9000", "https://models:9000"),
        ("grpc://[::1]:7070", "grpc", False, "[::1]:7070", "http://[::1]:7070"),
    ],
)
def test_addresses(address: str, protocol: str, secure: bool, authority: str, url: str) -> None:
    endpoint = parse(address)
    assert (endpoint.protocol, endpoint.secure, endpoint.authority, endpoint.url) == (protocol, secure, authority, url)


@pytest.mark.parametrize("address", ["unix:/run/relight.sock", "unix:///run/relight.sock"])
def test_unix_sockets(address: str) -> None:
    assert parse(address) == Endpoint("http", secure=False, host="", port=0, socket="/run/relight.sock")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:8080",
        "ftp://host",
        "http://",
        "http://host/?a=b",
        "http://host/#a",
        "http://user@host",
        "http://host:port",
        "http://host:99999",
        "grpc://host/path",
        "unix:relative",
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(address)
