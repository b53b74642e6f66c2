"""Which urls may be fetched, and what they are called in the store."""

from __future__ import annotations

import pytest

from relight.archive.urls import AllowedUrls, check_location, is_url, local_name, redacted
from relight.errors import ModelNotFoundError


@pytest.mark.parametrize("url", ["http://h/a.mar", "https://h/a.mar", "file:///a.mar", "HTTPS://H/a.mar"])
def test_by_default_every_url_is_allowed(url: str) -> None:
    assert AllowedUrls().allows(url)


@pytest.mark.parametrize("text", ["a.mar", "/store/a.mar", "ftp://h/a.mar", "file:/a.mar", "s3://b/a.mar", ""])
def test_names_are_no_urls_whatever_the_patterns_say(text: str) -> None:
    assert not is_url(text)
    assert not AllowedUrls(".*").allows(text)


def test_a_pattern_has_to_match_all_of_the_url_in_any_case() -> None:
    allowed = AllowedUrls("https://models\\.example/.*\\.mar, file:///models/.*")
    assert allowed.allows("https://MODELS.example/x.mar")
    assert allowed.allows("file:///models/x.tar.gz")
    assert not allowed.allows("https://models.example/x.mar?y")
    assert not allowed.allows("http://evil/?https://models.example/x.mar")
    assert not allowed.allows("https://models.example/\nx.mar")


def test_no_pattern_allows_nothing() -> None:
    assert not AllowedUrls("").allows("http://h/a.mar")
    assert not AllowedUrls(" , ").allows("http://h/a.mar")


def test_a_bad_pattern_is_named() -> None:
    with pytest.raises(ValueError, match=r"^allowed_urls: http\( is not a regular expression"):
        AllowedUrls("file://.*,http(")


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("a.mar", "a.mar"),
        ("sub/a.mar", "a.mar"),
        ("/abs/a.mar", "a.mar"),
        ("dir/", "dir"),
        ("ftp://h/a.mar", "a.mar"),
        ("http://h/sub/a.mar?x=/y#/z", "a.mar"),
        ("http://h/a%2Fb.mar", "a%2Fb.mar"),
        ("file:///m/a.mar", "a.mar"),
        ("http://h/", None),
        ("http://h", None),
        ("http://h/a\\b.mar", None),
        ("http://evil\\@good/b.mar", None),
        ("http://[::1/b.mar", None),
        ("http://h/a\n.mar", None),
        ("/", None),
        (".", None),
        ("a/.", None),
        ("a\0b", None),
    ],
)
def test_the_name_is_the_last_component(location: str, name: str | None) -> None:
    assert local_name(location) == name


@pytest.mark.parametrize("location", ["../x.mar", "x..mar", "http://h/x.mar?..", "a/../../b"])
def test_two_dots_are_refused_anywhere(location: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        check_location(location)
    assert caught.value.message == f"Relative path is not allowed in url: {location}"


def test_an_empty_location_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match=r"^empty url$"):
        check_location("")


def test_secrets_do_not_reach_the_log() -> None:
    assert redacted("https://user:pw@h:1/a.mar?X-Amz-Signature=s#f") == "https://h:1/a.mar"
