"""What Headway reads and trains is what plain transformers loads: the same ids, ends and text. One process for all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.corpora import prose, tokenizer_for, write_texts
from headway.config.schema import TokenizerConfig
from headway.data.tokenizer import TokenizerRequest, prepare_tokenizer
from headway.data.vocabulary import load_tokenizer, read_vocabulary

TEXTS = ["one two  three\n\tfour\r\n", "emoji 🙂 \x00 é", "1234567 <|endoftext|> x", " leading and trailing "]

READ_ALL = """
import json, sys
from transformers import AutoTokenizer
folders, texts = json.loads(sys.argv[1]), json.loads(sys.argv[2])
out = {}
for folder in folders:
    t = AutoTokenizer.from_pretrained(folder)
    out[folder] = {
        "ids": [t(text)["input_ids"] for text in texts],
        "plain": [t(text, add_special_tokens=False)["input_ids"] for text in texts],
        "back": [t.decode(t(text, add_special_tokens=False)["input_ids"]) for text in texts],
        "ends": [t.bos_token_id, t.eos_token_id, t.pad_token_id],
        "size": len(t),
        "fast": t.is_fast,
    }
    t.save_pretrained(folder + "-saved")
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A trained tokenizer, and one in the old two-file form."""
    base = tmp_path_factory.mktemp("tokenizers")
    trained = tokenizer_for(base, write_texts(base / "corpus", [*(prose(seed, 200) for seed in range(5)), *TEXTS]), 350)
    content = json.loads((trained / "tokenizer.json").read_text())["model"]
    old = base / "old"
    old.mkdir()
    (old / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in content["merges"]]
    (old / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    settings = {"tokenizer_class": "GPT2Tokenizer", **dict.fromkeys(("bos_token", "eos_token"), "<|endoftext|>")}
    (old / "tokenizer_config.json").write_text(json.dumps(settings))
    request = TokenizerRequest(TokenizerConfig.model_validate({"from": "old"}), base, Path("cache"))
    return [trained, prepare_tokenizer(request)]


@pytest.fixture(scope="module")
def told(folders: list[Path]) -> list[dict[str, Any]]:
    """What transformers says of each folder."""
    arguments = [json.dumps([str(folder) for folder in folders]), json.dumps(TEXTS)]
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, *arguments], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    return [answers[str(folder)] for folder in folders]


def test_transformers_gives_the_same_ids(folders: list[Path], told: list[dict[str, Any]]) -> None:
    for folder, answer in zip(folders, told, strict=True):
        tokenizer = load_tokenizer(folder)
        assert answer["fast"]
        assert answer["plain"] == [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        assert answer["ids"] == [tokenizer.encode(text).ids for text in TEXTS]


def test_text_comes_back(told: list[dict[str, Any]]) -> None:
    for answer in told:
        assert answer["back"] == TEXTS


def test_ends_and_size_are_read_alike(folders: list[Path], told: list[dict[str, Any]]) -> None:
    for folder, answer in zip(folders, told, strict=True):
        found = read_vocabulary(folder)
        begin, end, pad = answer["ends"]
        assert (found.begin, found.end, found.pad) == (begin, end, pad)
        assert found.size == answer["size"]
        first = [
            ids[0] == begin and ids[1:] == plain for ids, plain in zip(answer["ids"], answer["plain"], strict=True)
        ]
        assert all(first) == found.adds_begin
        assert any(first) == found.adds_begin


def test_the_trained_one_begins_a_text_as_training_did(told: list[dict[str, Any]]) -> None:
    trained = told[0]
    assert [ids[0] for ids in trained["ids"]] == [trained["ends"][0]] * len(TEXTS)


def test_what_transformers_saves_again_is_read_the_same(folders: list[Path], told: list[dict[str, Any]]) -> None:
    """The way of an export: loaded by transformers, written by it."""
    for folder in folders:
        saved = Path(f"{folder}-saved")
        for text in TEXTS:
            assert load_tokenizer(saved).encode(text).ids == load_tokenizer(folder).encode(text).ids
        before, after = read_vocabulary(folder), read_vocabulary(saved)
        assert (before.begin, before.end, before.size) == (after.begin, after.end, after.size)
