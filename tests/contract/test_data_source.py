"""What every data source must do, whatever it reads."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.archives import write_tar, write_tfrecord
from headway.config.schema import SourceConfig
from headway.data.seam import DataSource, Document, Skip
from headway.data.sources import concrete, open_source
from headway.registry import kinds

TEXTS = [f"document {number}\nwith two lines" for number in range(12)]


def text(base: Path) -> SourceConfig:
    (base / "texts").mkdir()
    for number, content in enumerate(TEXTS):
        (base / "texts" / f"{number:02d}.txt").write_text(content)
    return SourceConfig(kind="text", paths=("texts",))


def jsonl(base: Path) -> SourceConfig:
    for name, part in (("a", TEXTS[:5]), ("b", TEXTS[5:])):
        (base / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": content}) for content in part))
    return SourceConfig(kind="jsonl", paths=("*.jsonl",))


def csv(base: Path) -> SourceConfig:
    (base / "a.csv").write_text("id,text\n" + "".join(f'{n},"{content}"\n' for n, content in enumerate(TEXTS)))
    return SourceConfig(kind="csv", paths=("a.csv",))


def parquet(base: Path) -> SourceConfig:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"text": TEXTS}), base / "a.parquet", row_group_size=5)
    return SourceConfig(kind="parquet", paths=("a.parquet",))


def arrow(base: Path) -> SourceConfig:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    with pyarrow.ipc.new_file(base / "a.arrow", pyarrow.schema({"text": pyarrow.string()})) as file:
        file.write_table(pyarrow.table({"text": TEXTS}), max_chunksize=5)
    return SourceConfig(kind="arrow", paths=("a.arrow",))


def tar(base: Path) -> SourceConfig:
    write_tar(base / "a.tar", {f"{number:02d}.txt": content.encode() for number, content in enumerate(TEXTS)})
    return SourceConfig(kind="tar", paths=("a.tar",))


def tfrecord(base: Path) -> SourceConfig:
    write_tfrecord(base / "a.tfrecord", [{"text": content} for content in TEXTS])
    return SourceConfig(kind="tfrecord", paths=("a.tfrecord",))


def jsonl_packed(base: Path) -> SourceConfig:
    lines = "".join(json.dumps({"text": content}) + "\n" for content in TEXTS)
    (base / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return SourceConfig(kind="jsonl", paths=("*.jsonl.gz",))


def jsonl_array(base: Path) -> SourceConfig:
    (base / "a.json").write_text(json.dumps([{"text": content} for content in TEXTS], indent=1))
    return SourceConfig(kind="jsonl", paths=("a.json",))


def synthetic(base: Path) -> SourceConfig:
    return SourceConfig(kind="synthetic", options={"num_samples": 12, "seq_length": 4})


MAKERS: dict[str, Callable[[Path], SourceConfig]] = {
    "text": text,
    "jsonl": jsonl,
    "csv": csv,
    "parquet": parquet,
    "arrow": arrow,
    "tar": tar,
    "tfrecord": tfrecord,
    "jsonl, packed": jsonl_packed,
    "jsonl, an array": jsonl_array,
    "synthetic": synthetic,
}


def test_every_registered_kind_is_held_to_the_contract() -> None:
    assert set(kinds("data")) <= set(MAKERS)


@pytest.fixture(params=MAKERS)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> SourceConfig:
    return MAKERS[request.param](tmp_path)


def documents(source: DataSource, shard: str) -> list[Document | Skip]:
    return list(source.documents(shard))


def test_shards_cover_the_documents_in_a_fixed_order(config: SourceConfig, tmp_path: Path) -> None:
    source = open_source(config, tmp_path)
    shards = source.shards()
    assert len(set(shards)) == len(shards) > 0
    assert shards == source.shards()
    found = [item.text for shard in shards for item in documents(source, shard) if isinstance(item, Document)]
    assert len(found) == len(TEXTS)
    if config.kind != "synthetic":
        assert found == TEXTS


def test_a_shard_is_read_by_another_process_from_its_name_alone(config: SourceConfig, tmp_path: Path) -> None:
    source = open_source(config, tmp_path)
    travelled = SourceConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json"))))
    last = json.loads(json.dumps(source.shards()))[-1]
    assert documents(open_source(travelled, tmp_path), last) == documents(source, last)


def test_reading_twice_gives_the_same(config: SourceConfig, tmp_path: Path) -> None:
    source = open_source(config, tmp_path)
    assert [documents(source, shard) for shard in source.shards()] == [
        documents(source, shard) for shard in source.shards()
    ]


def test_places_name_a_document_for_a_person(config: SourceConfig, tmp_path: Path) -> None:
    source = open_source(config, tmp_path)
    places = [item.where for shard in source.shards() for item in documents(source, shard)]
    assert len(set(places)) == len(places)


def test_sizes_are_about_those_of_the_text(config: SourceConfig, tmp_path: Path) -> None:
    source = open_source(config, tmp_path)
    for shard in source.shards():
        size = sum(len(item.text) for item in documents(source, shard) if isinstance(item, Document))
        assert size / 3 <= source.size_bytes(shard) <= 6 * size


def test_files_are_those_whose_change_is_a_change_of_the_data(config: SourceConfig, tmp_path: Path) -> None:
    files = open_source(config, tmp_path).files()
    assert all(file.path.is_file() for file in files)
    assert [file.name for file in files] == sorted(file.name for file in files)
    assert bool(files) == (config.kind != "synthetic")


def test_a_concrete_config_stays_as_it_is(config: SourceConfig, tmp_path: Path) -> None:
    assert concrete(config, tmp_path, "data.train") == config
