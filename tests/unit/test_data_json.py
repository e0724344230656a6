"""JSON documents as sources: an array of records is read as the same records in JSON lines; what is none says so."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.chats import chat_tokenizer, turn, write_jsonl
from fakes.plans import SMALL, run_of
from headway.config.schema import SourceConfig
from headway.data import json_arrays, peek
from headway.data.build import StoreRequest, build_store
from headway.data.reading import Reading
from headway.data.seam import Document, Skip
from headway.data.sources import concrete, open_source
from headway.data.store import TokenStore
from headway.errors import DataError

RECORDS: list[dict[str, Any]] = [
    {"text": 'a "quoted" [word]\nand {more}', "n": [1.5, None, {"x": -0.1e-7}]},
    {"text": "caf\u00e9 \U0001f600 \u4f60\u597d" * 40, "long": 123456789012345678901234567890},
    {"text": "\ud800 alone", "n": float("inf")},
    *({"text": "x" * (number % 23)} for number in range(1, 40)),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_tokenizer(tmp_path_factory.mktemp("json"))


def read(base: Path, **source: Any) -> list[Document | Skip]:
    config = concrete(SourceConfig(paths=("a.*",), **source), base, "data.train")
    opened = open_source(config, base)
    return [item for shard in opened.shards() for item in opened.documents(shard)]


def texts(items: list[Document | Skip]) -> list[str]:
    return [item.text for item in items if isinstance(item, Document)]


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 2**20])
@pytest.mark.parametrize("form", [{"indent": 1}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_an_array_holds_what_its_lines_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any], block_bytes: int
) -> None:
    """Also numbers, lone surrogates and infinities, to the last bit."""
    monkeypatch.setattr(json_arrays, "_BLOCK_BYTES", block_bytes)
    raw = json.dumps(RECORDS, **form).encode("utf-8", "surrogatepass" if "ensure_ascii" not in form else "replace")
    (tmp_path / "a.json").write_bytes(raw)
    source = open_source(SourceConfig(kind="jsonl", paths=("a.json",)), tmp_path)
    (shard,) = source.shards()
    found = list(source.records(shard))  # type: ignore[attr-defined]
    assert [record for _, record in found] == json.loads(raw)
    lines = raw.decode().splitlines()
    for number, (where, _) in enumerate(found, start=1):
        name, _, record = where.partition(" ")
        assert record == f"(record {number})"
        assert "{" in lines[int(name.removeprefix("a.json:")) - 1]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.json.zst"])
def test_an_array_is_known_by_its_first_character(tmp_path: Path, tokenizer: Path, name: str) -> None:
    chats = [{"instruction": f"the sea {number}?", "input": "", "output": "grey"} for number in range(9)]
    lines, array = tmp_path / "lines", tmp_path / "array"
    lines.mkdir()
    array.mkdir()
    write_jsonl(lines / "a.jsonl", chats)
    raw = b"\xef\xbb\xbf" + b" " * 5000 + b"\n" + json.dumps(chats, indent=2).encode()
    if name.endswith(".gz"):
        raw = gzip.compress(raw)
    elif name.endswith(".zst"):
        raw = pytest.importorskip("zstandard", reason="needs the extra zstd").ZstdCompressor().compress(raw)
    (array / name).write_bytes(raw)
    stores: list[TokenStore] = []
    for base in (lines, array):
        source = SourceConfig(paths=("a.*",))
        request = StoreRequest((source,), None, tokenizer, Path("cache"), base, reading=Reading("instruction"))
        stores.append(TokenStore(build_store(request)))
    assert stores[0].manifest.hash == stores[1].manifest.hash
    assert stores[1].manifest.shapes[0].endswith(f"read off {name}:3 (record 1)")


def test_lines_and_arrays_may_stand_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.1.json").write_text('[{"text": "one"}, {"text": "two"}]')
    (tmp_path / "a.2.json").write_text('{"text": "three"}\n{"text": "four"}')
    (tmp_path / "a.3.json").write_text(" ")
    (tmp_path / "a.4.json").write_text("[]")
    assert texts(read(tmp_path)) == ["one", "two", "three", "four"]


def test_the_records_of_an_object_are_named_by_their_key(tmp_path: Path) -> None:
    content = {"version": "1", "about": {"data": [1]}, "data": [{"text": "one"}, {"text": "two"}], "end": 1}
    (tmp_path / "a.json").write_text(json.dumps(content, indent=1))
    assert texts(read(tmp_path, options={"field": "data"})) == ["one", "two"]
    with pytest.raises(DataError, match="must be the key under which"):
        read(tmp_path, options={"field": 3})


@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_with_a_list_says_how_to_read_it(tmp_path: Path, tokenizer: Path, indent: int | None) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "examples": [{"text": "one"}] * 3}, indent=indent))
    request = StoreRequest((SourceConfig(paths=("a.json",)),), None, tokenizer, Path("cache"), tmp_path)
    said = r"a\.json:1: data\.train: is one JSON object, its records under 'examples'\n.*options\.field: examples"
    with pytest.raises(DataError, match=said) as caught:
        build_store(request)
    assert sum("one JSON object" in problem.rule for problem in caught.value.problems) == 1


FAULTS = [
    ('[\n{"text": "a"},\n{"text": "b', {}, r"a\.json:3 \(record 2\)", "the file ends in its middle"),
    ('[\n{"text": "a"},\n{"text": "b"}\n', {}, r"a\.json:4 \(record 2\)", "ends before a comma or the array's end"),
    ('[{"text": "a"},\n]', {}, r"a\.json:2 \(record 2\)", "is not JSON: Expecting value"),
    ('[{"text": "a"}\n{"text": "b"}]', {}, r"a\.json:2 \(record 1\)", "expected a comma or the array's end, found '{'"),
    ('[{"text": "a"},\n{"text": b}]', {}, r"a\.json:2 \(record 2\)", "is not JSON: Expecting value"),
    ('[{"text": "a"}]\n[{"text": "b"}]', {}, r"a\.json:2 \(record 1\)", "goes on behind its end"),
    ("[" * 100_000, {}, r"a\.json:1 \(record 1\)", "is nested too deeply"),
    ('[{"n": ' + "1" * 5000 + "}]", {}, r"a\.json:1 \(record 1\)", "is not read: Exceeds the limit"),
    ('[[{"text": "a"}]]', {}, r"a\.json:1 \(record 1\)", "holds a JSON list, not an object(.|\n)*jq '.\\[\\]'"),
    ('{\n "text": "a"\n}\n', {}, r"a\.json:1", "holds objects over several lines"),
    ('{"data": {}}', {"field": "data"}, r"a\.json:1", "the file holds no list under 'data'"),
    ('{"data": [{"text": "a"}]}', {"field": "dat"}, r"a\.json:1", "the file has no 'dat'; its keys: 'data'"),
    ('[{"text": "a"}]', {"field": "data"}, r"a\.json:1", "expected an object with a list under 'data'"),
    ('{"data": [{"text": "a"}]', {"field": "data"}, r"a\.json:1 \(record 1\)", "ends before a comma or the"),
]


@pytest.mark.parametrize(("raw", "options", "where", "said"), FAULTS)
def test_what_is_no_array_of_records_is_named_with_its_place(
    tmp_path: Path, tokenizer: Path, raw: str, options: dict[str, Any], where: str, said: str
) -> None:
    (tmp_path / "a.json").write_text(raw)
    source = SourceConfig(paths=("a.json",), options=options)
    request = StoreRequest((source,), None, tokenizer, Path("cache"), tmp_path)
    with pytest.raises(DataError, match=rf"{where}: data\.train: .*{said}") as caught:
        build_store(request)
    assert all(problem.fix for problem in caught.value.problems)


def test_a_file_that_is_torn_stops_also_where_bad_records_are_left_out(tmp_path: Path) -> None:
    """They cannot be told apart behind the place; a value that is no object, or holds a bad byte, is one record."""
    relaxed = {"on_error": "skip"}
    (tmp_path / "a.json").write_bytes(b'[{"text": "a"}, 5,\n{"text": "caf\xe9"}, {"text": "b"}]')
    assert texts(read(tmp_path, options=relaxed)) == ["a", "b"]
    no_object, no_text = (item.problem for item in read(tmp_path) if isinstance(item, Skip))
    assert no_object is not None
    assert (no_object.where, "holds a JSON int" in no_object.rule) == ("a.json:1 (record 2)", True)
    assert no_text is not None
    assert (no_text.where, no_text.rule) == ("a.json:2", "byte 0xe9 at offset 32 is not utf-8 text")
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": ')
    assert texts(read(tmp_path, options=relaxed)) == ["a"]
    assert [item.problem is not None for item in read(tmp_path, options=relaxed) if isinstance(item, Skip)] == [True]


def test_a_torn_end_is_seen_before_anything_is_built(tmp_path: Path) -> None:
    def look() -> str:
        return peek.text("text", run_of(SMALL | {"data": {"train": ["a.json"]}}, base=tmp_path)).finding

    whole = json.dumps([{"text": "word " * 100}] * 2000, indent=1)
    (tmp_path / "a.json").write_text(whole + "\n\n")
    assert look() == "1 files begin as text in their encoding"
    (tmp_path / "a.json").write_text(whole[:-3])
    assert look() == "the file is cut short: its array is not ended"
    (tmp_path / "a.json").write_text(" [ ]")
    assert look() == "holds no document: the file is empty"


def test_preferences_and_pairs_of_messages_lie_in_arrays_too(tmp_path: Path, tokenizer: Path) -> None:
    sides = {name: [turn("assistant", name)] for name in ("chosen", "rejected")}
    (tmp_path / "a.json").write_text(json.dumps([{"prompt": [turn("user", "the sea?")], **sides}] * 2, indent=1))
    source = SourceConfig(paths=("a.json",))
    request = StoreRequest((source,), None, tokenizer, Path("cache"), tmp_path, reading=Reading("preference"))
    assert TokenStore(build_store(request)).manifest.kind == "preference"
