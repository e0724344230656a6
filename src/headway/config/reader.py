"""Text to plain values with the line of every key: YAML 1.2, JSON (a subset of it) and TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from headway.errors import ConfigError, Problem

KeyPath = tuple[str | int, ...]

_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str")}
_STRUCTURE_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MOST_VALUES = 100_000  # of a file, what its aliases repeat included: ten of them in a chain can stand for a billion
_MERGE = "tag:yaml.org,2002:merge"
_YAML_11 = re.compile(r"^%YAML\s+1\.[01]\b", re.MULTILINE)


@dataclass
class Source:
    """What a text says. `lines` holds the line (from 1) of each key; `problems` what is wrong with single keys."""

    name: str
    text: str
    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])
    problems: list[Problem] = field(default_factory=list[Problem])


def read_text(path: Path) -> str:
    """The text of a run file, without byte order mark, with \\n as line end.

    Raises:
        ConfigError: absent, a folder, or not UTF-8 (names line and byte).
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise _absent(path) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a run file", fix="name the run file in it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = raw[error.start] if error.start < len(raw) else 0
        raise ConfigError(
            f"{path.name}:{line}: is not UTF-8: byte {error.start} is 0x{byte:02x}",
            fix="save the file as UTF-8",
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _absent(path: Path) -> ConfigError:
    folder = path.parent
    names = [entry.name for entry in folder.glob("*") if entry.suffix in (".yaml", ".yml", ".json", ".toml")]
    near = get_close_matches(path.name, names, n=1)
    fix = f"did you mean {folder / near[0]}?" if near else "`headway init` writes a starter file"
    return ConfigError(f"there is no file {path}", fix=fix)


def parse(text: str, name: str) -> Source:
    """Read by the name's ending: .toml as TOML, everything else as YAML 1.2 (JSON included).

    Raises:
        ConfigError: the text cannot be parsed, with its line.
    """
    if name.endswith(".toml"):
        return _parse_toml(text, name)
    source = Source(name, text, None)
    if match := _YAML_11.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise ConfigError(f"{name}:{line}: only YAML 1.2 is read", fix="remove the %YAML line")
    yaml = YAML(typ="safe", pure=True)
    try:
        node = cast("Node | None", yaml.compose(text))  # pyright: ignore[reportUnknownMemberType]
        if node is not None:
            source.data = _Builder(yaml, source).value(node, (), frozenset())
    except YAMLError as error:
        raise _syntax_error(error, text, name) from error
    except RecursionError as error:
        raise _too_deep(name) from error
    return source


def _too_deep(name: str) -> ConfigError:
    return ConfigError(f"{name} is nested too deeply to be read", fix="close the brackets that were opened")


class _Builder:
    """Nodes to plain values; notes lines, twice-given keys and foreign tags on the way."""

    def __init__(self, yaml: YAML, source: Source):
        self._construct = yaml.constructor.construct_object
        self._source = source
        self._built = 0

    def _problem(self, path: KeyPath, node: Node, rule: str, fix: str) -> None:
        where = f"{self._source.name}:{_line(node)}"
        self._source.problems.append(Problem(dotted(path) or "the file", rule, fix=fix, where=where))

    def value(self, node: Node, path: KeyPath, open_nodes: frozenset[int]) -> Any:
        self._built += 1
        if self._built > _MOST_VALUES:
            what = f"{self._source.name} holds more than {_MOST_VALUES} values, those that aliases (*) repeat included"
            raise ConfigError(what, fix="write out what is meant")
        if id(node) in open_nodes:
            self._problem(path, node, "contains itself through an alias", "write the value out")
            return None
        if isinstance(node, MappingNode | SequenceNode) and _raw(node).tag not in _STRUCTURE_TAGS:
            self._refuse_tag(path, node)
            return None
        if isinstance(node, MappingNode):
            return self._mapping(node, path, open_nodes | {id(node)})
        if isinstance(node, SequenceNode):
            items = cast("list[Node]", _raw(node).value)
            for index, item in enumerate(items):
                self._source.lines.setdefault((*path, index), _line(item))
            return [self.value(item, (*path, index), open_nodes | {id(node)}) for index, item in enumerate(items)]
        return self._scalar(cast("ScalarNode", node), path)

    def _mapping(self, node: MappingNode, path: KeyPath, open_nodes: frozenset[int]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in cast("list[tuple[Node, Node]]", _raw(node).value):
            if not isinstance(key_node, ScalarNode):
                self._problem(path, key_node, "has a key that is not a word", "write `key: value`")
                continue
            key = str(_raw(key_node).value)
            here = (*path, key)
            if _raw(key_node).tag == _MERGE:
                self._problem(path, key_node, "merges keys by <<, which YAML 1.2 does not have", "write the keys out")
                continue
            if key in result:
                first = self._source.lines[here]
                rule = f"is given twice, in lines {first} and {_line(key_node)}"
                self._problem(here, key_node, rule, "keep one of them")
                continue
            self._source.lines[here] = _line(key_node)
            result[key] = self.value(value_node, here, open_nodes)
        return result

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        tag, text = _raw(node).tag, _raw(node).value
        if tag == _TIMESTAMP:  # YAML 1.2 has no dates
            return text
        if tag not in _PLAIN_TAGS:
            return self._refuse_tag(path, node)
        try:
            value = self._construct(node)
        except ValueError:  # more digits than Python reads; or a tag, such as !!int, that its text is none of
            self._problem(path, node, "cannot be read as a number", "write fewer digits")
            return None
        return _join_surrogates(value) if isinstance(value, str) else value

    def _refuse_tag(self, path: KeyPath, node: Node) -> None:
        self._problem(path, node, f"has the tag {_raw(node).tag!r}, which is not read", "write a plain value")


def _raw(node: Node) -> Any:
    """The node without its library's missing types."""
    return node


def _line(node: Node) -> int:
    return int(_raw(node).start_mark.line) + 1


def _join_surrogates(text: str) -> str:
    """JSON writes an emoji as two escapes; YAML's reader leaves them apart."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _syntax_error(error: YAMLError, text: str, name: str) -> ConfigError:
    if isinstance(error, ReaderError):
        position = int(cast("Any", error).position)
        line = text.count("\n", 0, position) + 1
        letter = ord(text[position])
        return ConfigError(f"{name}:{line}: contains the control character U+{letter:04X}", fix="remove it")
    if not isinstance(error, MarkedYAMLError):
        return ConfigError(f"{name}: cannot be read as YAML: {error}")
    marked = cast("Any", error)
    what = " ".join(str(part) for part in (marked.context, marked.problem) if part)
    unclosed = "end of stream" in what or "stream end" in what
    mark = (unclosed and marked.context_mark) or marked.problem_mark or marked.context_mark
    number = int(mark.line) if mark else 0
    where = f"{name}:{number + 1}" if mark else name
    lines = text.split("\n")
    fix = "put values with : # @ % * & in quotes; one `key: value` a line; sections indented by two spaces"
    if number < len(lines) and "\t" in lines[number]:
        fix = "indent with spaces: YAML forbids tabs there"
    elif "another document" in what:
        fix = "keep one document: remove what follows the second `---`"
    elif unclosed:
        fix = "close the quote or bracket that was opened there"
    return ConfigError(f"{where}: cannot be read as YAML: {what}", fix=fix)


# --- TOML ------------------------------------------------------------------------------------------------------------

_TOML_LINE = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")
_TOML_KEY = r"""[ \t]*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_TOML_KEYS = rf"{_TOML_KEY}(?:[ \t]*\.{_TOML_KEY})*[ \t]*"
_TOML_HEADER = re.compile(rf"[ \t]*(\[\[?)({_TOML_KEYS})\]")
_TOML_ENTRY = re.compile(rf"({_TOML_KEYS})=")
_TOML_PART = re.compile(_TOML_KEY)
_TOML_MULTILINE = re.compile(r"'''|\"\"\"")


def _parse_toml(text: str, name: str) -> Source:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _TOML_LINE.search(str(error))
        line = int(match[1]) if match and match[1] else text.count("\n") + 1
        what = _TOML_LINE.sub("", str(error)).strip()
        fix = 'texts stand in quotes in TOML, also amounts such as "500 steps"'
        raise ConfigError(f"{name}:{line}: cannot be read as TOML: {what}", fix=fix) from error
    except RecursionError as error:
        raise _too_deep(name) from error
    except ValueError as error:  # a number of more digits than Python reads
        raise ConfigError(f"{name}: cannot be read as TOML: {error}", fix="write fewer digits") from error
    lines: dict[KeyPath, int] = {}
    for path, line in _toml_keys(text):
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)
    return Source(name, text, _plain(data), lines)


def _toml_keys(text: str) -> Iterator[tuple[KeyPath, int]]:
    """(key path, line) of each header and entry; keys of inline tables count as their outer key."""
    section: KeyPath = ()
    arrays: dict[KeyPath, int] = {}
    closing = ""
    for number, line in enumerate(text.split("\n"), start=1):
        quotes = _TOML_MULTILINE.findall(line)
        if closing:
            closing = "" if closing in quotes else closing
            continue
        if header := _TOML_HEADER.match(line):
            section = _toml_path(header[2])
            if header[1] == "[[":
                index = arrays[section] = arrays.get(section, -1) + 1
                section = (*section, index)
            yield section, number
        elif entry := _TOML_ENTRY.match(line):
            yield (*section, *_toml_path(entry[1])), number
        if len(quotes) % 2:
            closing = quotes[-1]


def _toml_path(text: str) -> KeyPath:
    return tuple(part.strip().strip("\"'") for part in _TOML_PART.findall(text))


def _plain(value: Any) -> Any:
    """TOML's dates as text, like everything else that Headway does not count with."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value.isoformat() if isinstance(value, date | time) else value


def dotted(path: KeyPath) -> str:
    """("data", "train", "paths", 0) -> 'data.train.paths[0]'."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
