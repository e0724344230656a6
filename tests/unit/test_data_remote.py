"""Data in an object store, read from a real local server: moto's."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.config.schema import SourceConfig
from headway.data.build import StoreRequest, build_store
from headway.data.remote import fetched, has_urls, local_copies
from headway.data.store import TokenStore
from headway.errors import DataError

pytest.importorskip("obstore", reason="the extra s3 is not installed")
server_module = pytest.importorskip("moto.server", reason="moto[server] is not installed")

from fakes.corpora import prose, tokenizer_for, write_texts  # noqa: E402
from fakes.plans import SMALL  # noqa: E402
from headway import api  # noqa: E402


class Notes:
    """A ProgressReporter that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, total_bytes: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Options of a bucket `texts` with two files of records and one of text."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    options = {"endpoint": endpoint, "region": "us-east-1"}
    import urllib.request

    from obstore.store import from_url

    request = urllib.request.Request(f"{endpoint}/texts", method="PUT")
    with urllib.request.urlopen(request):
        pass
    store = from_url("s3://texts", config=options, client_options={"allow_http": True})  # pyright: ignore
    put(store, "chats/a.jsonl.gz", gzip.compress(records(0)))
    put(store, "chats/b.jsonl", records(40))
    put(store, "chats/notes.txt", b"no record")
    yield options
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")):
        pass


def put(store: object, key: str, content: bytes) -> None:
    import obstore

    obstore.put(store, key, content)  # pyright: ignore


def records(first: int) -> bytes:
    return b"".join(json.dumps({"text": prose(first + n, 20)}).encode() + b"\n" for n in range(40))


def source(pattern: str, options: dict[str, str]) -> SourceConfig:
    return SourceConfig(paths=(pattern,), options=dict(options))


def names(config: SourceConfig) -> list[str]:
    return [Path(path).name for path in config.paths]


def test_a_store_from_urls_is_that_of_the_files(tmp_path: Path, bucket: dict[str, str]) -> None:
    tokenizer = tokenizer_for(tmp_path, write_texts(tmp_path / "corpus", [prose(1, 50)]))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(records(0)))
    (tmp_path / "b.jsonl").write_bytes(records(40))
    here = StoreRequest((SourceConfig(paths=("a.jsonl.gz", "b.jsonl")),), 0.1, tokenizer, Path("cache"), tmp_path)
    notes = Notes()
    remote, held = local_copies([source("s3://texts/chats/*.jsonl*", bucket)], 0.1, tmp_path / "cache", notes)
    there = StoreRequest(remote, held, tokenizer, Path("cache"), tmp_path)
    assert TokenStore(build_store(here)).manifest.hash == TokenStore(build_store(there)).manifest.hash
    assert notes.notes[0].startswith("fetching 2 objects of s3://texts/chats/*.jsonl*")


def test_a_plan_before_the_build_looks_at_the_copies(
    tmp_path: Path, bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = {"train": {"paths": ["s3://texts/chats/*.jsonl*"], "options": bucket}}
    found = {verdict.name: verdict for verdict in api.plan(SMALL | {"data": data}).report.verdicts}
    assert found["text"].finding == "2 files begin as text in their encoding"
    assert found["records"].ok


def test_what_a_url_names(tmp_path: Path, bucket: dict[str, str]) -> None:
    def found(pattern: str) -> list[str]:
        return names(fetched(source(pattern, bucket), tmp_path, "data.train", Notes()))

    assert found("s3://texts/chats/b.jsonl") == ["b.jsonl"]
    assert found("s3://texts/chats") == found("s3://texts/chats/") == ["a.jsonl.gz", "b.jsonl", "notes.txt"]
    assert found("s3://texts/**/*.txt") == ["notes.txt"]
    assert not has_urls(SourceConfig(paths=("s3/a.jsonl",)))


def test_a_copy_is_fetched_again_only_when_the_object_changed(tmp_path: Path, bucket: dict[str, str]) -> None:
    from obstore.store import from_url

    config, notes = source("s3://texts/chats/b.jsonl", bucket), Notes()
    copy = Path(fetched(config, tmp_path, "data.train", notes).paths[0])
    assert copy.read_bytes() == records(40)
    again = fetched(config, tmp_path, "data.train", notes)
    assert len(notes.notes) == 1
    assert not set(again.options) & {"endpoint", "region"}
    store = from_url("s3://texts", config=bucket, client_options={"allow_http": True})  # pyright: ignore
    put(store, "chats/b.jsonl", records(80))
    fetched(config, tmp_path, "data.train", notes)
    assert copy.read_bytes() == records(80)
    copy.write_bytes(b"torn")
    fetched(config, tmp_path, "data.train", notes)
    assert copy.read_bytes() == records(80)
    assert len(notes.notes) == 3
    assert not list(tmp_path.rglob("*.part"))


def test_what_is_wrong_with_a_url(tmp_path: Path, bucket: dict[str, str]) -> None:
    config = SourceConfig(
        paths=("s3://texts/chat/*.jsonl", "s3://texts/chats/*.parquet", "s3://absent/x.jsonl"), options=dict(bucket)
    )
    with pytest.raises(DataError) as caught:
        fetched(config, tmp_path, "data.eval", Notes())
    problems = caught.value.problems
    assert [(problem.key, problem.value) for problem in problems] == [("data.eval.paths", p) for p in config.paths]
    assert problems[0].fix == "nothing is there; change the URL"
    assert problems[1].fix.startswith("below chats there are 3 objects: chats/a.jsonl.gz")
    assert "bucket" in problems[2].rule or "object" in problems[2].rule


def test_a_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.data import remote

    monkeypatch.setattr(remote, "_RETRIES", {"max_retries": 0})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    config = source("s3://texts/a.jsonl", {"endpoint": "http://127.0.0.1:9", "region": "us-east-1"})
    with pytest.raises(DataError, match="could not be read") as caught:
        fetched(config, tmp_path, "data.train", Notes())
    assert "options.endpoint" in caught.value.problems[0].fix
