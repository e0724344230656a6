"""Sources of records, of any of the shapes of headway.data.shapes: JSON lines, CSV and Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headway.config.schema import SourceConfig
from headway.data.files import FileSource
from headway.data.seam import Document, Skip
from headway.data.shapes import TEXT, Keys, columns, every_column, readable
from headway.data.unpacking import TEXT_PER_BYTE, ending, is_compressed, open_unpacked, undamaged
from headway.errors import DataError, Problem

JSONL_SHARD_BYTES = 2**20
_ARRAY_FIX = "the file is one JSON array: write one object a line, for example jq -c '.[]' {name} > NEW.jsonl"
ROWS_AT_ONCE = 1024  # of a Parquet file


class RecordSource(FileSource):
    """Records as mappings. A document is the text under `text_key`, or the whole record where it has another shape."""

    @property
    def keys(self) -> Keys:
        return Keys.of(self.config, self.key)

    def first_records(self) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        """Records of the first shards, with everything that any shape may read."""
        for shard in self.shards():
            yield from self.records(shard)

    def records(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        """(where, record) of each record, in order, or what is wrong with it."""
        raise NotImplementedError

    def decoded(self, row: dict[str, Any], where: str) -> tuple[str, dict[str, Any]] | Skip:
        """(where, row) with bytes as text, as some writers leave texts; a picture beside them stays as it is."""
        for key, value in row.items():
            if not isinstance(value, bytes):
                continue
            try:
                row[key] = value.decode(self.encoding)
            except UnicodeDecodeError as error:
                if key in every_column(self.keys):
                    encoding = self.encoding.removesuffix("-sig")
                    rule = f"holds bytes as {key!r} that are no {encoding} text: {error}"
                    return self.fault(where, f"not {encoding} text", rule)
        return where, row

    def documents(self, shard: str) -> Iterator[Document | Skip]:
        key, shape = self.config.text_key, self.config.shape
        for item in self.records(shard):
            if isinstance(item, Skip):
                yield item
                continue
            where, record = item
            if shape not in ("auto", TEXT):
                yield Document(readable(record, shape, self.keys), where, record=record)
                continue
            text = record.get(key)
            if isinstance(text, str):
                yield Document(text, where)
            elif key not in record:
                seen = ", ".join(map(repr, record)) or "none"
                rule = f"the record has no {key!r}; its keys: {seen}"
                yield self.fault(where, f"no {key!r}", rule, f"name the text's key with {self.key}.text_key")
            elif text is None:
                yield Skip(where, "empty")
            else:
                kind = type(text).__name__
                yield self.fault(where, f"{key!r} is not text", f"{key!r} holds {kind}, not text")


class JsonLines(RecordSource):
    """One JSON object a line. Large files are read in parts; a part starts behind the byte that ends a line.

    So an encoding whose line ends are other bytes, as UTF-16's are, cannot be read.
    """

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        super().__init__(config, base, key)
        if "\n".encode(self.encoding).removeprefix(codecs.BOM_UTF8) != b"\n":
            fix = "convert the file to UTF-8, which is what JSON is written in"
            rule = "does not end its lines as JSON lines must"
            raise DataError(problems=[Problem(f"{key}.options.encoding", rule, self.encoding, fix)])

    def shards(self) -> list[str]:
        names: list[str] = []
        for file in self.found:
            size = file.path.stat().st_size
            if is_compressed(file.name):  # one part: it is read from its start only
                names.append(f"{file.name}#0-{size * TEXT_PER_BYTE}")
                continue
            starts = range(0, max(size, 1), JSONL_SHARD_BYTES)
            names += [f"{file.name}#{start}-{min(start + JSONL_SHARD_BYTES, size)}" for start in starts]
        return names

    def size_bytes(self, shard: str) -> int:
        _, start, end = _parse_part(shard)
        return end - start

    def records(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        name, start, end = _parse_part(shard)
        if is_compressed(name):
            yield from undamaged(self._lines(name, 0, sys.maxsize), name, self.key)
        else:
            yield from self._lines(name, start, end)

    def _lines(self, name: str, start: int, end: int) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        with open_unpacked(self.path(name)) as lines:
            offset, number = start, 0
            if start:
                # The line that crosses the border belongs to the part before.
                lines.seek(start - 1)
                offset = start - 1 + len(lines.readline())
            first = offset
            while offset < end and (line := lines.readline()):
                number += 1
                where = f"{name}:{number}" if start == 0 else f"{name} at byte {offset}"
                record = _parse_line(line.removeprefix(codecs.BOM_UTF8) if offset == 0 else line, self.encoding)
                if isinstance(record, dict):
                    yield where, record
                elif record is None:
                    yield Skip(where, "blank line")
                else:
                    # Counting the lines before this part reads all of it: only for an error that is shown.
                    before = 0 if start == 0 or self.skips_errors else _count_lines(self.path(name), first)
                    yield self._bad_line(name, before + number, offset, line, record)
                offset += len(line)

    def undecodable(self, name: str, line: int, offset: int, byte: int, start: bytes = b"") -> Skip:
        """As other files, but for UTF-16: naming that encoding would be refused, see above."""
        if start[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return super().undecodable(name, line, offset, byte, start)
        fix = f"iconv -f utf-16 -t utf-8 {name} > NEW.jsonl"
        return self.fault(f"{name}:{line}", "not utf-8 text", "is UTF-16 or UTF-32, and JSON lines are UTF-8", fix)

    def _bad_line(self, name: str, number: int, offset: int, line: bytes, error: Exception) -> Skip:
        where = f"{name}:{number}"
        if isinstance(error, UnicodeDecodeError):
            start = error.start + len(line) - len(error.object)  # behind a byte order mark
            return self.undecodable(name, number, offset + start, line[start], line[:4])
        hint = _ARRAY_FIX.format(name=name) if number == 1 and line.lstrip().startswith(b"[") else ""
        if isinstance(error, TypeError):
            return self.fault(where, "not an object", str(error), hint)
        return self.fault(where, "not JSON", f"is not JSON: {error}", hint)


def _parse_line(line: bytes, encoding: str) -> dict[str, Any] | Exception | None:
    """The record of one line, None for a blank line, or what is wrong with it."""
    if not line.strip():
        return None
    try:
        record = json.loads(line.decode(encoding))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        return error
    if isinstance(record, dict):
        return record
    return TypeError(f'holds a JSON {type(record).__name__}, not an object such as {{"text": "..."}}')


def _parse_part(shard: str) -> tuple[str, int, int]:
    name, _, part = shard.rpartition("#")
    start, _, end = part.partition("-")
    return name, int(start), int(end)


def _count_lines(path: Path, end: int) -> int:
    """Line ends before byte `end`: what a person needs to find a record of a later part."""
    count = 0
    with path.open("rb") as file:
        while end > 0 and (block := file.read(min(end, 2**24))):
            count += block.count(b"\n")
            end -= len(block)
    return count


class Csv(RecordSource):
    """Rows under a header; `.tsv` files and option `delimiter` set the separator."""

    option_names = FileSource.option_names | {"delimiter"}

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        super().__init__(config, base, key)
        delimiter = self.option("delimiter", ",")
        if not (isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '\r\n"'):
            rule = "must be one character between two fields"
            fix = "for example ';', or \"\\t\" for a tab"
            raise DataError(problems=[Problem(f"{key}.options.delimiter", rule, delimiter, fix)])

    def records(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        yield from undamaged(self._rows(shard), shard, self.key)

    def _rows(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        path = self.path(shard)
        delimiter = self.option("delimiter", "\t" if ending(shard) == ".tsv" else ",")
        # Undecodable bytes become lone surrogates, so that only their own row is lost.
        raw = open_unpacked(path)
        with io.TextIOWrapper(raw, encoding=self.encoding, errors="surrogateescape", newline="") as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            names: list[str] = []
            while True:
                begins = rows.line_num + 1
                try:
                    row = next(rows, None)
                except csv.Error as error:
                    open_quote = "unexpected end" in str(error)
                    hint = "a quote is opened there and never closed: close it, or write it twice" if open_quote else ""
                    yield self.fault(f"{shard}:{begins}", "not CSV", f"is not CSV: {error}", hint)
                    continue
                if row is None:
                    return
                where = f"{shard}:{rows.line_num}"
                if not row:  # a blank line
                    continue
                if any("\udc80" <= letter <= "\udcff" for value in row for letter in _escaped(value)):
                    yield self._undecodable_row(shard, path, rows.line_num)
                elif not names:
                    names = self._header(row, shard)
                elif len(row) > len(names):
                    rule = f"has {len(row)} fields, and the header {len(names)}"
                    fix = f"put quotes around fields with {delimiter!r} in them"
                    yield self.fault(where, "more fields than the header", rule, fix)
                else:
                    yield where, dict(zip(names, [*row, *[None] * (len(names) - len(row))], strict=True))

    def _header(self, row: list[str], name: str) -> list[str]:
        """The names in the first row. Raises DataError where two are alike, or another separator stands in them."""
        names = [cell.strip() for cell in row]
        twice = sorted({cell for cell in names if cell and names.count(cell) > 1})
        other = next((mark for mark in ";\t|," if mark in names[0]), None) if len(names) == 1 else None
        problem = None
        if twice:
            rule = f"names the column {twice[0]!r} twice in its header"
            problem = Problem(self.key, rule, where=f"{name}:1", fix="rename one of the two")
        elif other is not None and names[0] != self.config.text_key:
            rule = f"has one column, {names[0]!r}: its fields are separated by another character"
            fix = f"{self.key}.options.delimiter: {json.dumps(other)}"
            problem = Problem(self.key, rule, where=f"{name}:1", fix=fix)
        if problem is not None:
            raise DataError(problems=[problem])
        return names

    def _undecodable_row(self, name: str, path: Path, line_number: int) -> Skip:
        """The first bad byte at or before the row's last line, found by reading the file again."""
        offset = 0
        bad = (line_number, 0, 0)
        with open_unpacked(path) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode(self.encoding)
                except UnicodeDecodeError as error:
                    bad = (number, offset + error.start, line[error.start])
                if number >= line_number:
                    break
                offset += len(line)
        return self.undecodable(name, *bad)


