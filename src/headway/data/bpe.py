"""Training a byte-level BPE tokenizer on the training documents."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headway.config.rules import SMALLEST_VOCABULARY, VOCABULARY_RULE
from headway.config.schema import SourceConfig
from headway.data.holdout import document_hash, encode_text, held_out
from headway.data.lock import only_builder
from headway.data.raw import hash_raw
from headway.data.room import room_for
from headway.data.seam import DataSource, ProgressReporter, Skip
from headway.data.shapes import ANY_SHAPE, identity
from headway.data.sources import concrete, open_source, with_shape
from headway.errors import DataError, ModelError, Problem
from headway.units import format_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BPE_VERSION = 1  # part of the folder's key: raise it when the same text gives another tokenizer
END_OF_TEXT = "<|endoftext|>"
SAMPLE_BYTES = 200 * 10**6
_PIECE_CHARACTERS = 2**16
_MANY_PROBLEMS = 20
# Words with the space before them, numbers of up to three digits, punctuation, runs of spaces: as in GPT-4's tokenizer.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TrainingText:
    """The documents to learn from: `sources` without the held-out `eval_share` of them."""

    sources: tuple[SourceConfig, ...]
    eval_share: float
    seed: int
    base: Path

    def open(self) -> list[tuple[SourceConfig, DataSource]]:
        exact = [concrete(config, self.base, "data.train") for config in self.sources]
        shapes = [ANY_SHAPE if config.shape == "auto" else (config.shape,) for config in exact]
        pairs = zip(exact, shapes, strict=True)
        configs = [with_shape(config, self.base, "data.train", accepted)[0] for config, accepted in pairs]
        return [(config, open_source(config, self.base, "data.train")) for config in configs]


def find_trained(text: TrainingText, vocabulary: int, cache: Path) -> Path | None:
    """The folder of this very tokenizer, if it was trained before."""
    folder = _folder(text, text.open(), vocabulary, cache)
    return folder if folder.is_dir() else None


def train_bpe(text: TrainingText, vocabulary: int, cache: Path, report: ProgressReporter) -> Path:
    """Train, or find, a tokenizer of exactly `vocabulary` entries (fewer where the text does not give more).

    The same text and size give the same files. At most SAMPLE_BYTES of the text are read.
    """
    if vocabulary < SMALLEST_VOCABULARY:
        raise ModelError(problems=[Problem("model.tokenizer.train", VOCABULARY_RULE, vocabulary, "e.g. train: 8k")])
    opened = text.open()
    folder = _folder(text, opened, vocabulary, cache)
    if folder.is_dir():
        return folder
    with room_for(0, cache), only_builder(cache / "locks" / f"{folder.name}.lock", report):
        if folder.is_dir():
            return folder
        tokenizer = _train(_texts(text, opened, report), vocabulary)
        size = tokenizer.get_vocab_size()
        if size < vocabulary:
            report.note(f"the text gives a vocabulary of {size} entries, not {vocabulary}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent, prefix="part-"))
        try:
            _write(tokenizer, part)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _folder(text: TrainingText, opened: list[tuple[SourceConfig, DataSource]], vocabulary: int, cache: Path) -> Path:
    raw = hash_raw([file for _, source in opened for file in source.files()], cache)
    configs = [identity(config) for config, _ in opened]
    what = [BPE_VERSION, _SPLIT, raw.sha256, configs, text.eval_share, text.seed, vocabulary, SAMPLE_BYTES]
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return cache / "tokenizers" / f"bpe-{vocabulary}-{key[:16]}"


def _texts(text: TrainingText, opened: list[tuple[SourceConfig, DataSource]], report: ProgressReporter) -> list[str]:
    """Training documents of up to SAMPLE_BYTES; where there is more, of shards drawn at random."""
    shards = [(source, shard) for _, source in opened for shard in source.shards()]
    total = sum(source.size_bytes(shard) for source, shard in shards)
    if total > SAMPLE_BYTES:
        random.Random(text.seed).shuffle(shards)
        report.note(f"training the tokenizer on {format_bytes(SAMPLE_BYTES)} of {format_bytes(total)} of text")
    else:
        report.note(f"training the tokenizer on {format_bytes(total)} of text")
    texts: list[str] = []
    hashes: list[int] = []
    size = 0
    for document in _documents(shards):
        raw, _ = encode_text(document)
        texts.append(raw.decode("utf-8"))
        hashes.append(document_hash(raw, text.seed))
        size += len(raw)
        if size >= SAMPLE_BYTES:
            break
    kept = ~held_out(np.array(hashes, dtype=np.uint64), text.eval_share)
    texts = [document for document, keep in zip(texts, kept, strict=True) if keep]
    if not texts:
        raise DataError(
            "there is no text to train a tokenizer on", fix="check data.train.paths, and the share of data.eval"
        )
    return texts


def _documents(shards: list[tuple[DataSource, str]]) -> Iterator[str]:
    problems: list[Problem] = []
    for source, shard in shards:
        for item in source.documents(shard):
            if not isinstance(item, Skip):
                yield item.text
            elif item.problem is not None:
                problems.append(item.problem)
                if len(problems) >= _MANY_PROBLEMS:
                    raise DataError(problems=problems)
    if problems:
        raise DataError(problems=problems)


def _pieces(texts: list[str]) -> Iterator[str]:
    """Long texts in parts that end at a line's end, so that every core gets its share."""
    for text in texts:
        start = 0
        while len(text) - start > _PIECE_CHARACTERS:
            end = text.find("\n", start + _PIECE_CHARACTERS) + 1
            if end == 0:
                break
            yield text[start:end]
            start = end
        yield text[start:]


def _train(texts: list[str], vocabulary: int) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_pieces(texts), trainer)
    end = tokenizer.token_to_id(END_OF_TEXT)
    # Documents begin with this token in training; a text that is continued begins alike.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B",
        special_tokens=[(END_OF_TEXT, end)],
    )
    return tokenizer


def _write(tokenizer: Tokenizer, folder: Path) -> None:
    # Not tokenizer.save: its errors do not say which kind they are.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    roles = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT)
    settings = roles | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 10**30,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(roles, indent=2) + "\n", encoding="utf-8")
