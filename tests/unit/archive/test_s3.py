"""Signed downloads: the test vector, and a real S3-compatible server that checks signatures."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from relight.archive.fetch import fetch
from relight.archive.s3 import AwsCredentials, find_credentials, signed_headers
from relight.archive.urls import AllowedUrls
from relight.errors import DownloadArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.archive.conftest import Web

NOW = datetime(2026, 11, 20, 5, 10, 4, tzinfo=timezone.utc)
EXAMPLE = AwsCredentials("us-east-1", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
ENV = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK"}
BODY = b"model" * 10_000


def signature(url: str, credentials: AwsCredentials = EXAMPLE) -> str:
    return signed_headers(url, credentials, NOW)["Authorization"].rpartition("=")[2]


def test_the_test_vector() -> None:
    headers = signed_headers("http://127.0.0.1:18090/webnoop.mar", EXAMPLE, NOW)
    assert headers == {
        "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date": "20261120T051004Z",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261120/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
        "Signature=9df13df43827c813de2e58621d896ca372551db448fc0d213afab1aae0e25b2f",
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://h/a%20b(1)+x", "http://h/a%20b%281%29%2Bx"),
        ("http://h", "http://h/"),
        ("http://H/x", "http://h/x"),
        ("http://u:p@h/x", "http://h/x"),
        ("http://h/x?b=2&a=1", "http://h/x?a=1&b=2"),
        ("http://h/x?versionId", "http://h/x?versionId="),
        ("http://h/x?a=%7e", "http://h/x?a=~"),
    ],
)
def test_two_spellings_of_one_request_have_one_signature(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(("one", "other"), [("/x?versionId=1", "/x"), ("/a%2Fb?a=b%3Dc", "/a/b?a=b&c"), ("//x", "/x")])
def test_different_requests_have_different_signatures(one: str, other: str) -> None:
    assert signature(f"http://h{one}") != signature(f"http://h{other}")


@pytest.mark.parametrize("url", ["https://b.s3.amazonaws.com/a%20b/c%2Bd~?versionId=x%2Fy&a=", "http://h:9000/b/k"])
@pytest.mark.parametrize("token", [None, "tok/en=="])
def test_signatures_are_botocores(url: str, token: str | None) -> None:
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    credentials = AwsCredentials("eu-west-1", "AK", "SK", token)
    ours = signed_headers(url, credentials, NOW)
    signer = auth.S3SigV4Auth(Credentials("AK", "SK", token), "s3", "eu-west-1")
    request = AWSRequest("GET", url, headers={key: value for key, value in ours.items() if key != "Authorization"})
    request.context["timestamp"] = ours["x-amz-date"]
    canonical = signer.canonical_request(request)
    theirs = signer.signature(signer.string_to_sign(request, canonical), request)
    assert ours["Authorization"].endswith(f"Signature={theirs}")


def test_environment_credentials() -> None:
    assert find_credentials("u", ENV) == AwsCredentials("us-east-1", "AK", "SK")
    assert find_credentials("u", {**ENV, "AWS_SESSION_TOKEN": "T"}).session_token == "T"
    assert "SK" not in repr(find_credentials("u", ENV))


@pytest.mark.parametrize("name", ENV)
def test_an_empty_variable_fails(name: str) -> None:
    with pytest.raises(DownloadArchiveError, match=r"^Failed to download archive from: u$"):
        find_credentials("u", {**ENV, name: ""})


@pytest.mark.parametrize("name", ENV)
def test_a_missing_variable_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    env = {key: value for key, value in ENV.items() if key != name}
    expected = f"^Failed to download archive from: u. The environment variable {name} is not set.$"
    with pytest.raises(DownloadArchiveError, match=expected):
        find_credentials("u", env)


def without_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*ENV, "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def test_a_profile_gives_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_aws(monkeypatch, tmp_path)
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = PA\naws_secret_access_key = PS\n")
    (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n")
    assert find_credentials("u") == AwsCredentials("eu-north-1", "PA", "PS")


def test_no_credentials_anywhere_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_aws(monkeypatch, tmp_path)
    with pytest.raises(DownloadArchiveError, match="AWS_DEFAULT_REGION is not set"):
        find_credentials("u")


class Bucket:
    """A bucket of encrypted objects on a server that checks signatures, and who may read it."""

    def __init__(self, url: str, key: dict[str, str], role: dict[str, str]) -> None:
        self.url = url
        self.key = key
        self.role = role


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    from moto import settings
    from moto.core.authorization import ActionAuthenticatorMixin
    from moto.settings import INITIAL_NO_AUTH_ACTION_COUNT as UNCHECKED

    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"

    def client(service: str) -> Any:
        return boto3.client(service, "us-east-1", endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x")

    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    s3, iam, sts = client("s3"), client("iam"), client("sts")
    s3.create_bucket(Bucket="models")
    for name in ("a.mar", "dir/a b(1)+x.mar"):
        s3.put_object(Bucket="models", Key=name, Body=BODY, ServerSideEncryption="aws:kms")
    iam.create_user(UserName="u")
    iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="u")["AccessKey"]
    role = iam.create_role(RoleName="r", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    iam.put_role_policy(RoleName="r", PolicyName="p", PolicyDocument=json.dumps(policy))
    temporary = sts.assume_role(RoleArn=role, RoleSessionName="session")["Credentials"]
    settings.INITIAL_NO_AUTH_ACTION_COUNT, ActionAuthenticatorMixin.request_count = 0, 0
    try:
        yield Bucket(f"{url}/models", key, temporary)
    finally:
        settings.INITIAL_NO_AUTH_ACTION_COUNT = UNCHECKED
        server.stop()


def sign_in(monkeypatch: pytest.MonkeyPatch, credentials: dict[str, str]) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", credentials["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", credentials["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", credentials.get("SessionToken", ""))


@pytest.mark.parametrize("name", ["a.mar", "dir/a%20b(1)+x.mar", "dir/a%20b%281%29%2Bx.mar"])
@pytest.mark.parametrize("who", ["key", "role"])
def test_encrypted_objects_are_downloaded(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, who: str
) -> None:
    sign_in(monkeypatch, getattr(bucket, who))
    assert fetch(f"{bucket.url}/{name}", tmp_path, AllowedUrls(), s3_sse_kms=True).read_bytes() == BODY


def test_unsigned_and_wrongly_signed_requests_fail(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(monkeypatch, {**bucket.key, "SecretAccessKey": "wrong"})
    for signed in (False, True):
        with pytest.raises(DownloadArchiveError):
            fetch(f"{bucket.url}/a.mar", tmp_path, AllowedUrls(), s3_sse_kms=signed)
    assert list(tmp_path.iterdir()) == []


def test_signatures_stay_with_the_first_host(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch, {"AccessKeyId": "AK", "SecretAccessKey": "SK", "SessionToken": "T"})
    web.serve("/c.mar", BODY)
    web.redirect("/b.mar", web.url("/c.mar", "localhost"))
    fetch(web.redirect("/a.mar", "/b.mar"), tmp_path, AllowedUrls(), s3_sse_kms=True)
    first, second, third = (headers for _, headers in web.seen)
    assert {"authorization", "x-amz-security-token", "x-amz-date"} <= first.keys()
    assert "authorization" in second
    assert first["authorization"] != second["authorization"]
    assert not {"authorization", "x-amz-security-token"} & third.keys()


def test_a_missing_variable_costs_no_request(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_aws(monkeypatch, tmp_path)
    with pytest.raises(DownloadArchiveError, match="AWS_DEFAULT_REGION is not set"):
        fetch(web.serve("/a.mar", BODY), tmp_path, AllowedUrls(), s3_sse_kms=True)
    assert web.seen == []


def test_file_urls_are_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch, {"AccessKeyId": "AK", "SecretAccessKey": "SK"})
    (tmp_path / "a.mar").write_bytes(BODY)
    (tmp_path / "store").mkdir()
    with pytest.raises(DownloadArchiveError):
        fetch(f"file://{tmp_path}/a.mar", tmp_path / "store", AllowedUrls(), s3_sse_kms=True)
