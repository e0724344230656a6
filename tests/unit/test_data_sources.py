"""What each source reads, and what it says of text that it cannot read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.config.schema import SourceConfig
from headway.data import records
from headway.data.seam import Document, Skip
from headway.data.sources import concrete, open_source
from headway.errors import ConfigError, DataError


def read(base: Path, key: str = "data.train", **config: Any) -> list[Document | Skip]:
    source = open_source(concrete(SourceConfig.model_validate(config), base, key), base, key)
    return [item for shard in source.shards() for item in source.documents(shard)]


def texts(items: list[Document | Skip]) -> list[str]:
    return [item.text for item in items if isinstance(item, Document)]


def faults(items: list[Document | Skip]) -> list[str]:
    return [str(item.problem) for item in items if isinstance(item, Skip) and item.problem]


def skips(items: list[Document | Skip]) -> list[tuple[str, str]]:
    return [(item.where, item.reason) for item in items if isinstance(item, Skip)]


def lines_of(path: Path, *lines: bytes, end: bytes = b"\n") -> None:
    path.write_bytes(end.join(lines))


# Text files


def test_text_is_taken_as_it_stands_but_for_the_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\ttabs  \n\n".encode())
    (tmp_path / "b.md").write_bytes(b"three\x00")
    assert texts(read(tmp_path, paths=("*",))) == ["one\r\ntwo\ttabs  \n\n", "three\x00"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_undecodable_text_names_file_line_and_byte(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(mark + b"fine\nalso fine\ncaf\xe9 bad\n")
    (fault,) = faults(read(tmp_path, paths=("a.txt",)))
    assert "a.txt:3" in fault
    assert f"byte 0xe9 at offset {len(mark) + 18}" in fault
    assert "data.train.options.encoding: cp1252" in fault
    assert "data.train.options.on_error: skip" in fault


def test_undecodable_text_is_skipped_on_request_or_read_in_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    skipped = read(tmp_path, paths=("a.txt",), options={"on_error": "skip"})
    assert skips(skipped) == [("a.txt:1", "not utf-8 text")]
    assert faults(skipped) == []
    assert texts(read(tmp_path, paths=("a.txt",), options={"encoding": "cp1252"})) == ["café"]


def test_utf_16_is_guessed_in_the_fix(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("hello".encode("utf-16"))
    (fault,) = faults(read(tmp_path, paths=("a.txt",)))
    assert "encoding: utf-16" in fault
    assert texts(read(tmp_path, paths=("a.txt",), options={"encoding": "utf-16"})) == ["hello"]


def test_a_file_is_split_at_blank_lines_or_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n\none\nstill one\r\n \r\ntwo\n\n\n\nthree")
    items = read(tmp_path, paths=("a.txt",), options={"split": "blank-line"})
    assert texts(items) == ["one\nstill one", "two", "three"]
    assert [item.where for item in items] == ["a.txt#1", "a.txt#2", "a.txt#3"]
    assert texts(read(tmp_path, paths=("a.txt",), options={"split": "still"})) == [
        "\n\none\n",
        " one\r\n \r\ntwo\n\n\n\nthree",
    ]


def test_unknown_options_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match="did you mean 'encoding'") as caught:
        read(tmp_path, paths=("a.txt",), options={"encodig": "utf-8", "zzz": 1})
    assert len(caught.value.problems) == 2
    for options in ({"split": "("}, {"encoding": "utf-99"}, {"on_error": "ignore"}):
        with pytest.raises(DataError, match=next(iter(options))):
            read(tmp_path, paths=("a.txt",), options=options)


# JSON lines


def test_jsonl_with_mark_and_windows_line_ends_equals_the_plain_file(tmp_path: Path) -> None:
    rows = [json.dumps({"text": text}).encode() for text in ("one", "two", "three")]
    lines_of(tmp_path / "plain.jsonl", *rows, b"")
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(rows))
    plain, marked = (texts(read(tmp_path, paths=(name,))) for name in ("plain.jsonl", "bom.jsonl"))
    assert plain == marked == ["one", "two", "three"]


def test_jsonl_is_read_in_its_encoding(tmp_path: Path) -> None:
    lines_of(tmp_path / "a.jsonl", b'{"text": "caf\xe9"}', b'{"text": "x"}')
    assert texts(read(tmp_path, paths=("a.jsonl",), options={"encoding": "cp1252"})) == ["caf\u00e9", "x"]
    (fault,) = faults(read(tmp_path, paths=("a.jsonl",)))
    assert "byte 0xe9 at offset 13 is not utf-8 text" in fault
    with pytest.raises(DataError, match="does not end its lines as JSON lines must"):
        read(tmp_path, paths=("a.jsonl",), options={"encoding": "utf-16"})


def test_jsonl_faults_name_file_and_line(tmp_path: Path) -> None:
    lines_of(
        tmp_path / "a.jsonl",
        b'{"text": "fine"}',
        b"",
        b'{"text": "cut',
        b'{"body": "other key", "id": 1}',
        b'["a list"]',
        b'{"text": 5}',
        b'{"text": null}',
        b'{"text": "caf\xe9"}',
        b'{"text": "fine too"}',
    )
    items = read(tmp_path, paths=("a.jsonl",))
    assert texts(items) == ["fine", "fine too"]
    bad_json, no_key, no_object, no_text, no_utf8 = faults(items)
    assert "a.jsonl:3" in bad_json
    assert "is not JSON" in bad_json
    assert "a.jsonl:4" in no_key
    assert "its keys: 'body', 'id'" in no_key
    assert "data.train.text_key" in no_key
    assert "a.jsonl:5" in no_object
    assert "holds a JSON list" in no_object
    assert "'text' holds int" in no_text
    assert "a.jsonl:8" in no_utf8
    offset = (tmp_path / "a.jsonl").read_bytes().index(b"\xe9")
    assert f"offset {offset}" in no_utf8
    assert ("a.jsonl:2", "blank line") in skips(items)
    assert ("a.jsonl:7", "empty") in skips(items)
    relaxed = read(tmp_path, paths=("a.jsonl",), options={"on_error": "skip"})
    assert faults(relaxed) == []
    assert skips(relaxed) == skips(items)


@pytest.mark.parametrize("size", [1, 7, 16, 17, 33, 64, 1000])
def test_jsonl_in_parts_reads_every_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    rows = [json.dumps({"text": "x" * (n * 7 % 40)}).encode() for n in range(30)]
    lines_of(tmp_path / "a.jsonl", *rows)
    monkeypatch.setattr(records, "JSONL_SHARD_BYTES", size)
    assert texts(read(tmp_path, paths=("a.jsonl",))) == [json.loads(row)["text"] for row in rows]


def test_a_fault_in_a_later_part_has_its_true_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines_of(tmp_path / "a.jsonl", *[b'{"text": "fine"}'] * 20, b"nonsense", b'{"text": "fine"}')
    monkeypatch.setattr(records, "JSONL_SHARD_BYTES", 50)
    (fault,) = faults(read(tmp_path, paths=("a.jsonl",)))
    assert "a.jsonl:21" in fault


# CSV and Parquet


def test_csv_reads_quoted_fields_and_tabs(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfid,text\r\n1,"one, with\r\na line end"\r\n2,two\r\n3\r\n')
    (tmp_path / "b.tsv").write_text("id\ttext\n1\tthree\n")
    items = read(tmp_path, paths=("a.csv", "b.tsv"))
    assert texts(items) == ["one, with\r\na line end", "two", "three"]
    assert skips(items) == [("a.csv:5", "empty")]
    (tmp_path / "c.csv").write_text("id;text\n1;four\n")
    assert texts(read(tmp_path, paths=("c.csv",), options={"delimiter": ";"})) == ["four"]


def test_csv_faults(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,fine\n2,caf\xe9\n3,fine too\n")
    items = read(tmp_path, paths=("a.csv",))
    assert texts(items) == ["fine", "fine too"]
    (fault,) = faults(items)
    assert "a.csv:3" in fault
    assert "offset 20" in fault
    (tmp_path / "b.csv").write_text("id,body\n1,one\n")
    assert "its keys: 'id', 'body'" in faults(read(tmp_path, paths=("b.csv",)))[0]
    (tmp_path / "c.csv").write_text('id,text\n1,"never closed\n2,x\n')
    assert "is not CSV" in faults(read(tmp_path, paths=("c.csv",)))[0]


def test_parquet_reads_row_groups_in_order(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    rows = [f"row {n}" for n in range(10)] + [None]
    parquet.write_table(pyarrow.table({"text": rows, "id": list(range(11))}), tmp_path / "a.parquet", row_group_size=4)
    items = read(tmp_path, paths=("a.parquet",))
    assert texts(items) == rows[:-1]
    assert skips(items) == [("a.parquet:11", "empty")]
    assert items[5].where == "a.parquet:6"
    fault = faults(read(tmp_path, paths=("a.parquet",), text_key="body"))[0]
    assert "its columns: 'text', 'id'" in fault
    (tmp_path / "b.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(DataError, match="is not a Parquet file"):
        read(tmp_path, paths=("b.parquet",))


# Synthetic

SYNTHETIC = "so di da fu gobe ba fu ba da vube sube gi bi zobe da go"


def test_synthetic_documents_are_fixed(tmp_path: Path) -> None:
    options = {"num_samples": 1500, "seq_length": 16, "words": 300}
    documents = texts(read(tmp_path, kind="synthetic", options=options))
    assert len(documents) == 1500
    assert {len(text.split()) for text in documents} == {16}
    assert documents == texts(read(tmp_path, kind="synthetic", options=options))
    assert documents[0] != texts(read(tmp_path, kind="synthetic", options={**options, "seed": 2}))[0]
    assert documents[0] == SYNTHETIC
    counts = sorted((sum(text.split().count(word) for text in documents), word) for word in ("ba", "be", "bibi"))
    assert [word for _, word in counts] == ["bibi", "be", "ba"]


@pytest.mark.parametrize("options", [{"num_samples": 0}, {"seq_length": "many"}, {"words": True}, {"samples": 5}])
def test_synthetic_options_are_checked(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(options))):
        read(tmp_path, kind="synthetic", options=options)


def test_synthetic_reads_no_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="reads no files"):
        read(tmp_path, kind="synthetic", paths=("a.txt",))


# Kinds


def kind_of(base: Path, *paths: str, **options: Any) -> str:
    return concrete(SourceConfig(paths=paths, options=options), base, "data.train").kind


def test_kind_follows_from_the_endings(tmp_path: Path) -> None:
    for name in ("a.txt", "b.md", "c.py", "d.jsonl", "e.json", "f.csv", "g.tsv", "h.parquet", "README"):
        (tmp_path / name).write_text("x")
    assert kind_of(tmp_path, "a.txt", "b.md", "c.py", "README") == "text"
    assert kind_of(tmp_path, "d.jsonl", "e.json") == "jsonl"
    assert kind_of(tmp_path, "f.csv", "g.tsv") == "csv"
    assert kind_of(tmp_path, "h.parquet") == "parquet"
    with pytest.raises(DataError) as caught:
        kind_of(tmp_path, "a.txt", "b.md", "d.jsonl")
    assert "1 jsonl (such as d.jsonl), 2 text (such as a.txt)" in str(caught.value)
    assert "['*.jsonl']" in str(caught.value)
    assert kind_of(tmp_path, "[a-d]*", exclude=["*.jsonl"]) == "text"
    with pytest.raises(DataError, match="exclude leaves it out"):
        kind_of(tmp_path, "d.jsonl", exclude=["*.jsonl"])


def test_files_that_hold_no_text_are_named(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt.zip", "c.pdf", "d.parquet.gz"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError) as caught:
        kind_of(tmp_path, "*")
    assert str(caught.value).count("is packed in a way that is not read") == 2
    assert "a .pdf file holds no plain text" in str(caught.value)
    assert len(caught.value.problems) == 3


def test_no_paths_and_unknown_kinds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names no files"):
        read(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match="did you mean 'jsonl'"):
        read(tmp_path, kind="jsonlines", paths=("a.txt",))


class Numbers:
    """A user's own source."""

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        self.count = int(config.options.get("count", 3))

    def shards(self) -> list[str]:
        return [str(number) for number in range(self.count)]

    def documents(self, shard: str) -> Iterator[Document | Skip]:
        yield Document(f"number {shard}", shard)

    def files(self) -> list[Any]:
        return []

    def size_bytes(self, shard: str) -> int:
        return 8


def test_a_users_own_class_is_a_source(tmp_path: Path) -> None:
    kind = f"{__name__}:Numbers"
    assert texts(read(tmp_path, kind=kind, options={"count": 2})) == ["number 0", "number 1"]
