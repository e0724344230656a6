"""The data that every contender reads, made once from Python source that this machine has.

<folder>/stream.jsonl      one document: the standard library's files in a row, so its windows hold no border
<folder>/functions.jsonl   ragged documents: every function and method of the standard library, shorter ones left out
<folder>/prose.jsonl       more text, for the speed of tokenising: the installed packages' source
<folder>/tokenizer         8k byte-level BPE, trained by Headway on the functions
<folder>/windows.npy       uint16 [windows, sequence + 1] of the stream
<folder>/tokens.npy, offsets.npy   the functions' token ids, one after the other, with their end tokens
<folder>/model.json        the model, as a transformers config
<folder>/facts.json        what the report says of the data
"""

from __future__ import annotations

import ast
import json
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headway.config.schema import SourceConfig, TokenizerConfig
from headway.data.arrays import TokenStore
from headway.data.build import StoreRequest, build_store
from headway.data.tokenizer import TokenizerRequest, prepare_tokenizer

SEQUENCE = 256
VOCABULARY = 8192
STREAM_CHARACTERS = 4_000_000
TOKENISING_BYTES = 32 * 2**20
SHORTEST_CHARACTERS = 60  # about 20 tokens
LEFT_OUT = {"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"}

# About 8.4 M parameters, of which 2.1 M are the tied embedding.
MODEL = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": SEQUENCE,
    "tie_word_embeddings": True,
}


def prepare(folder: Path) -> None:
    """Make whatever is not there yet."""
    if (folder / "facts.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    files = _standard_library()
    stream = "\n".join(files)[:STREAM_CHARACTERS]
    functions = [text for file in files for text in _functions(file) if len(text) >= SHORTEST_CHARACTERS]
    _write(folder / "stream.jsonl", [stream])
    _write(folder / "functions.jsonl", functions)
    _write(folder / "prose.jsonl", _packages(TOKENISING_BYTES))
    source = SourceConfig(paths=("functions.jsonl",), kind="jsonl")
    request = TokenizerRequest(TokenizerConfig(train=VOCABULARY), folder, Path("cache"), (source,))
    prepare_tokenizer(request).rename(folder / "tokenizer")
    _windows(folder)
    lengths = _documents(folder)
    (folder / "model.json").write_text(json.dumps(MODEL))
    facts = {
        "documents": len(lengths),
        "median_tokens": float(np.median(lengths)),
        "mean_tokens": float(lengths.mean()),
        "over_sequence_share": float((lengths > SEQUENCE).mean()),
        "tokenising_bytes": (folder / "prose.jsonl").stat().st_size,
    }
    (folder / "facts.json").write_text(json.dumps(facts))


def store_request(folder: Path, name: str, cache: Path, workers: int | None = None) -> StoreRequest:
    source = SourceConfig(paths=(f"{name}.jsonl",), kind="jsonl")
    encoder = "tokenizers"  # also where tokie is installed: the race is with that library
    return StoreRequest((source,), None, folder / "tokenizer", cache, folder, workers=workers, encoder=encoder)


def _windows(folder: Path) -> None:
    store = TokenStore(build_store(store_request(folder, "stream", folder / "cache")))
    tokens = np.concatenate(store.shards)
    count = (len(tokens) - 1) // SEQUENCE
    rows = np.arange(count)[:, None] * SEQUENCE + np.arange(SEQUENCE + 1)
    np.save(folder / "windows.npy", tokens[rows])


def _documents(folder: Path) -> np.ndarray:
    """Write the functions' tokens; their lengths."""
    store = TokenStore(build_store(store_request(folder, "functions", folder / "cache")))
    np.save(folder / "tokens.npy", np.concatenate(store.shards))
    np.save(folder / "offsets.npy", store.offsets)
    return np.diff(store.offsets)


def _write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def _standard_library() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if not LEFT_OUT & set(path.relative_to(root).parts))
    return list(_texts(paths))


def _packages(size_bytes: int) -> list[str]:
    texts: list[str] = []
    for text in _texts(sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))):
        texts.append(text)
        size_bytes -= len(text)
        if size_bytes <= 0:
            break
    return texts


def _texts(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue


def _functions(text: str) -> Iterator[str]:
    """The source of each function and method, those inside of functions aside."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    lines = text.splitlines(keepends=True)
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield "".join(lines[node.lineno - 1 : node.end_lineno])
            elif isinstance(node, ast.ClassDef):
                waiting.append(node)
