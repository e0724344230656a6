"""The token store: whole or absent, the same however it is built, and named after what it is made from."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.corpora import Notes, prose, request_for, store_of, tokenizer_for, write_texts
from headway.config.schema import SourceConfig
from headway.data import assemble, build, crew
from headway.data.build import StoreRequest, build_store, find_store, survey
from headway.data.facts import data_facts, describe_store, estimate_facts, store_remarks
from headway.data.holdout import document_hash, encode_text, held_out
from headway.data.lock import only_builder
from headway.data.packing import document_order
from headway.data.raw import hash_raw
from headway.data.samples import decode_sample
from headway.data.seam import InputFile, Silent
from headway.data.store import TokenStore, open_split
from headway.data.vocabulary import load_tokenizer, read_vocabulary
from headway.data.work import gzip_size
from headway.errors import DataError, HeadwayError

TEXTS = [prose(seed, 20 + seed * 7) for seed in range(40)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SourceConfig, Path]:
    base = tmp_path_factory.mktemp("build")
    source = write_texts(base / "corpus", TEXTS)
    return base, source, tokenizer_for(base, source)


@pytest.fixture(scope="module")
def store(corpus: tuple[Path, SourceConfig, Path]) -> Path:
    return build_store(ask(corpus, eval=0.2))


def ask(corpus: tuple[Path, SourceConfig, Path], **changes: Any) -> StoreRequest:
    base, source, tokenizer = corpus
    return request_for(base, source, tokenizer, **changes)


def content(store: Path) -> list[str]:
    """The texts of a store, decoded, in stored order."""
    opened = TokenStore(store)
    tokenizer = load_tokenizer(Path(opened.manifest.tokenizer.path))
    count = opened.manifest.train.documents + opened.manifest.eval.documents
    return [tokenizer.decode(opened.document(number)[1:-1].tolist()) for number in range(count)]


# What a store holds


def test_documents_come_back_as_they_were(store: Path) -> None:
    assert content(store) == TEXTS
    opened = TokenStore(store)
    ends = read_vocabulary(Path(opened.manifest.tokenizer.path))
    for number in range(len(TEXTS)):
        assert opened.document(number)[0] == ends.begin
        assert opened.document(number)[-1] == ends.end
    assert opened.manifest.dtype == "<u2"


def test_the_split_follows_from_each_text(store: Path) -> None:
    opened = TokenStore(store)
    expected = [n for n, text in enumerate(TEXTS) if document_hash(text.encode(), 0) < 0.2 * 2**64]
    assert opened.documents("eval").tolist() == expected
    assert 2 <= len(expected) < 20
    assert opened.documents("train").tolist() == [n for n in range(len(TEXTS)) if n not in expected]


def test_counts_are_those_of_the_arrays(store: Path) -> None:
    manifest = TokenStore(store).manifest
    held = TokenStore(store).documents("eval").tolist()
    assert manifest.eval.bytes == sum(len(TEXTS[number].encode()) for number in held)
    assert manifest.train.bytes == sum(len(text.encode()) for text in TEXTS) - manifest.eval.bytes
    assert manifest.train.tokens + manifest.eval.tokens == sum(file.items for file in manifest.tokens)
    assert manifest.eval_gzip_bytes == sum(len(gzip.compress(TEXTS[n].encode(), 9)) for n in held)
    assert manifest.eval_gzip_of_bytes == manifest.eval.bytes


def test_facts_are_exact(store: Path) -> None:
    facts = data_facts(store, 32, True)
    manifest = TokenStore(store).manifest
    windows = open_split(store, "train", 32, True)
    assert facts.train_windows == len(windows) == -(-manifest.train.tokens // 32)
    assert facts.train_targets == manifest.train.tokens - manifest.train.documents
    assert facts.eval_targets == manifest.eval.tokens - manifest.eval.documents
    assert (facts.vocab, facts.store_hash, facts.estimated) == (300, manifest.hash, False)
    assert (facts.eval_bytes, facts.eval_gzip_bytes) == (manifest.eval.bytes, manifest.eval_gzip_bytes)
    assert data_facts(store, 32, False).train_windows == manifest.train.documents


def test_bytes_of_text_that_is_cut_off_are_not_counted_as_learnt(store: Path) -> None:
    """Else the loss of each document's start would be spread over all of its text."""
    cut = data_facts(store, 16, False)
    assert 0 < cut.eval_targets < data_facts(store, 16, True).eval_targets
    assert (cut.eval_bytes, cut.eval_gzip_bytes) == (0, 0)
    longest = max(len(TokenStore(store).document(n)) for n in range(len(TEXTS)))
    assert data_facts(store, longest, False).eval_bytes == TokenStore(store).manifest.eval.bytes


