from __future__ import annotations

import json
import logging
import re
import stat
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from relight.errors import InvalidKeyError
from relight.properties import ConfigurationError
from relight.security.tokens import KEY_FILE_NAME, KeyKind, TokenAuthority

if TYPE_CHECKING:
    from pathlib import Path

REJECTED = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
NOT_REFRESHED = "Token Authentication failed. Token either incorrect, expired, or not provided correctly"
KINDS: list[KeyKind] = ["inference", "management"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / KEY_FILE_NAME


@pytest.fixture
def authority(path: Path, clock: Clock) -> TokenAuthority:
    return TokenAuthority(path, 60, clock)


def document(path: Path) -> dict[str, Any]:
    loaded = json.loads(path.read_bytes())
    assert isinstance(loaded, dict)
    return loaded


def bearer(path: Path, kind: str) -> bytes:
    return b"Bearer " + str(document(path)[kind]["key"]).encode()


def test_the_file_has_torchserves_form(authority: TokenAuthority, path: Path) -> None:
    text = path.read_text()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z"
    entry = rf'\{{\n    "key": "[\w-]{{8}}",\n    "expiration time": "{time}"\n  \}}'
    expected = (
        rf'\{{\n  "management": {entry},\n  "inference": {entry},\n  "API": \{{\n    "key": "[\w-]{{8}}"\n  \}}\n\}}'
    )
    assert re.fullmatch(expected, text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [KEY_FILE_NAME]


def test_the_file_names_the_time_at_which_keys_end(path: Path) -> None:
    before = datetime.now(timezone.utc)
    TokenAuthority(path, 0.1)
    after = datetime.now(timezone.utc)
    for kind in KINDS:
        text = document(path)[kind]["expiration time"]
        ends = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        assert before <= ends - timedelta(seconds=6) <= after


def test_keys_differ(authority: TokenAuthority, path: Path) -> None:
    assert len({entry["key"] for entry in document(path).values()}) == 3


def test_a_wider_older_file_is_replaced_by_a_private_one(path: Path) -> None:
    path.write_text("old")
    path.chmod(0o666)
    TokenAuthority(path, 60)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "management" in document(path)


def test_a_link_is_replaced_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("precious")
    path.symlink_to(victim)
    TokenAuthority(path, 60)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_key_passes(authority: TokenAuthority, path: Path, kind: KeyKind) -> None:
    authority.check(kind, bearer(path, kind))


@pytest.mark.parametrize("separator", [b"  ", b"\t", b" \t   ", b"\x0b", b"\x0c"])
def test_any_white_space_may_separate_the_key(authority: TokenAuthority, path: Path, separator: bytes) -> None:
    authority.check("inference", bearer(path, "inference").replace(b" ", separator))


def variants(right: bytes) -> list[bytes | None]:
    key = right[7:]
    return [
        None,
        b"",
        key,
        b"Bearer",
        b"Bearer ",
        b"Bearer" + key,
        b"bearer " + key,
        b"BEARER " + key,
        b"Basic " + key,
        b" " + right,
        right + b" ",
        right + b"\n",
        right + b" x",
        right[:-1],
        right + b"A",
        b"Bearer \xff\xfe",
        right.swapcase(),
    ]


@pytest.mark.parametrize("index", range(len(variants(b"Bearer 12345678"))))
def test_anything_else_is_rejected(authority: TokenAuthority, path: Path, index: int) -> None:
    with pytest.raises(InvalidKeyError) as caught:
        authority.check("inference", variants(bearer(path, "inference"))[index])
    assert caught.value.message == REJECTED
    assert (caught.value.status, caught.value.grpc_code) == (400, "PERMISSION_DENIED")


@pytest.mark.parametrize(("kind", "other"), [("inference", "management"), ("management", "inference")])
@pytest.mark.parametrize("use_api", [False, True])
def test_keys_open_only_their_own_doors(
    authority: TokenAuthority, path: Path, kind: KeyKind, other: KeyKind, use_api: bool
) -> None:
    with pytest.raises(InvalidKeyError):
        authority.check(kind, bearer(path, "API" if use_api else other))


def test_a_key_is_valid_until_its_time(authority: TokenAuthority, path: Path, clock: Clock) -> None:
    right = bearer(path, "inference")
    clock.now += 3599.9
    authority.check("inference", right)
    clock.now += 0.1
    with pytest.raises(InvalidKeyError):
        authority.check("inference", right)


@pytest.mark.parametrize("minutes", [0, -1, -1e300])
def test_without_a_lifetime_keys_are_expired_at_once(path: Path, clock: Clock, minutes: float) -> None:
    authority = TokenAuthority(path, minutes, clock)
    with pytest.raises(InvalidKeyError):
        authority.check("management", bearer(path, "management"))


def test_an_endless_lifetime_fits_into_a_date(path: Path, clock: Clock) -> None:
    authority = TokenAuthority(path, 1e300, clock)
    clock.now += 1e9
    authority.check("inference", bearer(path, "inference"))


def test_editing_the_file_changes_nothing(authority: TokenAuthority, path: Path) -> None:
    right = bearer(path, "inference")
    path.write_text("{}")
    authority.check("inference", right)


@pytest.mark.parametrize("kind", KINDS)
def test_refresh_replaces_one_key_at_once(authority: TokenAuthority, path: Path, clock: Clock, kind: KeyKind) -> None:
    before = {name: bearer(path, name) for name in ("inference", "management", "API")}
    clock.now += 10000
    authority.refresh(kind, before["API"])
    after = {name: bearer(path, name) for name in before}
    authority.check(kind, after[kind])
    with pytest.raises(InvalidKeyError):
        authority.check(kind, before[kind])
    assert {name for name in before if before[name] != after[name]} == {kind}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", [None, "", "Inference", "INFERENCE", "API", "inference ", "other"])
def test_refresh_of_another_kind_is_refused(
    authority: TokenAuthority, path: Path, kind: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    before = path.read_bytes()
    with pytest.raises(InvalidKeyError) as caught:
        authority.refresh(kind, bearer(path, "API"))
    assert caught.value.message == NOT_REFRESHED
    assert path.read_bytes() == before
    assert caplog.messages == ["Failed to update key file"]
    assert caplog.records[0].name == "org.pytorch.serve.http.TokenAuthorizationHandler"
    assert caplog.records[0].levelno == logging.ERROR


@pytest.mark.parametrize("kind", KINDS)
def test_refresh_needs_the_api_key(authority: TokenAuthority, path: Path, kind: KeyKind) -> None:
    for authorization in (None, b"", b"Bearer wrong", bearer(path, kind)):
        with pytest.raises(InvalidKeyError, match=r"^Token Authentication failed"):
            authority.refresh(kind, authorization)


def test_a_refresh_that_cannot_be_written_changes_no_key(authority: TokenAuthority, path: Path) -> None:
    right, api = bearer(path, "inference"), bearer(path, "API")
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(InvalidKeyError, match=r"^Token Authentication failed"):
        authority.refresh("inference", api)
    authority.check("inference", right)


def test_an_unwritable_place_is_a_configuration_error(tmp_path: Path) -> None:
    target = tmp_path / "missing" / KEY_FILE_NAME
    with pytest.raises(ConfigurationError) as caught:
        TokenAuthority(target, 60)
    assert caught.value.message == (
        f"Token Authorization setup unsuccessful: cannot write {target}: No such file or directory"
    )


def test_a_folder_in_the_way_leaves_nothing_behind(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ConfigurationError, match=r"^Token Authorization setup unsuccessful: "):
        TokenAuthority(path, 60)
    assert list(path.parent.iterdir()) == [path]


def test_delete_removes_the_own_file(authority: TokenAuthority, path: Path) -> None:
    authority.refresh("inference", bearer(path, "API"))
    authority.delete()
    assert not path.exists()
    authority.delete()


def test_delete_spares_the_file_of_another_server(authority: TokenAuthority, path: Path) -> None:
    TokenAuthority(path, 60)
    content = path.read_bytes()
    authority.delete()
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_removed_is_logged(
    authority: TokenAuthority, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    path.mkdir()
    authority.delete()
    assert caplog.messages == [f"Failed to remove key file {path}: Is a directory"]


def test_the_notice_has_torchserves_lines(authority: TokenAuthority, path: Path) -> None:
    assert authority.notice.split("\n") == [
        "",
        "######",
        "TorchServe now enforces token authorization by default.",
        "This requires the correct token to be provided when calling an API.",
        f"Key file located at {path}",
        (
            "Check token authorization documenation for information: "
            "https://github.com/pytorch/serve/blob/master/docs/token_authorization_api.md "
        ),
        "######",
        "",
    ]
