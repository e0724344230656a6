"""Compressed files, Arrow, tar and TFRecord: the same records as plain JSON lines, and what is said of damage."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.archives import write_tar, write_tfrecord
from headway.config.schema import SourceConfig
from headway.data.seam import Document, Skip
from headway.data.sources import concrete, open_source, with_shape
from headway.errors import DataError

TEXTS = [f"the lantern {number}\nof the sea" for number in range(40)]
LABELS = [str(number % 3) for number in range(40)]


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard", reason="the extra 'zstd' is not installed").compress(data)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd,
}


def items(base: Path, *paths: str, **config: Any) -> list[Document | Skip]:
    asked = concrete(SourceConfig(paths=paths, **config), base, "data.train")
    source = open_source(asked, base)
    return [item for shard in source.shards() for item in source.documents(shard)]


def texts(base: Path, *paths: str, **config: Any) -> list[str]:
    found = items(base, *paths, **config)
    assert all(isinstance(item, Document) for item in found), found
    return [item.text for item in found if isinstance(item, Document)]


def jsonl() -> bytes:
    return "".join(
        json.dumps({"text": text, "label": label}) + "\n" for text, label in zip(TEXTS, LABELS, strict=True)
    ).encode()


@pytest.mark.parametrize("packer", PACKERS)
def test_a_packed_file_is_what_is_in_it(tmp_path: Path, packer: str) -> None:
    pack = PACKERS[packer]
    (tmp_path / f"a.jsonl.{packer}").write_bytes(pack(jsonl()))
    rows = "text\n" + "".join(f'"{text}"\n' for text in TEXTS)
    (tmp_path / f"b.csv.{packer}").write_bytes(pack(rows.encode()))
    (tmp_path / f"c.txt.{packer}").write_bytes(pack("\n\n\n".join(TEXTS).encode()))
    assert texts(tmp_path, f"a.jsonl.{packer}") == TEXTS
    assert texts(tmp_path, f"b.csv.{packer}") == TEXTS
    assert texts(tmp_path, f"c.txt.{packer}", options={"split": "blank-line"}) == TEXTS
    places = [item.where for item in items(tmp_path, f"a.jsonl.{packer}")]
    assert places == [f"a.jsonl.{packer}:{number}" for number in range(1, 41)]


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_a_packed_file_that_is_cut_short_is_never_taken_for_whole(tmp_path: Path, packer: str, name: str) -> None:
    raw = PACKERS[packer](jsonl() * 50)
    (tmp_path / f"{name}.{packer}").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError) as caught:
        items(tmp_path, f"{name}.{packer}")
    (problem,) = caught.value.problems
    assert problem.where == f"{name}.{packer}"
    assert problem.rule.startswith("cannot be unpacked: ")
    assert "fetch or make the file again" in problem.fix


def test_bytes_that_are_no_text_are_found_inside_of_packed_files(tmp_path: Path) -> None:
    lines = jsonl().splitlines(keepends=True)
    lines[6] = lines[6].replace(b"lantern", b"lant\xffern")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    bad = [item for item in items(tmp_path, "a.jsonl.gz") if isinstance(item, Skip)]
    assert [item.where for item in bad] == ["a.jsonl.gz:7"]
    assert "is not utf-8 text" in str(bad[0].problem)


@pytest.mark.parametrize("form", ["file", "stream", "saved by datasets"])
def test_arrow(tmp_path: Path, form: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    table = pyarrow.table({"text": TEXTS, "label": LABELS, "other": list(range(40))})
    folder = tmp_path / "data"
    folder.mkdir()
    opened = pyarrow.ipc.new_file if form == "file" else pyarrow.ipc.new_stream
    for name, part in (("data-00000-of-00002", table[:25]), ("data-00001-of-00002", table[25:])):
        with opened(folder / f"{name}.arrow", table.schema) as out:
            out.write_table(part, max_chunksize=7)
    if form == "saved by datasets":
        (folder / "state.json").write_text("{}")
        (folder / "dataset_info.json").write_text("{}")
    assert texts(tmp_path, "data") == TEXTS
    assert items(tmp_path, "data")[30].where == "data/data-00001-of-00002.arrow:6"


def test_arrow_that_is_none_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    (tmp_path / "a.arrow").write_bytes(b"ARROW1 but not really")
    with pytest.raises(DataError, match=r"a\.arrow: data\.train: is not an Arrow file or stream"):
        items(tmp_path, "a.arrow")


@pytest.mark.parametrize(
    ("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.tgz", "w:gz"), ("a.tar.xz", "w:xz")]
)
def test_tar_as_webdataset_has_it(tmp_path: Path, name: str, mode: str) -> None:
    members: dict[str, bytes] = {}
    for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)):
        members[f"part/{number:03d}.jpg"] = b"\xff\xd8 not text"
        members[f"part/{number:03d}.txt"] = text.encode()
        members[f"part/{number:03d}.cls"] = label.encode()
    write_tar(tmp_path / name, members, mode)
    assert texts(tmp_path, name) == TEXTS
    config = concrete(SourceConfig(paths=(name,)), tmp_path, "data.train")
    shaped, _ = with_shape(config, tmp_path, "data.train", ("text-label",))
    assert shaped.shape == "text-label"
    source = open_source(shaped, tmp_path)
    found = [item for shard in source.shards() for item in source.documents(shard)]
    assert [item.record["label"] for item in found if isinstance(item, Document) and item.record] == LABELS
    assert found[3].where == f"{name}/part/003"


def test_tar_of_records_and_of_lines(tmp_path: Path) -> None:
    chats = {f"{n}.json": json.dumps({"prompt": text, "response": "yes"}).encode() for n, text in enumerate(TEXTS)}
    write_tar(tmp_path / "chats.tar", chats)
    config = concrete(SourceConfig(paths=("chats.tar",)), tmp_path, "data.train")
    shaped, found = with_shape(config, tmp_path, "data.train", ("messages", "prompt-response"))
    assert (shaped.shape, found.where if found else "") == ("prompt-response", "chats.tar/0")
    write_tar(tmp_path / "lines.tar", {"a.jsonl": jsonl()})
    assert texts(tmp_path, "lines.tar") == TEXTS


def test_what_is_wrong_inside_of_an_archive_is_named(tmp_path: Path) -> None:
    members = {"0.txt": b"caf\xe9", "1.json": b"{", "2.json": b"[1]", "3.txt": b"good"}
    found = items(tmp_path, write_tar(tmp_path / "a.tar", members).name)
    problems = [str(item.problem) for item in found if isinstance(item, Skip)]
    assert "a.tar/0.txt:1" in problems[0]
    assert "is not utf-8 text" in problems[0]
    assert "a.tar/1.json" in problems[1]
    assert "holds a JSON list" in problems[2]
    assert [item.text for item in found if isinstance(item, Document)] == ["good"]
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(whole[:700])
    with pytest.raises(DataError, match=r"b\.tar: data\.train: is not a whole tar archive"):
        items(tmp_path, "b.tar")


def test_tfrecord(tmp_path: Path) -> None:
    records = [{"text": text, "label": number - 1, "id": "x"} for number, text in enumerate(TEXTS)]
    file = write_tfrecord(tmp_path / "a.tfrecord", records)
    assert texts(tmp_path, "a.tfrecord") == TEXTS
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert texts(tmp_path, "b.tfrecord.gz") == TEXTS
    source = open_source(SourceConfig(kind="tfrecord", paths=("a.tfrecord",), shape="text-label"), tmp_path)
    (shard,) = source.shards()
    found = [item.record["label"] for item in source.documents(shard) if isinstance(item, Document) and item.record]
    assert found == [number - 1 for number in range(40)]


@pytest.mark.parametrize("damage", ["cut", "length", "not one"])
def test_a_tfrecord_that_is_damaged_is_named(tmp_path: Path, damage: str) -> None:
    file = write_tfrecord(tmp_path / "a.tfrecord", [{"text": text} for text in TEXTS])
    raw = bytearray(file.read_bytes())
    if damage == "cut":
        raw = raw[: len(raw) - 9]
    elif damage == "length":
        raw[0] ^= 1
    else:
        raw = bytearray(b"just some text, longer than a header")
    file.write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.tfrecord: data\.train: is no TFRecord file, or is cut short"):
        items(tmp_path, "a.tfrecord")


def test_a_tfrecord_of_other_things_says_what_is_missing(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "a.tfrecord", [{"image": b"\xff\xd8", "text": b"caf\xe9"}, {"body": "x"}])
    problems = [str(item.problem) for item in items(tmp_path, "a.tfrecord") if isinstance(item, Skip)]
    assert "holds bytes as 'text' that are no utf-8 text" in problems[0]
    assert "the record has no 'text'; its keys: 'body'" in problems[1]


def labels(base: Path, name: str, shape: str) -> list[Any]:
    asked = concrete(SourceConfig(paths=(name,), shape=shape), base, "data.train")  # pyright: ignore[reportArgumentType]
    source = open_source(asked, base)
    found = [item for shard in source.shards() for item in source.documents(shard)]
    return [item.record["label"] for item in found if isinstance(item, Document) and item.record]


def test_every_value_of_a_feature_is_read(tmp_path: Path) -> None:
    """A list is no single label, a float is a number, and a picture beside the text is nobody's business."""
    records = [{"text": "a", "label": [3, 1]}, {"text": "b", "label": 2}, {"text": "c", "label": []}]
    write_tfrecord(tmp_path / "a.tfrecord", records)
    assert labels(tmp_path, "a.tfrecord", "text-labels") == [[3, 1], [2], []]
    write_tfrecord(tmp_path / "b.tfrecord", [{"text": "a", "label": 1.0, "image": b"\xff\xd8"}])
    assert labels(tmp_path, "b.tfrecord", "text-label") == [1.0]
    found, _ = with_shape(concrete(SourceConfig(paths=("a.tfrecord",)), tmp_path, "k"), tmp_path, "k", ("text-labels",))
    assert found.shape == "text-labels"


def test_columns_of_bytes_are_texts(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    parquet.write_table(pyarrow.table({"text": ["caf\xe9".encode(), b"caf\xe9"]}), tmp_path / "a.parquet")
    good, bad = items(tmp_path, "a.parquet")
    assert isinstance(good, Document)
    assert good.text == "caf\xe9"
    assert isinstance(bad, Skip)
    assert "a.parquet:2: data.train: holds bytes as 'text' that are no utf-8 text" in str(bad.problem)


def test_what_could_not_be_read_is_said_before_what_is_missing(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"\xff", "1.cls": b"3"})
    config = concrete(SourceConfig(paths=("a.tar",)), tmp_path, "k")
    with pytest.raises(DataError) as caught:
        with_shape(config, tmp_path, "k", ("text-label",))
    assert [problem.where for problem in caught.value.problems] == ["a.tar/1.txt:1", "a.tar/1"]
    assert "is not utf-8 text" in caught.value.problems[0].rule
