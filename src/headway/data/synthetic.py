"""Made-up documents: to try a model, a machine or a strategy before there is data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from headway.config.schema import SourceConfig
from headway.data.files import check_options
from headway.data.seam import Document, InputFile, Skip
from headway.errors import DataError, Problem

SHARD_DOCUMENTS = 1024
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "ch", "sh")
_VOWELS = "aeiou"


class Synthetic:
    """Documents of random words, the same for the same options on every machine.

    Options: `num_samples` documents (1000) of `seq_length` words each (128), drawn from `words` made-up words (2000)
    with frequencies that fall as 1 / rank, as in a language; `seed` (1).
    """

    option_defaults = {"num_samples": 1000, "seq_length": 128, "words": 2000, "seed": 1}

    def __init__(self, config: SourceConfig, base: Path, key: str = "data.train"):
        check_options(config, self.option_defaults, key)
        options = self.option_defaults | config.options
        problems = [
            Problem(f"{key}.options.{name}", "must be a whole number above zero", value)
            for name, value in options.items()
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0
        ]
        if config.paths:
            problems.append(Problem(f"{key}.paths", "kind 'synthetic' reads no files", list(config.paths)))
        if problems:
            raise DataError(problems=problems)
        self.num_samples, self.seq_length = int(options["num_samples"]), int(options["seq_length"])
        self.words, self.seed = int(options["words"]), int(options["seed"])

    def shards(self) -> list[str]:
        return [str(first) for first in range(0, self.num_samples, SHARD_DOCUMENTS)]

    def files(self) -> list[InputFile]:
        return []

    def size_bytes(self, shard: str) -> int:
        return min(SHARD_DOCUMENTS, self.num_samples - int(shard)) * self.seq_length * 6

    def documents(self, shard: str) -> Iterator[Document | Skip]:
        words = [_word(number) for number in range(self.words)]
        weights = list(accumulate(1 / (rank + 1) for rank in range(self.words)))
        first = int(shard)
        for number in range(first, min(first + SHARD_DOCUMENTS, self.num_samples)):
            drawn = random.Random(f"{self.seed}:{number}").choices(words, cum_weights=weights, k=self.seq_length)
            yield Document(" ".join(drawn), f"synthetic:{number + 1}")


def _word(number: int) -> str:
    """A word of one syllable for each digit of `number` in base 80."""
    syllables = len(_ONSETS) * len(_VOWELS)
    word = ""
    while True:
        number, digit = divmod(number, syllables)
        word += _ONSETS[digit // len(_VOWELS)] + _VOWELS[digit % len(_VOWELS)]
        if number == 0:
            return word
