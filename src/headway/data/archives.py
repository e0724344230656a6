"""Records inside of other containers: Arrow files and streams, tar archives (WebDataset), TFRecord files."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from headway.data.records import ColumnSource, RecordSource
from headway.data.seam import InputFile, Skip
from headway.data.shapes import SETS
from headway.data.unpacking import is_compressed, open_unpacked, undamaged
from headway.errors import DataError, Problem

ARROW_ENDINGS = frozenset({".arrow", ".feather", ".ipc"})
_ARROW_SHARD_BYTES = 2**22
_TEXTS, _LABELS = ("txt", "text"), ("cls", "label")
_READABLE = (*_TEXTS, *_LABELS, "json", "jsonl")


class Arrow(ColumnSource):
    """Columns of Arrow IPC files and streams, as `datasets` saves them too. Needs pyarrow (the extra `parquet`)."""

    @cached_property
    def found(self) -> list[InputFile]:
        """Of a folder that `save_to_disk` wrote, the Arrow files."""
        files = super().found
        return [file for file in files if PurePosixPath(file.name).suffix.lower() in ARROW_ENDINGS] or files

    def shards(self) -> list[str]:
        names: list[str] = []
        for file in self.found:
            first = size = 0
            number = -1
            for number, batch in enumerate(self._batches(file.name)):
                size += batch.nbytes
                if size >= _ARROW_SHARD_BYTES:
                    names.append(f"{file.name}#{first}-{number + 1}")
                    first, size = number + 1, 0
            if first <= number:
                names.append(f"{file.name}#{first}-{number + 1}")
        return names

    def size_bytes(self, shard: str) -> int:
        name, first, end = _parse_range(shard)
        return sum(batch.nbytes for batch in islice(self._batches(name), first, end))

    def _rows(self, shard: str, wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        name, first, end = _parse_range(shard)
        number = 0
        for index, batch in enumerate(islice(self._batches(name), end)):
            if index < first:
                number += batch.num_rows
                continue
            taken = self.taken(name, batch.schema.names, wanted)
            if isinstance(taken, Skip):
                yield taken
                return
            for row in batch.select(taken).to_pylist():
                number += 1
                yield self.decoded(row, f"{name}:{number}")

    def _batches(self, name: str) -> Iterator[Any]:
        """Record batches, mapped, so that those passed over cost nothing."""
        import pyarrow
        from pyarrow import ipc

        content = pyarrow.memory_map(str(self.path(name)))
        try:
            try:
                file = ipc.open_file(content)
                yield from (file.get_batch(number) for number in range(file.num_record_batches))
            except pyarrow.ArrowInvalid:
                content.seek(0)
                yield from ipc.open_stream(content)
        except (pyarrow.ArrowInvalid, OSError) as error:
            problem = Problem(self.key, f"is not an Arrow file or stream: {error}", where=name, fix="make it again")
            raise DataError(problems=[problem]) from error


def _parse_range(shard: str) -> tuple[str, int, int]:
    name, _, part = shard.rpartition("#")
    first, _, end = part.partition("-")
    return name, int(first), int(end)


class Tar(RecordSource):
    """Samples of a tar archive: files that differ in their ending only, as WebDataset has them, one archive a shard.

    `.txt` is the text, `.json` an object whose keys are the record's, `.cls` the label, each line of a `.jsonl` a
    record of its own; other endings are passed over.
    """

    def size_bytes(self, shard: str) -> int:
        """Of a plain archive, what its readable members hold: headers and pictures are no text."""
        if shard not in self._sizes:
            self._sizes[shard] = super().size_bytes(shard)
            if not is_compressed(shard) and tarfile.is_tarfile(self.path(shard)):
                with tarfile.open(self.path(shard)) as archive:
                    self._sizes[shard] = sum(m.size for m in archive if _split_member(m.name)[1] in _READABLE)
        return self._sizes[shard]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {}

    def records(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        yield from undamaged(self._samples(shard), shard, self.key)

    def _samples(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        sample: dict[str, Any] = {}
        current = ""
        try:
            with open_unpacked(self.path(shard)) as content, tarfile.open(fileobj=content, mode="r|") as archive:
                for member in archive:
                    key, ending = _split_member(member.name)
                    if not member.isfile() or not ending:
                        continue
                    if key != current and sample:
                        yield f"{shard}/{current}", sample
                        sample = {}
                    current = key
                    read = archive.extractfile(member)
                    yield from self._take(f"{shard}/{member.name}", ending, read.read() if read else b"", sample)
        except tarfile.ReadError as error:
            fix = "make the archive again, or leave it out"
            problem = Problem(self.key, f"is not a whole tar archive: {error}", where=shard, fix=fix)
            raise DataError(problems=[problem]) from error
        if sample:
            yield f"{shard}/{current}", sample

    def _take(
        self, where: str, ending: str, raw: bytes, sample: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        """Add a member to its sample; what is a record of its own, or wrong, is yielded."""
        if ending not in _READABLE:
            return
        try:
            text = raw.decode(self.encoding)
            if ending == "jsonl":
                for number, line in enumerate(filter(str.strip, text.splitlines()), start=1):
                    yield f"{where}:{number}", _object(line)
            elif ending == "json":
                sample.update(_object(text))
            elif ending in _TEXTS:
                sample[self.config.text_key] = text
            else:
                sample[self.config.label_key] = text.strip()
        except UnicodeDecodeError as error:
            yield self.undecodable(where, raw.count(b"\n", 0, error.start) + 1, error.start, raw[error.start], raw[:4])
        except ValueError as error:
            yield self.fault(where, "not JSON", f"is not a JSON object: {error}")


def _split_member(name: str) -> tuple[str, str]:
    """'a/b.c.json' -> ('a/b', 'c.json'), as WebDataset does; of several endings the last says what it is."""
    folder, _, last = name.rpartition("/")
    key, _, ending = last.partition(".")
    return f"{folder}/{key}" if folder else key, ending.rpartition(".")[2].lower()


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a JSON {type(found).__name__}")
    return found


class TfRecord(RecordSource):
    """tf.train.Example records: byte features as text, numbers as they are, several values as a list. One file a shard.

    One value and a list of one are written alike there: where labels are lists (`shape: text-labels`), it is a list.
    """

    def records(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        yield from undamaged(self._examples(shard), shard, self.key)

    def _examples(self, shard: str) -> Iterator[tuple[str, dict[str, Any]] | Skip]:
        with open_unpacked(self.path(shard)) as content:
            for number, raw in enumerate(self._frames(shard, content), start=1):
                where = f"{shard}:{number}"
                try:
                    record = self._record(raw)
                except (ValueError, IndexError, struct.error):
                    yield self.fault(where, "no Example", "is no tf.train.Example")
                    continue
                yield self.decoded(record, where)

    def _record(self, raw: bytes) -> dict[str, Any]:
        record, label = _example(raw), self.config.label_key
        if self.config.shape == SETS and not isinstance(record.get(label, []), list):
            record[label] = [record[label]]
        return record

    def _frames(self, shard: str, content: BinaryIO) -> Iterator[bytes]:
        """The payloads. A frame is its length, the length's checksum, the payload, the payload's checksum."""
        while header := content.read(12):
            if len(header) < 12 or _masked_crc(header[:8]) != struct.unpack("<I", header[8:])[0]:
                raise self._broken(shard)
            (length,) = struct.unpack("<Q", header[:8])
            body = content.read(length + 4)
            if len(body) < length + 4:
                raise self._broken(shard)
            yield body[:-4]

    def _broken(self, shard: str) -> DataError:
        rule = "is no TFRecord file, or is cut short or damaged"
        return DataError(problems=[Problem(self.key, rule, where=shard, fix="make the file again, or leave it out")])


def _masked_crc(data: bytes) -> int:
    """CRC-32C of a few bytes, masked as TFRecord masks it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _example(raw: bytes) -> dict[str, Any]:
    """Example{1: Features{1: entry{1: key, 2: Feature{1: bytes, 2: float, 3: int64}}}}."""
    record: dict[str, Any] = {}
    for field, features in _fields(raw):
        if field != 1:
            continue
        for _, entry in _fields(_bytes(features)):
            parts = dict(_fields(_bytes(entry)))
            key = _bytes(parts[1]).decode("utf-8", "replace") if 1 in parts else ""
            for kind, values in _fields(_bytes(parts.get(2, b""))):
                inner = [value for _, value in _fields(_bytes(values))]
                found = [value for each in inner for value in _values(kind, each)]
                record[key] = found[0] if len(found) == 1 else found
    return record


def _values(kind: int, value: int | bytes) -> Iterator[bytes | float]:
    """The values of one field of a feature: bytes, or numbers, alone or packed behind each other."""
    if kind == 1:
        yield _bytes(value)
    elif isinstance(value, int):
        yield value
    elif kind == 2:
        yield from (number for (number,) in struct.iter_unpack("<f", value))
    else:
        content = io.BytesIO(value)
        while content.tell() < len(value):
            yield _varint(content)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a protobuf message; fixed-width values are given as bytes."""
    content = io.BytesIO(raw)
    while content.tell() < len(raw):
        tag = _varint(content)
        match tag & 7:
            case 0:
                yield tag >> 3, _varint(content)
            case 2:
                length = _varint(content)
                value = content.read(length)
                if len(value) < length:
                    raise ValueError("cut short")
                yield tag >> 3, value
            case 1 | 5 as width:
                yield tag >> 3, content.read(8 if width == 1 else 4)
            case _:
                raise ValueError("no message")


def _varint(content: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = content.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in place of a message")
    return value
