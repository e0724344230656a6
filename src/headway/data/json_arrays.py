"""Records of a JSON array, one after the other, each with its line; a block and one record are held at a time.

json's own scanner reads each record. So its values are those of the same record in JSON lines (long numbers, NaN, lone
surrogates, a key that is given twice), and a fault has its line, neither of which a streaming parser such as ijson
gives.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

_BLOCK_BYTES, _FIRST_BYTES = 2**20, 2**12
_KEPT = "surrogateescape"  # a byte that is no text stands for itself, so that only its own record is lost
_SPACE = re.compile(r"[ \t\r\n]*")
_NO_TEXT = re.compile("[\udc80-\udcff]")
_TOKEN_CHARACTERS = 16  # longer than any literal or escape: what is wrong so near the end may be one that goes on
_DECODER = json.JSONDecoder()


class NotJson(ValueError):
    """What is wrong with the document, and in which line."""

    def __init__(self, rule: str, line: int):
        super().__init__(rule)
        self.line = line


class BadByte(NamedTuple):
    """Where a byte is that is not in the document's encoding: line from 1, offset from 0."""

    line: int
    offset: int
    byte: int


class Element(NamedTuple):
    """One element of the array: its number and line, from 1, and its value, whole but for a bad byte."""

    number: int
    line: int
    value: Any
    bad: BadByte | None


def begins_array(file: BinaryIO) -> bool:
    """Whether the first character behind white space opens an array; little of the file is read for it."""
    begun, first = b"", file.read(_FIRST_BYTES).removeprefix(codecs.BOM_UTF8)
    while first and not (begun := first.lstrip(b" \t\r\n")):
        first = file.read(_FIRST_BYTES)
    return begun.startswith(b"[")


class JsonDocument:
    """A JSON document and a place in it. `encoding`: one whose blanks, brackets and quotes are those of ASCII.

    number: of the element that is read, from 1; 0 before the first.
    """

    def __init__(self, file: BinaryIO, encoding: str):
        self.number = 0
        self._file = file
        self._encoding = encoding.removesuffix("-sig")
        self._decoder = codecs.getincrementaldecoder(self._encoding)(_KEPT)
        self._held, self._at, self._line, self._ended = "", 0, 1, False
        mark = codecs.BOM_UTF8 if encoding.endswith("-sig") else b""
        first = file.read(_BLOCK_BYTES)
        self._before_bytes = len(mark) if first.startswith(mark) else 0  # of the file, before what is held
        self._held = self._decoder.decode(first.removeprefix(mark))

    def elements(self, field: str = "") -> Iterator[Element]:
        """The elements of the array that the document is, or of the one under the key `field` of its object.

        Raises:
            NotJson: at the first place that is not as it must be; records behind it cannot be told apart.
        """
        if field:
            self._enter(field)
        self._take("[", "an array")
        mark = "]" if self._next() == "]" else ","
        while mark == ",":
            self.number += 1
            yield self._element()
            mark = self._next()
            if mark == ",":
                self._move(self._at + 1)
        self._take("]", "a comma or the array's end")
        if field:
            while self._next() == ",":
                self._move(self._at + 1)
                self._key()
                self._value()
            self._take("}", "a comma or the object's end behind the array")
        if self._next():
            raise NotJson("goes on behind its end", self._line)

    def list_name(self) -> str:
        """The first key of the document's object under which objects are listed, '' where there is none."""
        try:
            self._take("{", "an object")
            while True:
                name = self._key()
                if self._next() == "[":
                    self._move(self._at + 1)
                    return name if isinstance(self._value()[0], dict) else ""
                self._value()
                self._take(",", "a comma")
        except NotJson:
            return ""

    def _enter(self, field: str) -> None:
        """Go to the value under a key of the document's object."""
        self._take("{", f"an object with a list under {field!r}")
        names: list[str] = []
        while self._next() != "}":
            names.append(self._key())
            if names[-1] == field:
                if self._next() != "[":
                    raise NotJson(f"holds no list under {field!r}", self._line)
                return
            self._value()
            if self._next() != "}":
                self._take(",", "a comma or the object's end")
        held = ", ".join(map(repr, names)) or "none"
        raise NotJson(f"has no {field!r}; its keys: {held}", self._line)

    def _key(self) -> str:
        self._next()
        line, (name, _) = self._line, self._value()
        if not isinstance(name, str):
            raise NotJson("expected a key", line)
        self._take(":", f"a colon behind {name!r}")
        return name

    def _element(self) -> Element:
        self._next()
        line = self._line
        value, raw = self._value()
        found = None if raw.isascii() else _NO_TEXT.search(raw)
        if found is None:
            return Element(self.number, line, value, None)
        before = raw[: found.start()]
        start_bytes = self._before_bytes + self._bytes(self._held[: self._at]) - self._bytes(raw)
        bad = BadByte(line + before.count("\n"), start_bytes + self._bytes(before), ord(found.group()) - 0xDC00)
        return Element(self.number, line, value, bad)

    def _bytes(self, text: str) -> int:
        return len(text.encode(self._encoding, _KEPT))

    def _value(self) -> tuple[Any, str]:
        """The value here and its text; the place is then behind it."""
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._at)
            except json.JSONDecodeError as error:
                open_end = error.msg.startswith("Unterminated") or error.pos > len(self._held) - _TOKEN_CHARACTERS
                if open_end and self._more():
                    continue
                line = self._line + self._held.count("\n", self._at, error.pos)
                torn = error.msg.startswith("Unterminated") or not self._held[error.pos :].strip()
                raise NotJson("ends in its middle" if torn else f"is not JSON: {error.msg}", line) from error
            except RecursionError as error:
                raise NotJson("is nested too deeply", self._line) from error
            except ValueError as error:  # a number of too many digits
                raise NotJson(f"is not read: {error}", self._line) from error
            if end < len(self._held) or not self._more():  # at the very end a number may go on
                raw = self._held[self._at : end]
                self._move(end)
                return value, raw

    def _next(self) -> str:
        """The character behind white space, '' at the document's end."""
        while True:
            blank = _SPACE.match(self._held, self._at)
            self._move(blank.end() if blank else self._at)
            if self._at < len(self._held) or not self._more():
                return self._held[self._at : self._at + 1]

    def _take(self, mark: str, wanted: str) -> None:
        found = self._next()
        if found != mark:
            raise NotJson(f"expected {wanted}, found {found!r}" if found else f"ends before {wanted}", self._line)
        self._move(self._at + 1)

    def _move(self, to: int) -> None:
        self._line += self._held.count("\n", self._at, to)
        self._at = to

    def _more(self) -> bool:
        """Read on, behind what is held; False at the end."""
        if self._ended:
            return False
        kept = self._held[self._at :]
        raw = self._file.read(max(_BLOCK_BYTES, len(kept)))
        added = self._decoder.decode(raw, final=not raw)
        self._ended = not raw
        if raw or added:
            self._before_bytes += self._bytes(self._held[: self._at])
            self._held, self._at = kept + added, 0
        return bool(raw or added)
