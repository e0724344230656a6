"""Small corpora, tokenizers and token stores for the tests of the data room."""

from __future__ import annotations

import random
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


def request_for(base: Path, source: SourceConfig, tokenizer: Path, **changes: Any) -> StoreRequest:
    settings: dict[str, Any] = {"eval": None, "cache": Path("cache"), "base": base} | changes
    return StoreRequest(sources=(source,), tokenizer=tokenizer, **settings)


def store_of(base: Path, texts: Sequence[str], **changes: Any) -> Path:
    """A token store of these texts, and a tokenizer trained on them."""
    source = write_texts(base / "corpus", texts)
    return build_store(request_for(base, source, tokenizer_for(base, source), **changes))
