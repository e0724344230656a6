"""The tokenizer of a run: a folder, a Hub id, or one trained on the training documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headway.config.schema import SourceConfig, TokenizerConfig
from headway.data.bpe import TrainingText, find_trained, train_bpe
from headway.data.seam import ProgressReporter, Silent
from headway.data.vocabulary import hash_tokenizer
from headway.errors import ModelError, Problem

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
_WANTED = ["tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "config.json"]
_WANTED += [*_SLOW_FILES, "merges.txt"]


@dataclass(frozen=True)
class TokenizerRequest:
    """Exactly one of `config.from_` and `config.train`. Relative paths start at `base`, the run file's folder.

    sources, eval and seed are those of the token store: held-out documents train no tokenizer. key: the section of the
    run file that names it.
    """

    config: TokenizerConfig
    base: Path
    cache: Path
    sources: tuple[SourceConfig, ...] = ()
    eval: float | SourceConfig | None = None
    seed: int = 0
    revision: str | None = None
    key: str = "model.tokenizer"

    @property
    def training_text(self) -> TrainingText:
        share = self.eval if isinstance(self.eval, float) else 0.0
        return TrainingText(self.sources, share, self.seed, self.base)


def prepare_tokenizer(request: TokenizerRequest, report: ProgressReporter | None = None) -> Path:
    """A folder with tokenizer.json that both `tokenizers` and transformers.AutoTokenizer read.

    Raises:
        ModelError: the folder or Hub id is absent or no tokenizer, or the vocabulary is too small.
        DataError: the documents to train on cannot be read.
    """
    report = report or Silent()
    if request.config.train is not None:
        return train_bpe(request.training_text, request.config.train, request.base / request.cache, report)
    if request.config.from_ is None:
        fix = f"write {request.key}: {{train: 32k}} or {request.key}: {{from: a folder or Hub id}}"
        raise ModelError(problems=[Problem(request.key, "names no tokenizer", fix=fix)])
    folder = request.base / os.path.expanduser(request.config.from_)
    if folder.is_dir():
        return _from_folder(folder, request, report)
    return _from_hub(request.config.from_, request, report)


def find_tokenizer(request: TokenizerRequest) -> Path | None:
    """The folder that prepare_tokenizer would return, where nothing has to be made or fetched for it."""
    if request.config.train is not None:
        return find_trained(request.training_text, request.config.train, request.base / request.cache)
    if request.config.from_ is None:
        return None
    folder: Path | None = request.base / os.path.expanduser(request.config.from_)
    if not folder.is_dir() and _HUB_ID.fullmatch(request.config.from_):
        folder = _cached(request.config.from_, request.revision)
    return folder if folder and (folder / "tokenizer.json").is_file() else None


def _from_folder(folder: Path, request: TokenizerRequest, report: ProgressReporter) -> Path:
    if (folder / "tokenizer.json").is_file():
        return folder
    readable = [name for name in _SLOW_FILES if (folder / name).is_file()]
    if not readable:
        held = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        fix = f"the folder must hold tokenizer.json (it holds {held}); or write model.tokenizer: {{train: 32k}}"
        raise ModelError(problems=[Problem(f"{request.key}.from", "is no tokenizer's folder", str(folder), fix)])
    report.note(f"converting {', '.join(readable)} to tokenizer.json")
    return _convert(str(folder), request)


def _from_hub(name: str, request: TokenizerRequest, report: ProgressReporter) -> Path:
    where = f"{request.key}.from"
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        problem = Problem(where, f"there is no folder {request.base / name}", name, "relative to the run file's folder")
        raise ModelError(problems=[problem])
    folder = _cached(name, request.revision)
    if folder is not None:
        return _from_folder(folder, request, report)
    from huggingface_hub import snapshot_download

    report.note(f"fetching the tokenizer of {name}")
    try:
        folder = Path(snapshot_download(name, revision=request.revision, allow_patterns=_WANTED))
    except Exception as error:  # the hub's many errors have no root of their own
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        rule = f"is no folder below {request.base}, not in the local cache, and cannot be fetched ({first[:160]})"
        fix = f"check the spelling; without a network, run `hf download {name}` elsewhere and name the folder"
        raise ModelError(problems=[Problem(where, rule, name, fix)]) from error
    return _from_folder(folder, request, report)


def _cached(name: str, revision: str | None) -> Path | None:
    """The local cache's copy of a Hub id, if it holds a tokenizer; asks no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, FileNotFoundError, HFValidationError):  # the last: no name of the Hub's
        return None
    return folder if any((folder / file).is_file() for file in ("tokenizer.json", *_SLOW_FILES)) else None


def _convert(source: str, request: TokenizerRequest) -> Path:
    """Have transformers write the folder anew, in a process of its own."""
    cache = request.base / request.cache / "tokenizers"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="part-") as part:
        made = Path(part) / "made"
        command = [sys.executable, "-m", "headway.data.convert", source, str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (made / "tokenizer.json").is_file():
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            problem = Problem(f"{request.key}.from", f"transformers cannot read it: {last}", source)
            raise ModelError(problems=[problem])
        target = cache / f"converted-{hash_tokenizer(made)[:16]}"
        if not target.is_dir():
            made.rename(target)  # whole or not at all: whoever finds the folder uses it
    return target