def test_a_sample_is_shown_with_its_borders(store: Path) -> None:
    shown = decode_sample(open_split(store, "train", 400, True)[0], Path(TokenStore(store).manifest.tokenizer.path))
    first = TEXTS[document_order(TokenStore(store), "train")[0]]
    assert shown.startswith(f"<|endoftext|>{first}<|endoftext|>\n──── next document ────\n<|endoftext|>")


def test_the_report_says_what_a_person_asks(store: Path) -> None:
    lines = describe_store(store, 16, False)
    text = "\n".join(lines)
    assert "train: 27 documents" in text
    assert "bytes a token" in text
    assert "are longer than train.sequence (16) and are cut off there" in text
    assert "cut off" not in "\n".join(describe_store(store, 16, True))
    assert "tokens/s" in text


def test_estimates_are_marked_and_near(corpus: tuple[Path, SourceConfig, Path], store: Path) -> None:
    exact = data_facts(store, 32, True)
    request = replace(ask(corpus, eval=0.2), tokenizer=Path("absent"))
    estimated = estimate_facts(request, vocab=300, sequence=32, packing=True)
    assert estimated.estimated
    assert estimated.store == ""
    assert exact.tokens / 3 < estimated.tokens < exact.tokens * 3
    assert estimated.documents + estimated.eval_documents == len(TEXTS)


# Which store it is


def test_the_same_request_finds_the_store(corpus: tuple[Path, SourceConfig, Path], store: Path) -> None:
    before = (store / "manifest.json").stat().st_mtime_ns
    notes = Notes()
    assert build_store(ask(corpus, eval=0.2), notes) == store == find_store(ask(corpus, eval=0.2))
    assert (store / "manifest.json").stat().st_mtime_ns == before
    assert notes.total == 0


@pytest.mark.parametrize("changes", [{"eval": 0.3}, {"eval": None}, {"eval": 0.2, "seed": 1}, {"min_tokens": 30}])
def test_other_settings_are_another_store(
    corpus: tuple[Path, SourceConfig, Path], store: Path, changes: dict[str, Any]
) -> None:
    request = ask(corpus, **{"eval": 0.2} | changes)
    assert find_store(request) is None
    assert survey(request).folder != store