def _escaped(value: object) -> str:
    """Text with something above ASCII in it, else nothing: the common row is checked at C speed."""
    return value if isinstance(value, str) and not value.isascii() else ""


class ColumnSource(RecordSource):
    """Records whose fields lie in columns: only those that the shape needs are read."""

    def records(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        shape = self.config.shape
        yield from self._rows(shard, columns(TEXT if shape == "auto" else shape, self.keys))

    def first_records(self) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        for shard in self.shards():
            yield from self._rows(shard, every_column(self.keys))

    def _rows(self, shard: str, wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        """(where, record) of each row, with those of the columns `wanted` that there are."""
        raise NotImplementedError

    def taken(self, name: str, held: Sequence[str], wanted: tuple[str, ...]) -> list[str] | Skip:
        """The columns `wanted` that the file holds; where it holds none, what is wrong with it."""
        found = [column for column in wanted if column in held]
        if found:
            return found
        rule = f"the file has no column {wanted[0]!r}; its columns: {', '.join(map(repr, held))}"
        return self.fault(name, f"no {wanted[0]!r}", rule, f"name the text's column with {self.key}.text_key")


class Parquet(ColumnSource):
    """The columns of its shape, one row group a shard. Needs pyarrow (the extra `parquet`)."""

    def shards(self) -> list[str]:
        return [f"{file.name}#{group}" for file in self.found for group in range(self._open(file.name).num_row_groups)]

    def size_bytes(self, shard: str) -> int:
        name, _, group = shard.rpartition("#")
        return self._open(name).metadata.row_group(int(group)).total_byte_size

    def _rows(self, shard: str, wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        name, _, group = shard.rpartition("#")
        file = self._open(name)
        number = sum(file.metadata.row_group(g).num_rows for g in range(int(group)))
        taken = self.taken(name, file.schema_arrow.names, wanted)
        if isinstance(taken, Skip):
            yield taken
            return
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, row_groups=[int(group)], columns=taken):
            for row in batch.to_pylist():
                number += 1
                yield self.decoded(row, f"{name}:{number}")

    def _open(self, name: str) -> Any:
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(self.path(name))
        except pyarrow.ArrowInvalid as error:
            problem = Problem(self.key, f"is not a Parquet file: {error}", where=name, fix="name the right kind")
            raise DataError(problems=[problem]) from error
