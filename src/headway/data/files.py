"""Sources that read files: what they share, and plain text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.config.schema import SourceConfig
from headway.data.paths import expand, locate
from headway.data.seam import Document, InputFile, Skip
from headway.data.unpacking import TEXT_PER_BYTE, is_compressed, open_unpacked, undamaged
from headway.errors import DataError, Problem

BLANK_LINES = r"(?:\r?\n[ \t]*){2,}"
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def check_options(config: SourceConfig, known: Iterable[str], key: str) -> None:
    """Refuse options that the source does not have. Raises DataError with a suggestion for each."""
    names = sorted(known)
    problems: list[Problem] = []
    for option in config.options:
        if option not in names:
            near = get_close_matches(option, names, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(names)}"
            problems.append(Problem(f"{key}.options.{option}", f"is not an option of kind {config.kind!r}", fix=fix))
    if problems:
        raise DataError(problems=problems)


class FileSource:
    """Options of every file source: `exclude` (globs), `encoding`, `on_error` (`stop` or `skip`)."""

    option_names = frozenset({"exclude", "encoding", "on_error"})

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        check_options(config, self.option_names, key)
        self.config, self.base, self.key = config, base, key
        self.encoding = self._known_encoding(self.option("encoding", "utf-8"))
        on_error = self.option("on_error", "stop")
        if on_error not in ("stop", "skip"):
            raise DataError(problems=[Problem(f"{key}.options.on_error", "must be 'stop' or 'skip'", on_error)])
        self.skips_errors = on_error == "skip"

    def option(self, name: str, default: Any) -> Any:
        return self.config.options.get(name, default)

    def _known_encoding(self, name: str) -> str:
        """The codec's own name; utf-8 also takes a byte order mark at the start of a file."""
        try:
            found = codecs.lookup(name).name
        except LookupError as error:
            problem = Problem(f"{self.key}.options.encoding", "is not an encoding that Python knows", name)
            raise DataError(problems=[problem]) from error
        return "utf-8-sig" if found == "utf-8" else found

    @cached_property
    def found(self) -> list[InputFile]:
        exclude = self.option("exclude", ())
        globs: tuple[str, ...] = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        return expand(self.config.paths, self.base, globs, self.key)

    def files(self) -> list[InputFile]:
        return self.found

    def shards(self) -> list[str]:
        return [file.name for file in self.found]

    def size_bytes(self, shard: str) -> int:
        return self.path(shard).stat().st_size * (TEXT_PER_BYTE if is_compressed(shard) else 1)

    def path(self, name: str) -> Path:
        return locate(name, self.base)

    def cut_short(self, name: str) -> Skip | None:
        """A file whose end shows that it is not whole, where the kind of file tells."""
        return None

    def fault(self, where: str, reason: str, rule: str, fix: str = "") -> Skip:
        """A bad record: skipped and counted under `on_error: skip`, else the problem that stops the build."""
        skip_fix = f"{self.key}.options.on_error: skip leaves such records out and counts them"
        problem = Problem(self.key, rule, fix="; or ".join(filter(None, (fix, skip_fix))), where=where)
        return Skip(where, reason, None if self.skips_errors else problem)

    def undecodable(self, name: str, line: int, offset: int, byte: int, start: bytes = b"") -> Skip:
        """Text that is not in the encoding: names file, line (from 1) and byte offset (from 0) in the file."""
        guess = next((encoding for mark, encoding in _BYTE_ORDER_MARKS if start.startswith(mark)), None)
        guess = guess or ("cp1252" if self.encoding == "utf-8-sig" else "utf-8")
        encoding = self.encoding.removesuffix("-sig")
        return self.fault(
            f"{name}:{line}",
            f"not {encoding} text",
            f"byte 0x{byte:02x} at offset {offset} is not {encoding} text",
            f"name the file's encoding, e.g. {self.key}.options.encoding: {guess}",
        )


class TextFiles(FileSource):
    """One document a file, as it stands but for a byte order mark.

    Option `split`: `blank-line`, or a regular expression between documents, makes several of one file.
    """

    option_names = FileSource.option_names | {"split"}

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        super().__init__(config, base, key)
        split = self.option("split", None)
        try:
            self.splitter = re.compile(BLANK_LINES if split == "blank-line" else split) if split else None
        except re.error as error:
            rule = f"must be 'blank-line' or a regular expression ({error})"
            raise DataError(problems=[Problem(f"{key}.options.split", rule, split)]) from error

    def documents(self, shard: str) -> Iterator[Document | Skip]:
        for raw in undamaged(self._content(shard), shard, self.key):
            yield from self._pieces(shard, raw)

    def _content(self, shard: str) -> Iterator[bytes]:
        with open_unpacked(self.path(shard)) as file:
            yield file.read()

    def _pieces(self, shard: str, raw: bytes) -> Iterator[Document | Skip]:
        try:
            text = raw.decode(self.encoding)
        except UnicodeDecodeError as error:
            # utf-8-sig counts from behind the mark.
            offset = error.start + (3 if self.encoding == "utf-8-sig" and raw.startswith(codecs.BOM_UTF8) else 0)
            yield self.undecodable(shard, raw.count(b"\n", 0, offset) + 1, offset, raw[offset], raw[:4])
            return
        if self.splitter is None:
            yield Document(text, shard)
            return
        pieces = filter(str.strip, self.splitter.split(text))
        for number, piece in enumerate(pieces, start=1):
            yield Document(piece, f"{shard}#{number}")
