"""Sources of records, of any of the shapes of headway.data.shapes: JSON, CSV and Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import json
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headway.config.schema import SourceConfig
from headway.data.files import FileSource
from headway.data.json_arrays import Element, JsonDocument, NotJson, begins_array
from headway.data.seam import Document, Skip
from headway.data.shapes import TEXT, Keys, columns, every_column, fitting, readable
from headway.data.unpacking import TEXT_PER_BYTE, ending, is_compressed, open_unpacked, undamaged
from headway.errors import DataError, Problem

JSONL_SHARD_BYTES = 2**20
_TAIL_BYTES = 2**12
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
    """One JSON object a line, or one array of objects a file; option `field`: the array's key in the file's object.

    Large files of lines are read in parts; a part starts behind the byte that ends a line. So an encoding whose line
    ends are other bytes, as UTF-16's are, cannot be read. An array is read from its start, by one process.
    """

    option_names = FileSource.option_names | {"field"}

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        super().__init__(config, base, key)
        if "\n".encode(self.encoding).removeprefix(codecs.BOM_UTF8) != b"\n":
            fix = "convert the file to UTF-8, which is what JSON is written in"
            rule = "does not end its lines as JSON lines must"
            raise DataError(problems=[Problem(f"{key}.options.encoding", rule, self.encoding, fix)])
        self.field = self.option("field", "")
        if not isinstance(self.field, str):
            rule = "must be the key under which the records are listed"
            raise DataError(problems=[Problem(f"{key}.options.field", rule, self.field, "for example 'data'")])
        self._arrays: dict[str, bool] = {}

    def shards(self) -> list[str]:
        names: list[str] = []
        for file in self.found:
            size = file.path.stat().st_size
            whole = self._is_array(file.name)
            if is_compressed(file.name):  # one part: it is read from its start only
                names.append(f"{file.name}#0-{size * TEXT_PER_BYTE}")
                continue
            starts = range(0, max(size, 1), size + 1 if whole else JSONL_SHARD_BYTES)
            names += [f"{file.name}#{start}-{min(start + starts.step, size)}" for start in starts]
        return names

    def size_bytes(self, shard: str) -> int:
        _, start, end = _parse_part(shard)
        return end - start

    def records(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        name, start, end = _parse_part(shard)
        if self._is_array(name):
            yield from undamaged(self._elements(name), name, self.key)
        elif is_compressed(name):
            yield from undamaged(self._lines(name, 0, sys.maxsize), name, self.key)
        else:
            yield from self._lines(name, start, end)

    def _is_array(self, name: str) -> bool:
        """Whether a file is one array: as its first character says, or the option. No for one that cannot be read."""
        if name not in self._arrays:
            try:
                with open_unpacked(self.path(name)) as file:
                    self._arrays[name] = bool(self.field) or begins_array(file)
            except (OSError, EOFError, zlib.error, lzma.LZMAError):
                self._arrays[name] = False
        return self._arrays[name]

    def _elements(self, name: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        with open_unpacked(self.path(name)) as file:
            document = JsonDocument(file, self.encoding)
            try:
                for element in document.elements(self.field):
                    yield self._record(name, element)
            except NotJson as error:
                where = f"{name}:{error.line} (record {document.number})" if document.number else f"{name}:{error.line}"
                yield Skip(where, "not JSON", self._broken(name, str(error), where))

    def _record(self, name: str, element: Element) -> tuple[str, dict[str, Any]] | Skip:
        where = f"{name}:{element.line} (record {element.number})"
        if element.bad is not None:
            return self.undecodable(name, *element.bad)
        if isinstance(element.value, dict):
            return where, element.value
        within = isinstance(element.value, list) and _is_records(element.value)
        fix = f"take the records out of the inner list: jq '.[]' {name} > NEW.json" if within else ""
        return self.fault(where, "not an object", _not_an_object(element.value), fix)

    def _broken(self, name: str, rule: str, where: str) -> Problem:
        """What is wrong with a file as a whole: `on_error: skip` is no help."""
        if self.field and (other := self._list_name(name)) not in ("", self.field):
            return Problem(self.key, f"the file {rule}", where=where, fix=f"{self.key}.options.field: {other}")
        fix = "correct it there, or fetch or make the file again: records behind it cannot be told apart"
        return Problem(self.key, f"the file {rule}", where=where, fix=fix)

    def _list_name(self, name: str) -> str:
        with open_unpacked(self.path(name)) as file:
            return JsonDocument(file, self.encoding).list_name()

    def cut_short(self, name: str) -> Skip | None:
        """A plain file of an array whose last character does not end it, told without reading the whole."""
        if is_compressed(name) or not self._is_array(name):
            return None
        with open_unpacked(self.path(name)) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read().rstrip()
        if not tail or tail.endswith(b"}" if self.field else b"]"):
            return None
        return Skip(name, "not JSON", self._broken(name, "is cut short: its array is not ended", name))

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
                    yield (where, record) if offset else self._first(name, where, record)
                elif record is None:
                    yield Skip(where, "blank line")
                else:
                    whole = self._one_object(name, line) if offset == 0 else None
                    if whole is not None:
                        yield whole
                        return
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
        if isinstance(error, TypeError):
            return self.fault(where, "not an object", str(error))
        return self.fault(where, "not JSON", f"is not JSON: {error}")

    def _one_object(self, name: str, line: bytes) -> Skip | None:
        """What a file is whose first line only begins an object; None where that line is merely a bad one."""
        begun = line.removeprefix(codecs.BOM_UTF8).strip()
        found = self._list_name(name) if begun.startswith(b"{") else ""
        if not found and begun != b"{":
            return None
        rule, fix = "holds objects over several lines", f"one object a line: jq -c . {name} > NEW.jsonl"
        if found:
            rule, fix = f"is one JSON object, its records under {found!r}", f"{self.key}.options.field: {found}"
        return Skip(f"{name}:1", "not JSON", Problem(self.key, rule, where=f"{name}:1", fix=fix))

    def _first(self, name: str, where: str, record: dict[str, Any]) -> tuple[str, dict[str, Any]] | Skip:
        """A file's first record, unless it is the only one and no record, but holds a list of them."""
        found = next((key for key, value in record.items() if _is_records(value)), None)
        if found is None or fitting(record, self.keys):
            return where, record
        with open_unpacked(self.path(name)) as lines:
            lines.readline()
            if lines.readline().strip():
                return where, record
        rule, fix = f"is one JSON object, its records under {found!r}", f"{self.key}.options.field: {found}"
        return Skip(where, "not JSON", Problem(self.key, rule, where=where, fix=fix))


def _parse_line(line: bytes, encoding: str) -> dict[str, Any] | Exception | None:
    """The record of one line, None for a blank line, or what is wrong with it."""
    if not line.strip():
        return None
    try:
        record = json.loads(line.decode(encoding))
    except (ValueError, RecursionError) as error:  # no text, no JSON, or a number of too many digits
        return error
    return record if isinstance(record, dict) else TypeError(_not_an_object(record))


def _not_an_object(value: object) -> str:
    return f'holds a JSON {type(value).__name__}, not an object such as {{"text": "..."}}'


def _is_records(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) for part in value)


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
