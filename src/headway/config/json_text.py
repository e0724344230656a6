"""JSON as people write it: comments (//, #, /* */), trailing commas, a byte order mark; with the line of every key.

DeepSpeed reads its files by hjson, which knows no line numbers and takes bare words for texts. This reader takes what
is unmistakable, and names everything else with its line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from headway.config.reader import KeyPath, Source, dotted
from headway.errors import ConfigError, Problem

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|#[^\n]*|/\*.*?\*/)+", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-])")
_WORD = re.compile(r"[^\s,:{}\[\]\"#]+")
_BASED = re.compile(r"[+-]?0[xXoObB][0-9a-fA-F_]+")
_WORDS = {"true": True, "false": False, "null": None}
_MEANT = {"True": "true", "False": "false", "None": "null", "yes": "true", "no": "false", "TRUE": "true"}
_DEEPEST = 64


class Bare:
    """In a value's place where there is none: the Problem has been noted."""


BARE = Bare()


def parse_json(text: str, name: str) -> Source:
    """The value of `text`, the line of each key, and a Problem for each key given twice and each value that is none.

    Raises:
        ConfigError: the text has no structure that could be read on, with its line.
    """
    return _Reader(text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), name).read()


class _Reader:
    def __init__(self, text: str, name: str):
        self._text, self._at = text, 0
        self._source = Source(name, text, None)

    def read(self) -> Source:
        self._skip()
        if self._at == len(self._text):
            raise ConfigError(f"{self._source.name} is empty", fix="write at least {}")
        self._source.data = self._value((), 0)
        self._skip()
        if self._at < len(self._text):
            self._fail("goes on after its last bracket", "keep one value in the file")
        return self._source

    # --- places ------------------------------------------------------------------------------------------------------

    def _line(self, at: int | None = None) -> int:
        return self._text.count("\n", 0, self._at if at is None else at) + 1

    def _fail(self, what: str, fix: str, at: int | None = None) -> NoReturn:
        raise ConfigError(f"{self._source.name}:{self._line(at)}: cannot be read as JSON: {what}", fix=fix)

    def _problem(self, path: KeyPath, rule: str, fix: str, value: object = None) -> None:
        where = f"{self._source.name}:{self._line()}"
        self._source.problems.append(Problem(dotted(path) or "the file", rule, value, fix, where))

    def _skip(self) -> None:
        if match := _SPACE.match(self._text, self._at):
            self._at = match.end()
        if self._text.startswith("/*", self._at):
            self._fail("a comment is not closed", "end it with */")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    # --- values ------------------------------------------------------------------------------------------------------

    def _value(self, path: KeyPath, depth: int) -> Any:
        if depth > _DEEPEST:
            self._fail("it is nested too deeply", "close the brackets")
        start = self._peek()
        if start == "{":
            return self._mapping(path, depth)
        if start == "[":
            items: list[Any] = []
            self._members("[", "]", lambda: items.append(self._item((*path, len(items)), depth)))
            return items
        if start == '"':
            return self._string()
        if match := _NUMBER.match(self._text, self._at):
            return self._number(match[0])
        return self._bare(path)

    def _item(self, path: KeyPath, depth: int) -> Any:
        self._source.lines[path] = self._line()
        return self._value(path, depth + 1)

    def _mapping(self, path: KeyPath, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}

        def member() -> None:
            line = self._line()
            key = self._key()
            here = (*path, key)
            self._skip()
            if self._peek() != ":":
                self._fail(f"the key {key!r} has no value", f'write "{key}": ...')
            self._at += 1
            self._skip()
            if key in result:
                first = self._source.lines[here]
                rule = f"is given twice, in line{f's {first} and' if first != line else ''} {line}"
                self._problem(here, rule, "keep one of them")
                self._value(here, depth + 1)
                return
            self._source.lines[here] = line
            result[key] = self._value(here, depth + 1)

        self._members("{", "}", member)
        return result

    def _members(self, opening: str, closing: str, member: Callable[[], object]) -> None:
        begun = self._at
        self._at += len(opening)
        while True:
            self._skip()
            if self._peek() == closing:
                self._at += 1
                return
            if self._at >= len(self._text):
                self._fail(
                    f"the {opening} of line {self._line(begun)} is not closed", f"close it with {closing}", begun
                )
            member()
            self._skip()
            if self._peek() == ",":
                self._at += 1
            elif self._peek() != closing and self._at < len(self._text):
                self._fail(f"a comma or {closing} is missing before {self._text[self._at]!r}", "put a comma there")

    def _key(self) -> str:
        if self._peek() == '"':
            return self._string()
        match = _WORD.match(self._text, self._at)
        word = match[0] if match else self._peek()
        if word == ",":
            return self._fail("a comma stands where a key should", "remove it")
        fix = 'put keys in double quotes, straight ones: "stage"'
        if not word.isascii() and not word.strip("\u00a0\u200b\ufeff\u3000"):
            fix = f"remove this character, {word!a}, or write a blank"
        return self._fail(f"{word!r} stands where a key should", fix)

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            self._fail("a quote is not closed in its line", 'close it with "')
        try:
            value = json.loads(match[0])
        except json.JSONDecodeError as error:
            fix = r"write a tab as \t" if "control" in error.msg else "write a backslash as two"
            self._fail(f"{match[0]} is no text: {error.msg}", fix)
        self._at = match.end()
        return value

    def _number(self, text: str) -> Any:
        try:
            value = json.loads(text)
        except ValueError:  # Python reads no integer of more than 4300 digits
            self._fail("a number has too many digits", "write fewer digits")
        self._at += len(text)
        return value

    def _bare(self, path: KeyPath) -> Any:
        match = _WORD.match(self._text, self._at)
        if match is None:
            what = self._peek() or "the end of the file"
            self._fail(f"{what!r} stands where a value should", "write a value, or remove the key")
        self._at = match.end()
        word = match[0]
        if word in _WORDS:
            return _WORDS[word]
        self._problem(path, "is no JSON value", _meant(word), word)
        return BARE


def _meant(word: str) -> str:
    """What to write in place of a bare word: true for True, 16 for 0x10, a finite number for Infinity."""
    if word in _MEANT:
        return f"write {_MEANT[word]}"
    try:
        number: float = int(word, 0) if _BASED.fullmatch(word) else float(word)
    except ValueError:
        return f'write "{word}" if a text is meant'
    if not math.isfinite(number):
        return "JSON has no such number: write a finite one, or remove the key"
    return f"write {int(number) if float(number).is_integer() and abs(number) < 1e15 else number}"
