"""What the plan must know of the data: exact from a token store, or estimated from the size of the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from headway.data.arrays import Split, TokenStore
from headway.data.build import StoreRequest, open_sources
from headway.data.ledger import mixture_notes
from headway.data.manifest import Counts
from headway.data.packing import Layout, Losses, losses, open_index, short_windows, targets
from headway.data.records import RecordSource
from headway.data.seam import DataSource, Skip
from headway.data.shapes import LOOKED_AT
from headway.errors import DataError, Problem
from headway.facts.schema import DataFacts
from headway.units import format_bytes, format_count, format_seconds

# English and code under a vocabulary of 8k to 50k entries lie between 3.2 and 4.6.
BYTES_PER_TOKEN = 4.0
# Of text, by `gzip -9`.
GZIP_RATIO = 0.35


def data_facts(store: Path, sequence: int, packing: bool, weights: tuple[float, ...] = ()) -> DataFacts:
    """Exact facts. `documents` and `tokens` are those of the training split; makes the window indexes where absent.

    Raises:
        DataError: chats are there, but nothing that is learnt lies within `sequence` tokens of any.
    """
    opened = TokenStore(store)
    manifest = opened.manifest
    train, held_out = Layout("train", sequence, packing, weights), Layout("eval", sequence, packing)
    train_index, eval_index = open_index(opened, train), open_index(opened, held_out)
    windows = len(train_index)
    if not windows:
        rule = f"no example has a token to learn within {sequence} tokens"
        raise DataError(problems=[Problem("train.sequence", rule, sequence, "raise it, or shorten the prompts")])
    # Bits per byte compare the loss with the text that it covers: of labels, or of texts cut short, it covers less.
    whole = manifest.kind not in ("labelled", "preference") and losses(opened, held_out) == Losses(0, 0)
    return DataFacts(
        store=str(store),
        store_hash=manifest.hash,
        tokenizer=manifest.tokenizer.path,
        vocab=manifest.tokenizer.vocab,
        sequence=sequence,
        documents=manifest.train.documents,
        tokens=manifest.train.tokens,
        train_windows=windows,
        train_targets=targets(opened, train_index),
        eval_documents=manifest.eval.documents,
        eval_windows=len(eval_index),
        eval_targets=targets(opened, eval_index),
        eval_bytes=manifest.eval.bytes if whole else 0,
        eval_gzip_bytes=manifest.eval_gzip_bytes if whole else 0,
        layout=train.how(manifest.kind),
        short_windows=short_windows(train_index, sequence),
        labels=manifest.labels,
        label_counts=_label_counts(opened),
        label_sets=opened.has_sets,
        notes=(*manifest.shapes, *mixture_notes(opened, train_index, weights)),
        lost=_loss_notes(opened, sequence, packing),
    )


def _label_counts(store: TokenStore) -> tuple[int, ...]:
    if store.labels is None:
        return ()
    numbers = store.documents("train")
    trained = store.labels[numbers]
    if store.has_sets:
        trained = np.concatenate([store.labels_of(number) for number in numbers.tolist()])
    return tuple(np.bincount(trained, minlength=len(store.manifest.labels)).tolist())


def _loss_notes(store: TokenStore, sequence: int, packing: bool) -> tuple[str, ...]:
    """What a layout cuts off or leaves out of each split, in words."""
    notes: list[str] = []
    what = {"chat": "chats", "preference": "pairs"}.get(store.manifest.kind, "texts")
    splits: tuple[tuple[Split, Counts], ...] = (("train", store.manifest.train), ("eval", store.manifest.eval))
    for split, counts in splits:
        lost = losses(store, Layout(split, sequence, packing))
        where = "" if split == "train" else " held-out"
        if lost.documents:
            tokens = format_count(lost.tokens)
            share = lost.documents / counts.documents
            notes.append(
                f"{lost.documents} of {counts.documents}{where} {what} ({share:.1%}) are longer than train.sequence "
                f"({sequence}) and are cut off there: {tokens} tokens are lost; a longer sequence keeps them"
            )
        if lost.dropped:
            share = lost.dropped / counts.documents
            notes.append(
                f"{lost.dropped} of {counts.documents}{where} {what} ({share:.1%}) have no token to learn within "
                f"train.sequence ({sequence}) and are left out; a longer sequence keeps them"
            )
    return tuple(notes)


def estimate_facts(request: StoreRequest, *, vocab: int, sequence: int, packing: bool) -> DataFacts:
    """Facts of a store that is not built: from the files' sizes at BYTES_PER_TOKEN.

    A document is a shard, of files of records a record as large as the first ones. `request.tokenizer` need not exist.
    Raises DataError where the data is absent.
    """
    sizes, counts = {"data.train": 0, "data.eval": 0}, {"data.train": 0, "data.eval": 0}
    for each in open_sources(request):
        size, documents = _measure(each.source)
        split = "data.eval" if each.key == "data.eval" else "data.train"
        sizes[split] += size
        counts[split] += documents
    train_bytes, eval_bytes = sizes["data.train"], sizes["data.eval"]
    train_documents, eval_documents = counts["data.train"], counts["data.eval"]
    if request.eval_share:
        eval_bytes = round(train_bytes * request.eval_share)
        eval_documents = max(1, round(train_documents * request.eval_share))
        train_bytes, train_documents = train_bytes - eval_bytes, max(1, train_documents - eval_documents)
    how = Layout("train", sequence, packing).how(request.reading.kind)

    def windows(tokens: int, documents: int) -> int:
        return documents if how in ("single", "pair") else -(-tokens // sequence)

    tokens, eval_tokens = round(train_bytes / BYTES_PER_TOKEN), round(eval_bytes / BYTES_PER_TOKEN)
    labelled = request.reading.kind in ("labelled", "preference")  # a document is one item of the loss
    return DataFacts(
        store="",
        store_hash="",
        tokenizer=str(request.tokenizer),
        vocab=vocab,
        sequence=sequence,
        documents=train_documents,
        tokens=tokens,
        train_windows=max(1, windows(tokens, train_documents)),
        train_targets=max(1, train_documents if labelled else tokens),
        eval_documents=eval_documents,
        eval_windows=windows(eval_tokens, eval_documents),
        eval_targets=eval_documents if labelled else eval_tokens,
        eval_bytes=0 if labelled else eval_bytes,
        eval_gzip_bytes=0 if labelled else round(eval_bytes * GZIP_RATIO),
        estimated=True,
        layout=how,
    )


def _measure(source: DataSource) -> tuple[int, int]:
    """(bytes, about how many documents) of a source."""
    sizes = [source.size_bytes(shard) for shard in source.shards()]
    if not isinstance(source, RecordSource):
        return sum(sizes), len(sizes)
    first = [item for item, _ in zip(source.first_records(), range(LOOKED_AT), strict=False)]
    lengths = [len(json.dumps(item[1], default=str)) for item in first if not isinstance(item, Skip)]
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    return sum(sizes), max(len(first), round(sum(sizes) / max(mean, 1.0)))


def describe_store(store: Path, sequence: int, packing: bool) -> list[str]:
    """Lines for a person: what is in the store, what was left out and why, how fast it was built."""
    manifest = TokenStore(store).manifest
    lines: list[str] = []
    for name, counts in (("train", manifest.train), ("eval", manifest.eval)):
        held = f"{counts.documents} documents, {format_count(counts.tokens)} tokens"
        held += f" from {format_bytes(counts.bytes)}" if counts.bytes else ""  # of pairs nobody counts them
        whole = counts.tokens and manifest.kind == "text"
        ratio = f" ({counts.bytes / counts.tokens:.2f} bytes a token)" if whole else ""
        lines.append(f"{name}: {held}{ratio}")
    total = manifest.train.tokens + manifest.eval.tokens
    speed = format_count(total / max(manifest.seconds, 1e-3))
    by = f" by {manifest.library}" if manifest.library else ""
    built = f"built in {format_seconds(manifest.seconds)}{by}, {speed} tokens/s; {manifest.hash[:12]} at {store}"
    return [*lines, *store_remarks(store, sequence, packing), built]


def store_remarks(store: Path, sequence: int, packing: bool) -> list[str]:
    """Lines on what of the text is not trained on, and why; [] where all of it is."""
    opened = TokenStore(store)
    manifest = opened.manifest
    lines: list[str] = []
    for reason, count in manifest.skipped.items():
        places = ", ".join(manifest.skipped_at[reason])
        more = ", ..." if count > len(manifest.skipped_at[reason]) else ""
        lines.append(f"left out: {count} {reason} ({places}{more})")
    lines += [*manifest.notes, *_loss_notes(opened, sequence, packing)]
    return lines
