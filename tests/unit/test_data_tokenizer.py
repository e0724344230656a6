"""Tokenizers: trained ones are exact, fixed and lose no byte; folders are read without transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.corpora import Notes, prose, write_texts
from headway.config.schema import SourceConfig, TokenizerConfig
from headway.data import bpe, vocabulary
from headway.data.encoding import Encoder, cut_parts
from headway.data.tokenizer import TokenizerRequest, find_tokenizer, prepare_tokenizer
from headway.data.vocabulary import load_tokenizer, read_vocabulary
from headway.errors import DataError, ModelError
from headway.facts.hub import cached_snapshot

ODD = [
    "plain words and numbers 1234567 3.14",
    "tabs\tand\t\tmore, CRLF\r\nline\r\n\r\n  indented\n\n\n",
    "\x00nulls\x00\x00 \x01\x7f",
    "emoji 🙂🇫🇷👩‍👩‍👧 and é é ß ﬁ",
    "日本語テキスト العربية हिन्दी",
    "\ufeffmark inside \u2028 and \u00a0 spaces \u3000",
    "<|endoftext|> spelt out <|endoftext|>",
    " ",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SourceConfig]:
    base = tmp_path_factory.mktemp("tokenizer")
    return base, write_texts(base / "corpus", [prose(seed, 400) for seed in range(8)] + ODD)


@pytest.fixture(scope="module")
def trained(corpus: tuple[Path, SourceConfig]) -> Path:
    return train(corpus, 320)


def train(corpus: tuple[Path, SourceConfig], size: int, cache: str = "cache", **changes: Any) -> Path:
    base, source = corpus
    request = TokenizerRequest(TokenizerConfig(train=size), base, Path(cache), (source,), **changes)
    return prepare_tokenizer(request, changes.get("report"))


def test_the_vocabulary_is_exact_and_ends_are_known(trained: Path) -> None:
    found = read_vocabulary(trained)
    end = load_tokenizer(trained).token_to_id("<|endoftext|>")
    assert found.size == 320
    assert found.begin == found.end == found.pad == end
    assert found.adds_begin
    assert not found.adds_end


@pytest.mark.parametrize("text", ODD)
def test_no_byte_is_lost(trained: Path, text: str) -> None:
    tokenizer = load_tokenizer(trained)
    for spelt in (False, True):
        tokenizer.encode_special_tokens = spelt
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_same_text_gives_the_same_files(corpus: tuple[Path, SourceConfig], trained: Path) -> None:
    again = train(corpus, 320, cache="other")
    assert again != trained
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (again / name).read_bytes() == (trained / name).read_bytes()
    assert train(corpus, 320) == trained
    assert train(corpus, 321) != trained


def test_held_out_documents_train_no_tokenizer(tmp_path: Path) -> None:
    texts = [f"zq{chr(97 + number) * 3} " * 200 for number in range(20)]
    source = write_texts(tmp_path / "corpus", texts)
    folder = train((tmp_path, source), 400, eval=0.3)
    words = load_tokenizer(folder).get_vocab()
    whole = load_tokenizer(train((tmp_path, source), 400)).get_vocab()

    def learnt(vocabulary: dict[str, int]) -> set[str]:
        return {chr(97 + number) for number in range(20) if any(chr(97 + number) * 3 in word for word in vocabulary)}

    assert learnt(words) < learnt(whole)
    assert 8 <= len(learnt(words)) < 20


def test_a_small_text_gives_fewer_entries_and_says_so(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus", ["aaaa bbbb"])
    notes = Notes()
    request = TokenizerRequest(TokenizerConfig(train=5000), tmp_path, Path("cache"), (source,))
    folder = prepare_tokenizer(request, notes)
    size = read_vocabulary(folder).size
    assert 257 <= size < 300
    assert f"the text gives a vocabulary of {size} entries, not 5000" in notes.notes


def test_only_a_sample_of_a_large_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_texts(tmp_path / "corpus", [prose(seed, 500) for seed in range(30)])
    monkeypatch.setattr(bpe, "SAMPLE_BYTES", 10_000)
    notes = Notes()
    request = TokenizerRequest(TokenizerConfig(train=300), tmp_path, Path("cache"), (source,))
    folder = prepare_tokenizer(request, notes)
    assert "training the tokenizer on 9.77 KiB of" in notes.notes[0]
    assert find_tokenizer(request) == folder


def test_too_small_a_vocabulary_is_refused(corpus: tuple[Path, SourceConfig]) -> None:
    with pytest.raises(ModelError, match="at least 257"):
        train(corpus, 256)


def test_undecodable_text_stops_the_training(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus", ["fine"])
    for name in ("x.txt", "y.txt"):
        (tmp_path / "corpus" / name).write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(DataError, match=r"corpus/x.txt:1[\s\S]*corpus/y.txt:1"):
        train((tmp_path, source), 300)


# Folders


def folder_of(path: Path, trained: Path, settings: dict[str, Any] | None, **files: Any) -> Path:
    path.mkdir()
    (path / "tokenizer.json").write_bytes((trained / "tokenizer.json").read_bytes())
    if settings is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def with_tokens(path: Path, *tokens: str) -> None:
    tokenizer = load_tokenizer(path)
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.post_processor = None  # type: ignore[assignment]
    tokenizer.save(str(path / "tokenizer.json"))


def test_ends_are_read_from_each_place(tmp_path: Path, trained: Path) -> None:
    end = read_vocabulary(trained).end
    plain = folder_of(tmp_path / "plain", trained, {"eos_token": "<|endoftext|>"})
    assert read_vocabulary(plain).begin == read_vocabulary(plain).end == end
    mapped = folder_of(tmp_path / "mapped", trained, {}, special_tokens_map={"bos_token": {"content": "<|endoftext|>"}})
    assert read_vocabulary(mapped).end == end
    by_id = folder_of(tmp_path / "id", trained, None, config={"eos_token_id": [end, 5], "bos_token_id": 7})
    assert (read_vocabulary(by_id).begin, read_vocabulary(by_id).end) == (7, end)
    both = folder_of(tmp_path / "both", trained, {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    with_tokens(both, "<s>", "</s>")
    found = read_vocabulary(both)
    assert (found.begin, found.end, found.size) == (320, 321, 322)
    assert (found.adds_begin, found.adds_end) == (True, False)
    encoder = folder_of(tmp_path / "encoder", trained, {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    with_tokens(encoder, "[CLS]", "[SEP]")
    assert (read_vocabulary(encoder).begin, read_vocabulary(encoder).end) == (320, 321)


def test_a_tokenizer_without_ends_is_refused(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(ModelError, match="neither a begin nor an end token"):
        read_vocabulary(folder_of(tmp_path / "none", trained, {}))


def test_ids_beyond_31_bits_are_refused(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_VOCABULARY", 300)
    with pytest.raises(ModelError, match="must fit 31 bits"):
        read_vocabulary(folder_of(tmp_path / "large", trained, {"eos_token": "<|endoftext|>"}))


def test_a_tokenizer_that_was_changed_is_read_again(tmp_path: Path, trained: Path) -> None:
    folder = folder_of(tmp_path / "mine", trained, {"eos_token": "<|endoftext|>"})
    before = read_vocabulary(folder)
    with_tokens(folder, "<more>")
    assert read_vocabulary(folder).size == before.size + 1


def test_truncation_and_padding_of_the_folder_do_not_cut_documents(tmp_path: Path, trained: Path) -> None:
    folder = folder_of(tmp_path / "cut", trained, {"eos_token": "<|endoftext|>"})
    tokenizer = load_tokenizer(folder)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).encode(ODD[0]).ids == load_tokenizer(trained).encode(ODD[0]).ids


def request_from(base: Path, name: str) -> TokenizerRequest:
    return TokenizerRequest(TokenizerConfig.model_validate({"from": name}), base, Path("cache"))


def test_a_folder_is_taken_as_it_is(tmp_path: Path, trained: Path) -> None:
    folder_of(tmp_path / "mine", trained, {"eos_token": "<|endoftext|>"})
    assert prepare_tokenizer(request_from(tmp_path, "mine")) == tmp_path / "mine"
    assert find_tokenizer(request_from(tmp_path, "./mine")) == tmp_path / "mine"


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_text("x")
    with pytest.raises(ModelError, match=r"no tokenizer's folder[\s\S]*it holds model.safetensors"):
        prepare_tokenizer(request_from(tmp_path, "weights"))
    with pytest.raises(ModelError, match=r"there is no folder"):
        prepare_tokenizer(request_from(tmp_path, "./absent"))
    with pytest.raises(ModelError, match=r"names no tokenizer[\s\S]*train: 32k"):
        prepare_tokenizer(TokenizerRequest(TokenizerConfig(), tmp_path, Path("cache")))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        read_vocabulary(tmp_path / "broken")


@pytest.mark.parametrize("name", ["./absent", "../absent", "a..b", "a--b", "x" * 97])
def test_what_is_no_name_of_the_hubs_is_found_nowhere(tmp_path: Path, name: str) -> None:
    assert (
        find_tokenizer(TokenizerRequest(TokenizerConfig.model_validate({"from": name}), tmp_path, Path("cache")))
        is None
    )
    assert cached_snapshot(name, None) is None


def test_a_hub_id_comes_from_the_local_cache_or_is_explained(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    commit = "a" * 40
    snapshot = hub / "models--acme--tiny" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    folder_of(snapshot, trained, {"eos_token": "<|endoftext|>"})
    (hub / "models--acme--tiny" / "refs").mkdir()
    (hub / "models--acme--tiny" / "refs" / "main").write_text(commit)
    assert prepare_tokenizer(request_from(tmp_path, "acme/tiny")).resolve() == snapshot
    assert find_tokenizer(request_from(tmp_path, "acme/tiny")) is not None
    assert find_tokenizer(request_from(tmp_path, "acme/absent")) is None
    with pytest.raises(ModelError, match=r"not in the local cache[\s\S]*hf download acme/absent"):
        prepare_tokenizer(request_from(tmp_path, "acme/absent"))


# Encoding in parts


def test_a_cut_text_has_the_tokens_of_the_whole(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.encoding.PART_CHARACTERS", 200)
    tokenizer = load_tokenizer(trained)
    text = "".join(ODD) + prose(3, 3000) + "\n" + "\n".join(ODD) + "x" * 3000 + "\n\n \n" + prose(4, 500)
    parts = list(cut_parts(text, tokenizer))
    assert "".join(parts) == text
    assert len(parts) > 20
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False).ids] == whole


def test_a_tokenizer_that_changes_the_start_of_a_text_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    monkeypatch.setattr("headway.data.encoding.PART_CHARACTERS", 200)
    text = prose(3, 1000).replace("\n ", "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    assert list(cut_parts(text, tokenizer)) == [text]
    tokenizer.pre_tokenizer = None
    assert list(cut_parts(text, tokenizer)) == [text]


def test_batches_put_ends_around_documents(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr("headway.data.encoding.PART_CHARACTERS", 200)
    monkeypatch.setattr("headway.data.encoding.BATCH_CHARACTERS", 500)
    tokenizer = load_tokenizer(trained)
    encoder = Encoder(tokenizer, 256, 257, np.dtype("<u2"))
    texts = [prose(1, 300), "short", prose(2, 2), *ODD, prose(5, 700)]
    for text in texts:
        encoder.add(text)
    assert encoder.full
    batches = list(encoder.flush())
    assert len(batches) > 5
    whole = np.concatenate([batch.tokens for batch in batches])
    expected = [[256, *tokenizer.encode(text, add_special_tokens=False).ids, 257] for text in texts]
    assert whole.tolist() == [token for document in expected for token in document]
    assert [length for batch in batches for length in batch.lengths] == [len(document) for document in expected]
    assert all(batch.tokens[end - 1] == 257 for batch in batches for end in batch.ends)
    assert not encoder.full
    assert list(encoder.flush()) == []


def test_no_torch_or_transformers_is_imported() -> None:
    import subprocess

    modules = (
        "headway.data.tokenizer, headway.data.build, headway.data.facts, headway.data.loader, headway.data.samples"
    )
    code = f"import sys, {modules}; sys.exit(sum(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