def test_changed_text_or_tokenizer_is_another_store(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus", TEXTS[:5])
    tokenizer = tokenizer_for(tmp_path, source)
    first = build_store(request_for(tmp_path, source, tokenizer))
    (tmp_path / "corpus" / "0002.txt").write_text("something else")
    second = build_store(request_for(tmp_path, source, tokenizer))
    assert first != second
    assert content(second)[2] == "something else"
    third = build_store(request_for(tmp_path, source, tokenizer_for(tmp_path, source, 301)))
    assert third not in (first, second)
    assert TokenStore(second).manifest.hash != TokenStore(third).manifest.hash


def test_a_store_does_not_depend_on_where_the_corpus_lies(tmp_path: Path) -> None:
    hashes = set()
    for name in ("here", "there"):
        found = store_of(tmp_path / name, TEXTS[:5], eval=0.4)
        hashes.add((found.name, TokenStore(found).manifest.hash))
    assert len(hashes) == 1


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_the_content_does_not_depend_on_the_workers(
    corpus: tuple[Path, SourceConfig, Path],
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int | None,
) -> None:
    monkeypatch.setattr(build, "SMALLEST_TASK_BYTES", 500)
    notes = Notes()
    other = build_store(ask(corpus, eval=0.2, cache=tmp_path, workers=workers), notes)
    assert TokenStore(other).manifest.hash == TokenStore(store).manifest.hash
    assert notes.done == notes.total == sum(len(text.encode()) for text in TEXTS)
    assert TokenStore(other).verify() == []
    assert sorted(path.name for path in other.iterdir()) == sorted(
        path.name for path in store.iterdir() if "index" not in path.name
    )


# Held-out data


def test_one_document_at_least_is_held_out_and_one_is_left(tmp_path: Path) -> None:
    few = store_of(tmp_path / "few", ["one text", "two texts", "three texts"], eval=0.0001)
    manifest = TokenStore(few).manifest
    assert (manifest.eval.documents, manifest.train.documents) == (1, 2)
    (held,) = TokenStore(few).documents("eval").tolist()
    assert manifest.eval_gzip_bytes == gzip_size(content(few)[held].encode())
    most = TokenStore(store_of(tmp_path / "most", ["one text", "two texts", "three texts"], eval=0.9999)).manifest
    assert (most.eval.documents, most.train.documents) == (2, 1)


def test_one_document_alone_is_trained_on_and_that_is_said(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus", ["only this"])
    found = build_store(request_for(tmp_path, source, tokenizer_for(tmp_path, source), eval=0.1))
    assert TokenStore(found).manifest.eval.documents == 0
    assert any("nothing is held out" in note for note in store_remarks(found, 8, True))
    assert data_facts(found, 8, True).eval_windows == 0


def test_a_source_of_its_own_is_held_out_whole(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus", TEXTS[:6])
    held = write_texts(tmp_path / "held", TEXTS[6:9])
    found = build_store(request_for(tmp_path, source, tokenizer_for(tmp_path, source), eval=held))
    assert TokenStore(found).documents("eval").tolist() == [6, 7, 8]
    manifest = TokenStore(found).manifest
    assert manifest.eval_gzip_bytes == sum(gzip_size(text.encode()) for text in TEXTS[6:9])


def test_gzip_of_a_sample_is_scaled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [prose(seed, 150) for seed in range(200)]
    whole = TokenStore(store_of(tmp_path / "whole", texts, eval=0.5)).manifest
    monkeypatch.setattr(build, "GZIP_SAMPLE_BYTES", whole.eval.bytes // 3)
    part = TokenStore(store_of(tmp_path / "part", texts, eval=0.5)).manifest
    assert part.eval_gzip_of_bytes < whole.eval.bytes * 2 / 3
    assert abs(part.eval_gzip_bytes / whole.eval_gzip_bytes - 1) < 0.05
    assert any("scaled up" in note for note in part.notes)


def test_held_out_is_by_hash_with_a_floor_and_a_ceiling() -> None:
    hashes = np.array([5, 2**63, 2**64 - 1], dtype=np.uint64)
    assert held_out(hashes, 0.0).tolist() == [False, False, False]
    assert held_out(hashes, 1e-30).tolist() == [True, False, False]
    assert held_out(hashes, 0.6).tolist() == [True, True, False]
    assert held_out(np.array([1, 2], dtype=np.uint64), 0.9).tolist() == [True, False]
    assert held_out(np.array([2**64 - 1], dtype=np.uint64), 0.5).tolist() == [False]


# What is left out


def jsonl(base: Path, *records: object) -> SourceConfig:
    base.mkdir(parents=True, exist_ok=True)
    (base / "data.jsonl").write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records))
    return SourceConfig(kind="jsonl", paths=("data.jsonl",))


def test_empty_documents_and_blank_lines_are_counted(tmp_path: Path, corpus: tuple[Path, SourceConfig, Path]) -> None:
    records = [{"text": ""}, {"text": "   "}, {"text": "ok"}, "", {"text": ""}]
    source = jsonl(tmp_path, *records)
    manifest = TokenStore(build_store(request_for(tmp_path, source, corpus[2]))).manifest
    assert manifest.skipped == {"empty": 3, "blank line": 1}
    assert manifest.skipped_at["empty"] == ["data.jsonl:1", "data.jsonl:2", "data.jsonl:5"]
    alone = load_tokenizer(corpus[2]).encode("ok", add_special_tokens=False).ids
    assert manifest.train.tokens == len(alone) + 2
    assert manifest.train.documents == 1


def test_short_documents_are_left_out_on_request(corpus: tuple[Path, SourceConfig, Path], store: Path) -> None:
    found = build_store(ask(corpus, min_tokens=60))
    kept = [text for n, text in enumerate(TEXTS) if len(TokenStore(store).document(n)) - 2 >= 60]
    assert content(found) == kept
    assert 0 < len(kept) < len(TEXTS)
    assert TokenStore(found).manifest.skipped == {"under 60 tokens": len(TEXTS) - len(kept)}


def test_lone_surrogates_become_replacement_characters(tmp_path: Path, corpus: tuple[Path, SourceConfig, Path]) -> None:
    source = jsonl(tmp_path, '{"text": "\\udbc0 end"}', '{"text": "\\ud83d\\udc4d"}', '{"text": "\U0001f44d"}')
    found = build_store(request_for(tmp_path, source, corpus[2]))
    assert content(found) == ["\ufffd end", "\U0001f44d", "\U0001f44d"]
    assert TokenStore(found).manifest.repaired == 1
    assert encode_text("\ud83d\udc4d") == ("\U0001f44d".encode(), 0)
    assert encode_text("a\udc80b\udbff") == ("a\ufffdb\ufffd".encode(), 2)


def test_spelt_out_special_tokens_are_text(tmp_path: Path, corpus: tuple[Path, SourceConfig, Path]) -> None:
    text = "a tokenizer writes <|endoftext|> behind each document"
    found = build_store(request_for(tmp_path, jsonl(tmp_path, {"text": text}), corpus[2]))
    opened = TokenStore(found)
    assert (opened.document(0)[1:-1] != opened.manifest.tokenizer.end).all()
    assert content(found) == [text]


def test_bad_records_stop_the_build_all_at_once_or_are_skipped(
    tmp_path: Path, corpus: tuple[Path, SourceConfig, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path, {"text": "fine"}, "{bad", {"body": 1}, {"text": 2})
    for workers in (None, 1):
        before = set(threading.enumerate())
        with pytest.raises(DataError) as caught:
            build_store(request_for(tmp_path, source, corpus[2], workers=workers))
        assert set(threading.enumerate()) <= before  # not left to whoever lets go of the error
        assert [problem.where for problem in caught.value.problems] == ["data.jsonl:2", "data.jsonl:3", "data.jsonl:4"]
    assert not list((tmp_path / "cache").glob("*store-*/"))
    relaxed = source.model_copy(update={"options": {"on_error": "skip"}})
    manifest = TokenStore(build_store(request_for(tmp_path, relaxed, corpus[2]))).manifest
    assert manifest.skipped == {"not JSON": 1, "no 'text'": 1, "'text' is not text": 1}


def test_many_bad_records_are_cut_short(tmp_path: Path, corpus: tuple[Path, SourceConfig, Path]) -> None:
    with pytest.raises(DataError) as caught:
        build_store(request_for(tmp_path, jsonl(tmp_path, *["{bad"] * 500), corpus[2]))
    assert len(caught.value.problems) == 20


def test_nothing_to_train_on_is_an_error_with_reasons(tmp_path: Path, corpus: tuple[Path, SourceConfig, Path]) -> None:
    with pytest.raises(DataError, match=r"holds no document.+2 empty, 1 blank line"):
        build_store(request_for(tmp_path, jsonl(tmp_path, {"text": " "}, "", {"text": None}), corpus[2]))
    (tmp_path / "cache").mkdir(exist_ok=True)
    held = jsonl(tmp_path / "held", {"text": "words"}).model_copy(update={"paths": ("held/data.jsonl",)})
    request = request_for(tmp_path, jsonl(tmp_path, {"text": " "}), corpus[2], eval=held)
    with pytest.raises(DataError, match="leaves no document to train on"):
        build_store(request)


def test_problems_of_both_sources_are_told_together(tmp_path: Path, corpus: tuple[Path, SourceConfig, Path]) -> None:
    absent = SourceConfig(paths=("absent/*.txt",))
    with pytest.raises(DataError) as caught:
        build_store(request_for(tmp_path, absent, corpus[2], eval=SourceConfig(paths=("gone.txt",))))
    assert [problem.key for problem in caught.value.problems] == ["data.train.paths", "data.eval.paths"]


# Whole or absent


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name.startswith("part-")] if cache.is_dir() else []


def test_a_full_disk_leaves_nothing_and_says_what_to_do(
    corpus: tuple[Path, SourceConfig, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(assemble, "_settle", full)
    with pytest.raises(DataError, match=r"no room left[\s\S]*set data.cache"):
        build_store(ask(corpus, cache=tmp_path))
    assert leftovers(tmp_path) == []
    monkeypatch.undo()
    assert content(build_store(ask(corpus, cache=tmp_path))) == TEXTS


def test_a_file_that_changes_meanwhile_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_texts(tmp_path / "corpus", TEXTS[:3])
    tokenizer = tokenizer_for(tmp_path, source)
    whole = build.assemble

    def touched(*arguments: Any) -> Any:
        (tmp_path / "corpus" / "0001.txt").write_text("changed, and longer than before " * 50)
        return whole(*arguments)

    monkeypatch.setattr(build, "assemble", touched)
    with pytest.raises(DataError, match=r"0001.txt: data: the file changed while it was read"):
        build_store(request_for(tmp_path, source, tokenizer))


def test_a_killed_build_leaves_no_store_and_the_next_one_cleans_up(
    corpus: tuple[Path, SourceConfig, Path], tmp_path: Path
) -> None:
    base, source, tokenizer = corpus
    code = f"""
import os, signal
from pathlib import Path
from headway.config.schema import SourceConfig
from headway.data import build, assemble
from headway.data.build import StoreRequest, build_store
build.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
source = SourceConfig(kind="text", paths={source.paths!r})
build_store(StoreRequest((source,), None, Path({str(tokenizer)!r}), Path({str(tmp_path)!r}), Path({str(base)!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(leftovers(tmp_path)) == 1
    assert find_store(ask(corpus, cache=tmp_path)) is None
    assert content(build_store(ask(corpus, cache=tmp_path))) == TEXTS
    assert leftovers(tmp_path) == []


def test_a_folder_without_manifest_or_with_a_short_file_is_no_store(tmp_path: Path) -> None:
    found = store_of(tmp_path, TEXTS[:4])
    tokens = found / "tokens-00000.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2])
    with pytest.raises(DataError, match=r"damaged: tokens-00000.bin[\s\S]*delete that folder"):
        TokenStore(found)
    tokens.write_bytes(whole[:-2] + b"\0\1")
    assert TokenStore(found).verify() == ["tokens-00000.bin"]
    manifest = json.loads((found / "manifest.json").read_text())
    (found / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(DataError, match="format 99, this version reads up to 2"):
        TokenStore(found)
    (found / "manifest.json").unlink()
    with pytest.raises(DataError, match="no complete token store"):
        TokenStore(found)


def test_two_builders_at_once_make_one_store(corpus: tuple[Path, SourceConfig, Path], tmp_path: Path) -> None:
    began, release = threading.Event(), threading.Event()
    lock = tmp_path / "locks" / f"{survey(ask(corpus, cache=tmp_path)).folder.name}.lock"

    def hold() -> None:
        with only_builder(lock, Silent()):
            began.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    began.wait(30)
    notes = Notes()
    built: list[Path] = []
    second = threading.Thread(target=lambda: built.append(build_store(ask(corpus, cache=tmp_path), notes)))
    second.start()
    while not notes.notes:
        second.join(0.02)
    assert notes.notes == [f"waiting for process {os.getpid()} on {os.uname().nodename}, which builds the same"]
    assert built == []
    release.set()
    holder.join(30)
    second.join(60)
    assert content(built[0]) == TEXTS


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom headway.data.lock import only_builder\n"
        "from headway.data.seam import Silent\n"
        "with only_builder(Path(sys.argv[1]), Silent()):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(lock)], check=False, timeout=60).returncode == -9
    assert "pid" in lock.read_text()
    with only_builder(lock, Silent()):
        pass


# Raw hashes


def test_raw_hashes_are_remembered_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    os.utime(path, ns=(10**18, 10**18))
    files = [InputFile("a.txt", path)]
    first = hash_raw(files, tmp_path / "cache")
    hashed: list[str] = []
    monkeypatch.setattr("headway.data.raw._sha256", lambda name: hashed.append(name) or "0" * 64)
    assert hash_raw(files, tmp_path / "cache").sha256 == first.sha256
    assert hashed == []
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert hash_raw(files, tmp_path / "cache").sha256 != first.sha256
    assert hashed == [str(path)]


def test_a_file_of_just_now_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    files = [InputFile("a.txt", path)]
    before = path.stat().st_mtime_ns
    first = hash_raw(files, tmp_path / "cache")
    path.write_text("two")
    os.utime(path, ns=(before, before))  # as if within one tick of the clock
    assert hash_raw(files, tmp_path / "cache").sha256 != first.sha256
    assert hash_raw([InputFile("b.txt", path)], tmp_path / "cache").sha256 != hash_raw(files, tmp_path / "cache").sha256


def test_a_damaged_record_of_hashes_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "hashes.json").write_text("{")
    assert hash_raw([InputFile("a.txt", tmp_path / "a.txt")], tmp_path).changed() == []


# Workers


class Deadly:
    """A user's source whose process is killed while it reads."""

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        self.how = config.options["how"]

    def shards(self) -> list[str]:
        return ["0", "1", "2"]

    def files(self) -> list[InputFile]:
        return []

    def size_bytes(self, shard: str) -> int:
        return 10

    def documents(self, shard: str) -> Any:
        print("a word on stdout, which is the workers' own")
        if shard == "1" and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if shard == "1" and self.how == "raise":
            raise RuntimeError("this source is broken")
        if shard == "1" and self.how == "full":
            raise OSError(errno.ENOSPC, "no space")
        from headway.data.seam import Document

        yield Document(f"document {shard}", shard)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("kill", DataError, "was killed: the machine may have run out of memory"),
        ("raise", HeadwayError, "this source is broken"),
        ("full", DataError, "no room left"),
    ],
)
def test_a_worker_that_fails_ends_the_build(
    corpus: tuple[Path, SourceConfig, Path], tmp_path: Path, how: str, error: type[Exception], message: str
) -> None:
    source = SourceConfig(kind=f"{__name__}:Deadly", options={"how": how})
    with pytest.raises(error, match=message):
        build_store(request_for(tmp_path, source, corpus[2], workers=2))
    assert leftovers(tmp_path / "cache") == []


def test_a_users_source_may_print(corpus: tuple[Path, SourceConfig, Path], tmp_path: Path) -> None:
    source = SourceConfig(kind=f"{__name__}:Deadly", options={"how": "well"})
    assert content(build_store(request_for(tmp_path, source, corpus[2], workers=1))) == [
        f"document {n}" for n in range(3)
    ]


def test_cores_are_those_that_may_be_used() -> None:
    assert crew.available_cores() == len(os.sched_getaffinity(0))


def test_a_large_vocabulary_is_stored_in_32_bits(
    corpus: tuple[Path, SourceConfig, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "read_vocabulary", lambda folder: replace(read_vocabulary(folder), size=2**16 + 1))
    found = build_store(ask(corpus, cache=tmp_path))
    assert TokenStore(found).manifest.dtype == "<u4"
    assert content(found) == TEXTS
    assert open_split(found, "train", 32, True)[0].tokens.dtype == np.int32


@pytest.mark.parametrize("cache", ["a-file/inside", "/proc/nowhere"])
def test_a_cache_that_cannot_be_is_named_by_its_key(
    corpus: tuple[Path, SourceConfig, Path], tmp_path: Path, cache: str
) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(DataError, match=r"^data\.cache = .*: cannot be written to: [\s\S]*fix: set data.cache"):
        build_store(ask(corpus, cache=tmp_path / cache))
