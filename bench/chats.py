"""The LoRA job of the benchmark: a pretrained model of 135 M parameters and chats made from WordNet.

<folder>/models/SmolLM2-135M-Instruct   examples/pretrained.py
<folder>/wordnet/chats.jsonl            examples/wordnet.py
<folder>/chat-tokens.npy, chat-learnt.npy, chat-offsets.npy   Headway's own token ids and which of them are learnt,
                                        which the peers read too: the same data to the token
<folder>/chats.json                     what the report says of the data
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from headway.config.schema import SourceConfig
from headway.data.arrays import TokenStore
from headway.data.build import StoreRequest, build_store
from headway.data.reading import Reading

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import pretrained  # noqa: E402
import wordnet  # noqa: E402

SEQUENCE = 256
WINDOWS = 2  # of one process and step, packed
# Padded rows hold one chat each: so many are about as many tokens as the windows, and as a user would fill memory.
ROWS = 8
RANK, ALPHA = 16, 32
LR = 5e-4
NEEDS = ("peft", "gguf", pretrained.PACKAGES[pretrained.SMOLLM2])


def model_folder(folder: Path) -> Path:
    return folder / "models" / pretrained.SMOLLM2


def why_not() -> str:
    """What keeps the data from being made here; "" where nothing does."""
    return "" if (wordnet.WORDNET / "data.noun").is_file() else "needs WordNet: apt-get install wordnet-base"


def prepare(folder: Path) -> None:
    """Make whatever is not there yet."""
    if (folder / "chats.json").is_file():
        return
    pretrained.lay_out(pretrained.SMOLLM2, folder / "models")
    wordnet.write(wordnet.WORDNET, folder / "wordnet")
    source = SourceConfig(paths=("wordnet/chats.jsonl",))
    tokenizer = model_folder(folder)
    store = TokenStore(
        build_store(StoreRequest((source,), None, tokenizer, folder / "cache", folder, reading=Reading("instruction")))
    )
    numbers = range(store.manifest.train.documents)
    np.save(folder / "chat-tokens.npy", np.concatenate([store.document(n) for n in numbers]))
    np.save(folder / "chat-learnt.npy", np.concatenate([store.learnt(n) for n in numbers]))
    np.save(folder / "chat-offsets.npy", store.offsets)
    lengths = np.diff(store.offsets)
    facts = {
        "chats": len(lengths),
        "mean_tokens": float(lengths.mean()),
        "learnt_share": float(np.load(folder / "chat-learnt.npy").mean()),
    }
    (folder / "chats.json").write_text(json.dumps(facts))
