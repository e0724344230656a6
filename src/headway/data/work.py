"""One share of the tokenising: some shards in, a file of tokens and a file of documents out."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headway.config.schema import SourceConfig
from headway.data.accelerated import PACKAGE, REFERENCE, Accelerated
from headway.data.encoding import Encoder, SpanEncoder
from headway.data.holdout import document_hash, threshold
from headway.data.readers import ChatReader, LabelReader, Prepared, reader_for
from headway.data.reading import Reading
from headway.data.seam import DataSource, Document, ProgressReporter, Skip
from headway.data.shapes import BadRecord, Keys
from headway.data.sources import open_source
from headway.data.vocabulary import load_tokenizer
from headway.errors import Problem

MANY_PROBLEMS = 20
SHOWN_PLACES = 3

DOCUMENT = np.dtype(
    [
        ("tokens", "<i8"),
        ("bytes", "<i8"),
        ("hash", "<u8"),
        ("source", "<u2"),
        ("source_is_eval", "?"),
        ("label", "<i4"),
        ("second", "<i8"),  # of a preference: where the rejected answer begins in it; else 0
    ],
)


@dataclass(frozen=True)
class WorkSpec:
    """What every worker must know; plain values only, for it travels as JSON.

    sources: SourceConfigs as JSON with the key that errors name, all concrete. first_eval: the index from which on
    sources are held out as a whole. eval_share: held out of the others. gzip_share: of the held-out documents, those
    whose compressed size is measured. begin, end: token ids around each document. dtype: of the tokens. reading: the
    fields of a Reading. framed: whether labelled texts get the begin and the end token, as the tokenizer itself does.
    library: what encodes whole texts, see headway.data.accelerated.
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
    reading: dict[str, Any] = field(default_factory=dict[str, Any])
    framed: tuple[bool, bool] = (True, True)
    library: str = REFERENCE


@dataclass(frozen=True)
class Task:
    """Shards that one worker reads: (index of the source, shard) each, and their size in bytes."""

    number: int
    shards: tuple[tuple[int, str], ...]
    size_bytes: int


@dataclass
class TaskResult:
    """What became of a task. gzip_* cover the held-out documents that were compressed.

    spare: (hash, bytes, gzip bytes) of the document that is held out where no other is. remarks: what to say of how
    many documents. labels: each label's first place, in the order of the numbers that the documents' rows hold.
    """

    number: int
    skipped: Counter[str] = field(default_factory=Counter[str])
    skipped_at: dict[str, list[str]] = field(default_factory=dict)
    repaired: int = 0
    gzip_of_bytes: int = 0
    gzip_bytes: int = 0
    spare: tuple[int, int, int] | None = None
    problems: list[Problem] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter[str])
    labels: dict[str, str] = field(default_factory=dict[str, str])

    def skip(self, reason: str, where: str) -> None:
        self.skipped[reason] += 1
        places = self.skipped_at.setdefault(reason, [])
        if len(places) < SHOWN_PLACES:
            places.append(where)

    def to_json(self) -> dict[str, Any]:
        problems = [{**vars(p), "value": None if p.value is None else str(p.value)} for p in self.problems]
        return {**vars(self), "skipped": dict(self.skipped), "remarks": dict(self.remarks), "problems": problems}

    @staticmethod
    def from_json(content: dict[str, Any]) -> TaskResult:
        problems = [Problem(**problem) for problem in content["problems"]]
        spare = tuple(content["spare"]) if content["spare"] else None
        counters: dict[str, Any] = {name: Counter(content[name]) for name in ("skipped", "remarks")}
        return TaskResult(**content | {"problems": problems, "spare": spare} | counters)


def gzip_size(text: bytes) -> int:
    """Bytes of `gzip -9` on one text, header and all."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    return len(squeeze.compress(text)) + len(squeeze.flush())


class Workshop:
    """Everything that is opened once and serves many tasks. `run` may be called from several threads."""

    def __init__(self, spec: WorkSpec):
        self.spec = spec
        base, folder = Path(spec.base), Path(spec.tokenizer)
        configs = [(key, SourceConfig.model_validate(config)) for key, config in spec.sources]
        self.sources: list[DataSource] = [open_source(config, base, key) for key, config in configs]
        self.keys = [Keys.of(config, key) for key, config in configs]
        self.skips_errors = [config.options.get("on_error") == "skip" for _, config in configs]
        self.tokenizer = load_tokenizer(folder)
        shapes = [config.shape for _, config in configs]
        self.reader = reader_for(Reading(**spec.reading), folder, self.tokenizer, shapes)
        # A document that spells out a special token, as text about tokenizers does, means its letters; a template
        # means the token. Set here, before other threads use the tokenizer.
        self.tokenizer.encode_special_tokens = not self.is_templated
        self.encode = Accelerated(folder, self.tokenizer).encode if spec.library == PACKAGE else None

    @property
    def is_templated(self) -> bool:
        return isinstance(self.reader, ChatReader) and self.reader.template is not None

    def encoder(self) -> Encoder | SpanEncoder:
        """One for each task: it holds what is pending."""
        begin, end, dtype = self.spec.begin, self.spec.end, np.dtype(self.spec.dtype)
        if isinstance(self.reader, ChatReader):
            return SpanEncoder(self.tokenizer, None if self.is_templated else (begin, end), dtype)
        if isinstance(self.reader, LabelReader):
            begins, ends = self.spec.framed
            return Encoder(self.tokenizer, begin if begins else None, end if ends else None, dtype, self.encode)
        return Encoder(self.tokenizer, begin, end, dtype, self.encode)

    def run(self, task: Task, report: ProgressReporter) -> TaskResult:
        """Write the task's files; stops early where there is much that must be put right first."""
        with ExitStack() as files:
            kinds = ("tokens", "learnt") if isinstance(self.reader, ChatReader) else ("tokens",)
            outs = [files.enter_context(task_file(self.spec, task.number, kind).open("wb")) for kind in kinds]
            share = _Share(self, task.number, outs)
            for index, shard in task.shards:
                for item in self.sources[index].documents(shard):
                    share.take(item, index)
                    if len(share.result.problems) >= MANY_PROBLEMS:
                        return share.result
                report.advance(self.sources[index].size_bytes(shard))
            share.finish()
        return share.result


