"""What the plan must know of the data: exact from a token store, or estimated from the size of the files."""

from __future__ import annotations

from pathlib import Path

from headway.data.arrays import TokenStore
from headway.data.build import StoreRequest, open_sources
from headway.data.packing import Layout, open_index, truncated
from headway.facts.schema import DataFacts
from headway.units import format_bytes, format_count, format_seconds

# English and code under a vocabulary of 8k to 50k entries lie between 3.2 and 4.6.
BYTES_PER_TOKEN = 4.0
# Of text, by `gzip -9`.
GZIP_RATIO = 0.35


def data_facts(store: Path, sequence: int, packing: bool) -> DataFacts:
    """Exact facts. `documents` and `tokens` are those of the training split; makes the window indexes where absent."""
    opened = TokenStore(store)
    manifest = opened.manifest
    train = open_index(opened, Layout("train", sequence, packing))
    held_out = open_index(opened, Layout("eval", sequence, packing))
    whole = held_out.targets == manifest.eval.tokens - manifest.eval.documents
    return DataFacts(
        store=str(store),
        store_hash=manifest.hash,
        tokenizer=manifest.tokenizer.path,
        vocab=manifest.tokenizer.vocab,
        sequence=sequence,
        documents=manifest.train.documents,
        tokens=manifest.train.tokens,
        train_windows=len(train.windows) - 1,
        train_targets=train.targets,
        eval_documents=manifest.eval.documents,
        eval_windows=len(held_out.windows) - 1,
        eval_targets=held_out.targets,
        eval_bytes=manifest.eval.bytes if whole else 0,
        eval_gzip_bytes=manifest.eval_gzip_bytes if whole else 0,
    )


def estimate_facts(request: StoreRequest, *, vocab: int, sequence: int, packing: bool) -> DataFacts:
    """Facts of a store that is not built: from the files' sizes at BYTES_PER_TOKEN, one document a shard.

    `request.tokenizer` need not exist. Raises DataError where the data is absent.
    """
    sizes: dict[str, list[int]] = {"data.train": [], "data.eval": []}
    for key, _, source in open_sources(request):
        sizes[key] += [source.size_bytes(shard) for shard in source.shards()]
    train_bytes, eval_bytes = sum(sizes["data.train"]), sum(sizes["data.eval"])
    train_documents, eval_documents = len(sizes["data.train"]), len(sizes["data.eval"])
    if request.eval_share:
        eval_bytes = round(train_bytes * request.eval_share)
        eval_documents = max(1, round(train_documents * request.eval_share))
        train_bytes, train_documents = train_bytes - eval_bytes, max(1, train_documents - eval_documents)

    def windows(tokens: int, documents: int) -> int:
        return -(-tokens // sequence) if packing else documents

    tokens, eval_tokens = round(train_bytes / BYTES_PER_TOKEN), round(eval_bytes / BYTES_PER_TOKEN)
    return DataFacts(
        store="",
        store_hash="",
        tokenizer=str(request.tokenizer),
        vocab=vocab,
        sequence=sequence,
        documents=train_documents,
        tokens=tokens,
        train_windows=max(1, windows(tokens, train_documents)),
        train_targets=max(1, tokens),
        eval_documents=eval_documents,
        eval_windows=windows(eval_tokens, eval_documents),
        eval_targets=eval_tokens,
        eval_bytes=eval_bytes,
        eval_gzip_bytes=round(eval_bytes * GZIP_RATIO),
        estimated=True,
    )


def describe_store(store: Path, sequence: int, packing: bool) -> list[str]:
    """Lines for a person: what is in the store, what was left out and why, how fast it was built."""
    manifest = TokenStore(store).manifest
    lines: list[str] = []
    for name, counts in (("train", manifest.train), ("eval", manifest.eval)):
        held = f"{counts.documents} documents, {format_count(counts.tokens)} tokens from {format_bytes(counts.bytes)}"
        ratio = f" ({counts.bytes / counts.tokens:.2f} bytes a token)" if counts.tokens else ""
        lines.append(f"{name}: {held}{ratio}")
    total = manifest.train.tokens + manifest.eval.tokens
    speed = format_count(total / max(manifest.seconds, 1e-3))
    built = f"built in {format_seconds(manifest.seconds)}, {speed} tokens/s; {manifest.hash[:12]} at {store}"
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
    lines += manifest.notes
    documents, tokens = truncated(opened, Layout("train", sequence, packing))
    if documents:
        lines.append(f"cut off at {sequence} tokens: {documents} documents, {format_count(tokens)} tokens lost")
    return lines
