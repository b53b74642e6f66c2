"""Form bodies: from multipart and urlencoded bodies to named inputs (rest_api.md §3.9)."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from relight.errors import BadRequestError

Part = tuple[str, str, bytes]
"""Name, content type (empty for plain fields), bytes."""

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_MOST_PARTS = 1024


def media_type(content_type: bytes | None) -> str:
    """The media type of a content-type header: up to the semicolon, trimmed, case kept; empty if there is none."""
    if content_type is None:
        return ""
    return content_type.partition(b";")[0].strip().decode("latin-1")


def boundary_of(content_type: bytes) -> bytes | None:
    """The boundary of a multipart content-type."""
    _, options = parse_options_header(content_type)
    return options.get(b"boundary") or None


def parse_urlencoded(body: bytes) -> list[Part]:
    """The fields of a form: of equal names the last counts, a last name without `=` is dropped.

    Raises:
        BadRequestError: an escape is malformed, or there are too many fields.
    """
    bad = _BAD_ESCAPE.search(body)
    if bad is not None:
        text = body[bad.start() : bad.start() + 3].decode("latin-1")
        raise BadRequestError(f"Invalid hex byte at index '{bad.start()}' of the form: '{text}'")
    fields: dict[str, bytes] = {}
    pairs = body.split(b"&", _MOST_PARTS + 1)
    if len(pairs) > _MOST_PARTS:
        raise BadRequestError(f"The form has more than {_MOST_PARTS} fields.")
    for index, pair in enumerate(pairs):
        name, equals, value = pair.replace(b"+", b" ").partition(b"=")
        if not name or (not equals and index == len(pairs) - 1):
            continue
        fields[unquote_to_bytes(name).decode("utf-8", "replace")] = unquote_to_bytes(value)
    return [(name, "", value) for name, value in fields.items()]


def parse_multipart(body: bytes, boundary: bytes) -> list[Part]:
    """The parts of a multipart body: of equal names the last counts.

    A part with a file name keeps its content type, one without is a plain field and has none.

    Raises:
        BadRequestError: the body is malformed or ends too early.
    """
    collector = _Collector()
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        parser.write(body)
    except FormParserError as error:
        raise BadRequestError(f"Malformed multipart body: {error}") from error
    if not collector.ended:
        raise BadRequestError("Malformed multipart body: it ends before its last boundary.")
    return [(name, content_type, bytes(data)) for name, (content_type, data) in collector.parts.items()]


class _Collector:
    """Collects what the parser reports."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[str, bytearray]] = {}
        self.ended = False
        self._headers: dict[bytes, bytes] = {}
        self._name = bytearray()
        self._value = bytearray()
        self._data: bytearray | None = None
        self._count = 0

    def callbacks(self) -> Any:
        """For `MultipartParser`."""
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        self._headers = {}
        self._data = None
        self._count += 1
        if self._count > _MOST_PARTS:
            raise BadRequestError(f"The multipart body has more than {_MOST_PARTS} parts.")

    def _header_end(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding not in (b"7bit", b"8bit", b"binary"):
            raise BadRequestError(
                f"Content-Transfer-Encoding {encoding.decode('latin-1')} is not supported: send the bytes as they are."
            )
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name")
        if name is None:
            raise BadRequestError("A part of the multipart body has no name.")
        content_type = ""
        if b"filename" in options:
            content_type = media_type(self._headers.get(b"content-type", b"application/octet-stream"))
        self._data = bytearray()
        key = name.decode("utf-8", "replace")
        # The last of equal names counts, in the place of the last.
        self.parts.pop(key, None)
        self.parts[key] = (content_type, self._data)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._data is not None:
            self._data += data[start:end]

    def _end(self) -> None:
        self.ended = True
