"""Small corpora, tokenizers and token stores for the tests of the data room."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.config.schema import SourceConfig, TokenizerConfig
from headway.data.build import StoreRequest, build_store
from headway.data.tokenizer import TokenizerRequest, prepare_tokenizer

WORDS = ("the", "of", "sea", "lantern", "stone", "walked", "quietly", "under", "grey", "morning", "light", "nobody")


class Notes:
    """A ProgressReporter that remembers."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self.notes: list[str] = []

    def start(self, total_bytes: int) -> None:
        self.total = total_bytes

    def advance(self, count: int) -> None:
        self.done += count

    def note(self, text: str) -> None:
        self.notes.append(text)


def prose(seed: int, words: int) -> str:
    """Words of a small language, with line ends."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) + ("\n" if draw.random() < 0.1 else "") for _ in range(words))


def write_texts(folder: Path, texts: Sequence[str]) -> SourceConfig:
    """One file a text; a source of all of them, relative to `folder`'s parent."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"{number:04d}.txt").write_text(text, encoding="utf-8", newline="")
    return SourceConfig(kind="text", paths=(f"{folder.name}/*.txt",))


def tokenizer_for(base: Path, source: SourceConfig, vocabulary: int = 300) -> Path:
    config = TokenizerConfig(train=vocabulary)
    return prepare_tokenizer(TokenizerRequest(config, base, Path("cache"), (source,)))


def encoder_tokenizer(folder: Path) -> Path:
    """A tokenizer that puts [CLS] and [SEP] around a text, as an encoder's does.

    Its vocabulary is written, not trained: the trainer breaks ties in another order each time.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = sorted({word for seed in range(4) for word in prose(seed, 100).split()})
    letters = [f"{mark}{letter}" for mark in ("", "##") for letter in string.ascii_lowercase]
    vocabulary = dict.fromkeys([*special, *words, *letters, "."])
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = roles | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def request_for(base: Path, source: SourceConfig, tokenizer: Path, **changes: Any) -> StoreRequest:
    settings: dict[str, Any] = {"eval": None, "cache": Path("cache"), "base": base} | changes
    return StoreRequest(sources=(source,), tokenizer=tokenizer, **settings)


def store_of(base: Path, texts: Sequence[str], **changes: Any) -> Path:
    """A token store of these texts, and a tokenizer trained on them."""
    source = write_texts(base / "corpus", texts)
    return build_store(request_for(base, source, tokenizer_for(base, source), **changes))