def task_file(spec: WorkSpec, number: int, kind: str) -> Path:
    """Where a task leaves its `tokens` and (chats) `learnt`, plain arrays, and `documents.npy` (of DOCUMENT)."""
    return Path(spec.out) / f"task-{number:06d}.{kind}"


@dataclass(frozen=True)
class _Pending:
    """A document that is being encoded."""

    prepared: Prepared
    where: str
    source: int
    is_second: bool = False


class _Share:
    """The documents of one task on their way from text to file."""

    def __init__(self, shop: Workshop, number: int, outs: Sequence[BinaryIO]):
        self.shop, self.spec, self.outs = shop, shop.spec, outs
        self.result = TaskResult(number)
        self.encoder = shop.encoder()
        self.pending: deque[_Pending] = deque()
        self.rows: list[tuple[int, int, int, int, bool, int, int]] = []
        self.chosen = 0  # tokens of the chosen answer, while its rejected one is encoded
        self.numbers: dict[str, int] = {}  # of the labels
        self.held_out = 0
        self.lowest: tuple[int, bytes] | None = None  # hash and text of the document that comes first to be held out

    def take(self, item: Document | Skip, source: int) -> None:
        if isinstance(item, Skip):
            self.result.skip(item.reason, item.where)
            if item.problem is not None:
                self.result.problems.append(item.problem)
            return
        try:
            prepared = self.shop.reader.read(item, self.shop.keys[source])
        except BadRecord as bad:
            self._refuse(bad, item.where, source)
            return
        if prepared is None:
            self.result.skip("empty", item.where)
            return
        self.result.repaired += prepared.repaired
        self.result.remarks.update(prepared.remarks)
        self.encoder.add(prepared.text, prepared.spans)
        self.pending.append(_Pending(prepared, item.where, source))
        if prepared.second is not None:
            self.encoder.add(prepared.second.text, prepared.second.spans)
            self.pending.append(_Pending(prepared, item.where, source, is_second=True))
        if self.encoder.full:
            self.flush()

    def _refuse(self, bad: BadRecord, where: str, source: int) -> None:
        """Counted under `on_error: skip`, else a problem that stops the build."""
        self.result.skip(bad.reason, where)
        if self.shop.skips_errors[source]:
            return
        key = self.shop.keys[source].source
        skip_fix = f"{key}.options.on_error: skip leaves such records out and counts them"
        fix = "; or ".join(filter(None, (bad.fix, skip_fix)))
        self.result.problems.append(Problem(key, f"the record {bad.rule}", fix=fix, where=where))

    def flush(self) -> None:
        """Encode and write what is pending."""
        ends = sum(self.spec.framed) if isinstance(self.shop.reader, LabelReader) else 2
        least = self.spec.min_tokens + ends  # with the two ends, or what a template puts around a word
        for batch in self.encoder.flush():
            kept = np.ones(len(batch.tokens), dtype=bool)
            for end, length in zip(batch.ends, batch.lengths, strict=True):
                document = self.pending.popleft()
                if document.prepared.second is not None:
                    self._settle_side(length, document)
                elif length < least:
                    # A document of several batches is long: a short one lies whole in this one.
                    kept[end - length : end] = False
                    self.result.skip(f"under {self.spec.min_tokens} tokens", document.where)
                else:
                    self._settle(length, document)
            # Not tofile: its errors do not say that the disk is full.
            for out, array in zip(self.outs, (batch.tokens, batch.learnt), strict=False):
                if array is not None:
                    out.write(array[kept].tobytes())

    def _settle_side(self, length: int, document: _Pending) -> None:
        """Both answers of a preference are one document, which is whole with its second."""
        if document.is_second:
            self._settle(self.chosen + length, document, self.chosen)
        else:
            self.chosen = length

    def _settle(self, length: int, document: _Pending, second: int = 0) -> None:
        spec, raw = self.spec, document.prepared.counted
        hashed = document_hash(document.prepared.hashed, spec.seed)
        is_eval = document.source >= spec.first_eval
        label = self._label(document)
        self.rows.append((length, len(raw), hashed, document.source, is_eval, label, second))
        share = 1.0 if is_eval else spec.eval_share
        if hashed < threshold(share):
            self.held_out += 1
            if hashed < threshold(share * spec.gzip_share):
                self.result.gzip_of_bytes += len(raw)
                self.result.gzip_bytes += gzip_size(raw)
        elif self.lowest is None or hashed < self.lowest[0]:
            self.lowest = (hashed, raw)

    def _label(self, document: _Pending) -> int:
        """The number of its label within this task; -1 where it has none."""
        name = document.prepared.label
        if name is None:
            return -1
        self.result.labels.setdefault(name, document.where)
        return self.numbers.setdefault(name, len(self.numbers))

    def finish(self) -> None:
        self.flush()
        if self.spec.eval_share and not self.held_out and self.lowest is not None:
            hashed, raw = self.lowest
            self.result.spare = (hashed, len(raw), gzip_size(raw))
        np.save(task_file(self.spec, self.result.number, "documents.npy"), np.array(self.rows, dtype=DOCUMENT))
