from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.properties import ConfigurationError, Property, parse_properties, read_properties, substitute

if TYPE_CHECKING:
    from pathlib import Path


def values(text: str) -> dict[str, str]:
    return {key: entry.value for key, entry in parse_properties(text).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("  a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb c", {"a": "b c"}),
        ("a == b", {"a": "= b"}),
        ("a=:b", {"a": ":b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=b=c", {"a": "b=c"}),
        ("# a=b\n! c=d\n  # e=f\n\n   \n", {}),
        ("a=b # no comment", {"a": "b # no comment"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b  ", {"a": "b"}),
        ("a=b\t\f", {"a": "b"}),
        ("a=b\\ ", {"a": "b "}),
        ("a=b\\   ", {"a": "b "}),
        ("a=b\\\\  ", {"a": "b\\"}),
        ("a=1\\\n  2\\\n\t3", {"a": "123"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\r\n 2\r\nb=3", {"a": "12", "b": "3"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a\\:b\\=c\\ d=e", {"a:b=c d": "e"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u00e9\\u20AC", {"a": "é€"}),
        ("a=http\\://h\\:1", {"a": "http://h:1"}),
        ("a=x\x85y\x1cz", {"a": "x\x85y\x1cz"}),
    ],
)
def test_parses_as_java_does(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


def test_a_key_knows_its_line() -> None:
    parsed = parse_properties("# one\na=1\\\n  2\n\nb=3\n")
    assert parsed == {"a": Property("12", 2), "b": Property("3", 5)}


@pytest.mark.parametrize("escape", ["\\u12", "\\uxyzw", "\\u 123", "\\u"])
def test_a_malformed_unicode_escape_names_its_line(escape: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_properties(f"x=1\na={escape}", "my.properties")
    assert caught.value.message.startswith("malformed escape \\u")
    assert "(my.properties:2)" in caught.value.message


def test_reads_iso_8859_1(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_bytes(b"a=caf\xe9\n")
    assert read_properties(path) == {"a": Property("café", 1)}


def test_an_unreadable_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^cannot read here: Is a directory$"):
        read_properties(tmp_path, "here")


@given(st.text(alphabet=st.characters(max_codepoint=255)))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        parse_properties(text)


def escape(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" if not char.isalnum() or not char.isascii() else char for char in text)


@given(st.dictionaries(st.text(st.characters(max_codepoint=0xFFFF)), st.text(st.characters(max_codepoint=0xFFFF))))
def test_escaped_entries_come_back(entries: dict[str, str]) -> None:
    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in entries.items())
    assert values(text) == entries


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ("$$A$$", "1"),
        ("x$$A$$y$$B_2$$z", "x1y2z"),
        ("$$A$$$$B_2$$", "12"),
        ("$A$ $$A", "$A$ $$A"),
        ("$$EMPTY$$", ""),
    ],
)
def test_substitutes_variables(value: str, expected: str) -> None:
    assert substitute(value, {"A": "1", "B_2": "2", "EMPTY": ""}, "key, file:1") == expected


def test_an_unset_variable_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        substitute("a $$NOPE$$", {}, "model_store, config.properties:7")
    assert caught.value.message == (
        "Invalid Environment Variable NOPE (model_store, config.properties:7): it is not set"
    )
