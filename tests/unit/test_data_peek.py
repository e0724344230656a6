"""A look at data files before the token store is built: file, line and byte of what is no text."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from fakes.plans import SMALL, run_of
from headway import api
from headway.check.report import Verdict
from headway.data.peek import _PEEK_BYTES, text


def look(base: Path, **data: object) -> Verdict:
    return text("text", run_of(SMALL | {"data": {"train": ["corpus/*"], **data}}, base=base))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + "grün und gut\n".encode())
    (folder / "b.txt").write_text("plain\n")
    return folder


def test_text_is_text(corpus: Path) -> None:
    found = look(corpus.parent)
    assert (found.level, found.finding) == ("green", "2 files begin as text in their encoding")
    (corpus / "c.txt").write_bytes("ü".encode() * _PEEK_BYTES + b"\xff")  # a character is cut at the end of the peek
    (corpus / "d.txt").write_bytes(b"x" + "ü".encode() * _PEEK_BYTES)
    assert look(corpus.parent).level == "green"


def test_the_file_the_line_and_the_byte(corpus: Path) -> None:
    (corpus / "c.txt").write_bytes(b"\xef\xbb\xbffirst\nsecond \xe9t\xe9\n")
    found = look(corpus.parent)
    assert found.level == "red"
    assert found.finding == "byte 0xe9 at offset 16 is not utf-8 text"
    assert found.evidence == "corpus/c.txt:2"
    assert "options.encoding: cp1252" in found.fix
    (corpus / "d.txt").write_bytes(b"cut \xc3")
    assert ", and 1 more files" in look(corpus.parent).finding
    skipping = {"paths": ["corpus/*"], "options": {"on_error": "skip"}}
    assert look(corpus.parent, train=skipping).level == "green"
    latin = {"paths": ["corpus/c.txt"], "options": {"encoding": "cp1252"}}
    assert look(corpus.parent, train=latin).level == "green"


def test_every_source_of_a_mix(corpus: Path) -> None:
    (corpus.parent / "b.txt").write_bytes(b"\xff")
    mix = [{"paths": ["corpus/*"], "weight": 0.7}, {"paths": ["b.txt"], "weight": 0.3}]
    assert look(corpus.parent, train=mix).evidence == "b.txt:1"


def test_held_out_files_as_well(corpus: Path) -> None:
    (corpus.parent / "held.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    found = look(corpus.parent, eval=["held.jsonl"])
    assert (found.level, found.evidence) == ("red", "held.jsonl:2")


def test_it_is_a_check_of_the_plan(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus / "c.txt").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(corpus.parent)
    (corpus.parent / "run.yaml").write_text(
        "model: {config: {arch: llama, hidden: 64, layers: 2, heads: 2}, tokenizer: {train: 1k}}\n"
        "data: {train: [corpus/*.txt]}\ntrain: {length: 10 steps, sequence: 64, global_batch: 4 sequences}\n"
        "optimizer: {lr: 1e-3}\nlaunch: {device: cpu}\n"
    )
    report = api.plan(Path("run.yaml")).report
    assert [(v.name, v.evidence) for v in report.verdicts if v.level == "red"] == [("text", "corpus/c.txt:1")]
    assert api.plan(Path("run.yaml"), ["data.train.options.encoding=utf-16"]).report.ok


def test_files_without_a_word_are_told_before_the_build(corpus: Path) -> None:
    for file in corpus.iterdir():
        file.write_text(" \n")
    found = look(corpus.parent)
    assert (found.level, found.finding) == ("red", "holds no document: all files are empty")
    (corpus / "a.txt").write_bytes(b" " * _PEEK_BYTES + b"late")
    assert look(corpus.parent).level == "green"


def test_compressed_files_are_looked_into(corpus: Path) -> None:
    (corpus / "c.txt.gz").write_bytes(gzip.compress("grün\n".encode()))
    (corpus / "d.txt.xz").write_bytes(lzma.compress(b"plain\n"))
    assert look(corpus.parent).level == "green"
    (corpus / "e.txt.gz").write_bytes(gzip.compress(b"first\nsecond \xe9t\xe9\n"))
    found = look(corpus.parent)
    assert (found.level, found.evidence) == ("red", "corpus/e.txt.gz:2")
    (corpus / "e.txt.gz").write_bytes(gzip.compress(b"first\n")[:-9])
    found = look(corpus.parent)
    assert (found.level, "copy the file again" in found.fix) == ("red", True)
