"""One share of the tokenising: some shards in, a file of tokens and a file of documents out."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from headway.config.schema import SourceConfig
from headway.data.encoding import Encoder
from headway.data.holdout import document_hash, encode_text, threshold
from headway.data.seam import DataSource, Document, ProgressReporter, Skip
from headway.data.sources import open_source
from headway.data.vocabulary import load_tokenizer
from headway.errors import Problem

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MANY_PROBLEMS = 20
SHOWN_PLACES = 3

DOCUMENT = np.dtype(
    [("tokens", "<i8"), ("bytes", "<i8"), ("hash", "<u8"), ("source", "<u2"), ("source_is_eval", "?")],
)


@dataclass(frozen=True)
class WorkSpec:
    """What every worker must know; plain values only, for it travels as JSON.

    sources: SourceConfigs as JSON with the key that errors name, all concrete. first_eval: the index from which on
    sources are held out as a whole. eval_share: held out of the others. gzip_share: of the held-out documents, those
    whose compressed size is measured. begin, end: token ids around each document. dtype: of the tokens.
    """

    sources: tuple[tuple[str, dict[str, Any]], ...]
    first_eval: int
    eval_share: float
    gzip_share: float
    seed: int
    min_tokens: int
    base: str
    tokenizer: str
    begin: int
    end: int
    dtype: str
    out: str


@dataclass(frozen=True)
class Task:
    """Shards that one worker reads: (index of the source, shard) each, and their size in bytes."""

    number: int
    shards: tuple[tuple[int, str], ...]
    size_bytes: int


@dataclass
class TaskResult:
    """What became of a task. gzip_* cover the held-out documents that were compressed.

    spare: (hash, bytes, gzip bytes) of the document that is held out where no other is.
    """

    number: int
    skipped: Counter[str] = field(default_factory=Counter[str])
    skipped_at: dict[str, list[str]] = field(default_factory=dict)
    repaired: int = 0
    gzip_of_bytes: int = 0
    gzip_bytes: int = 0
    spare: tuple[int, int, int] | None = None
    problems: list[Problem] = field(default_factory=list)

    def skip(self, reason: str, where: str) -> None:
        self.skipped[reason] += 1
        places = self.skipped_at.setdefault(reason, [])
        if len(places) < SHOWN_PLACES:
            places.append(where)

    def to_json(self) -> dict[str, Any]:
        problems = [{**vars(p), "value": None if p.value is None else str(p.value)} for p in self.problems]
        return {**vars(self), "skipped": dict(self.skipped), "problems": problems}

    @staticmethod
    def from_json(content: dict[str, Any]) -> TaskResult:
        problems = [Problem(**problem) for problem in content["problems"]]
        spare = tuple(content["spare"]) if content["spare"] else None
        return TaskResult(**content | {"problems": problems, "spare": spare, "skipped": Counter(content["skipped"])})


def gzip_size(text: bytes) -> int:
    """Bytes of `gzip -9` on one text, header and all."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    return len(squeeze.compress(text)) + len(squeeze.flush())


class Workshop:
    """Everything that is opened once and serves many tasks. `run` may be called from several threads."""

    def __init__(self, spec: WorkSpec):
        self.spec = spec
        base = Path(spec.base)
        self.sources: list[DataSource] = [
            open_source(SourceConfig.model_validate(config), base, key) for key, config in spec.sources
        ]
        self.tokenizer = load_tokenizer(Path(spec.tokenizer))
        # A document that spells out a special token, as text about tokenizers does, means its letters. Set here, before
        # other threads use the tokenizer.
        self.tokenizer.encode_special_tokens = True

    def run(self, task: Task, report: ProgressReporter) -> TaskResult:
        """Write the task's two files; stops early where there is much that must be put right first."""
        with task_file(self.spec, task.number, "tokens").open("wb") as out:
            share = _Share(self.spec, task.number, out, self.tokenizer)
            for index, shard in task.shards:
                for item in self.sources[index].documents(shard):
                    share.take(item, index)
                    if len(share.result.problems) >= MANY_PROBLEMS:
                        return share.result
                report.advance(self.sources[index].size_bytes(shard))
            share.finish()
        return share.result


def task_file(spec: WorkSpec, number: int, kind: str) -> Path:
    """Where a task leaves its `tokens` (a plain array) and `documents.npy` (of DOCUMENT)."""
    return Path(spec.out) / f"task-{number:06d}.{kind}"


@dataclass(frozen=True)
class _Pending:
    """A document that is being encoded."""

    raw: bytes
    where: str
    source: int


class _Share:
    """The documents of one task on their way from text to file."""

    def __init__(self, spec: WorkSpec, number: int, out: BinaryIO, tokenizer: Tokenizer):
        self.spec, self.out = spec, out
        self.result = TaskResult(number)
        self.encoder = Encoder(tokenizer, spec.begin, spec.end, np.dtype(spec.dtype))
        self.pending: deque[_Pending] = deque()
        self.rows: list[tuple[int, int, int, int, bool]] = []
        self.held_out = 0
        self.lowest: tuple[int, bytes] | None = None  # hash and text of the document that comes first to be held out

    def take(self, item: Document | Skip, source: int) -> None:
        if isinstance(item, Skip):
            self.result.skip(item.reason, item.where)
            if item.problem is not None:
                self.result.problems.append(item.problem)
        elif not item.text.strip():
            self.result.skip("empty", item.where)
        else:
            raw, repaired = encode_text(item.text)
            self.result.repaired += repaired > 0
            self.encoder.add(raw.decode("utf-8") if repaired else item.text)
            self.pending.append(_Pending(raw, item.where, source))
            if self.encoder.full:
                self.flush()

    def flush(self) -> None:
        """Encode and write what is pending."""
        least = self.spec.min_tokens + 2  # with the two ends
        for batch in self.encoder.flush():
            kept = np.ones(len(batch.tokens), dtype=bool)
            for end, length in zip(batch.ends, batch.lengths, strict=True):
                document = self.pending.popleft()
                if length < least:
                    # A document of several batches is long: a short one lies whole in this one.
                    kept[end - length : end] = False
                    self.result.skip(f"under {self.spec.min_tokens} tokens", document.where)
                else:
                    self._settle(length, document)
            self.out.write(batch.tokens[kept].tobytes())  # not tofile: its errors do not say that the disk is full

    def _settle(self, length: int, document: _Pending) -> None:
        spec, raw = self.spec, document.raw
        hashed = document_hash(raw, spec.seed)
        is_eval = document.source >= spec.first_eval
        self.rows.append((length, len(raw), hashed, document.source, is_eval))
        share = 1.0 if is_eval else spec.eval_share
        if hashed < threshold(share):
            self.held_out += 1
            if hashed < threshold(share * spec.gzip_share):
                self.result.gzip_of_bytes += len(raw)
                self.result.gzip_bytes += gzip_size(raw)
        elif self.lowest is None or hashed < self.lowest[0]:
            self.lowest = (hashed, raw)

    def finish(self) -> None:
        self.flush()
        if self.spec.eval_share and not self.held_out and self.lowest is not None:
            hashed, raw = self.lowest
            self.result.spare = (hashed, len(raw), gzip_size(raw))
        np.save(task_file(self.spec, self.result.number, "documents.npy"), np.array(self.rows, dtype=DOCUMENT))
