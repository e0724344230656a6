"""What the recipes read, in small: model folders with the true configs, and files of WordNet's shape."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fakes.chats import PLAIN, chat_tokenizer, turn, write_jsonl
from fakes.corpora import encoder_tokenizer, prose

ROOT = Path(__file__).parents[2]
# As examples/pretrained.py lays them out; what planning reads of config.json.
CONFIGS: dict[str, dict[str, Any]] = {
    "SmolLM2-135M-Instruct": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
    },
    "MiniLM-L6": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "vocab_size": 30522,
    },
}
LABELS = ("noun.animal", "noun.plant", "verb.motion")


def lay_out(base: Path) -> Path:
    """recipes/ and examples/ as they are, with models/ (no weights worth the name) and data/ beside them."""
    shutil.copytree(ROOT / "recipes", base / "recipes")
    shutil.copytree(ROOT / "examples", base / "examples")
    for name, config in CONFIGS.items():
        folder = base / "models" / name
        if config["model_type"] == "llama":
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(chat_tokenizer(base, PLAIN, f"{name}-tokenizer"), folder)
        else:
            folder.mkdir(parents=True)
            encoder_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps(config))
        save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")  # an adapter's plan names their hash
    (base / "data").mkdir()
    for part in ("", "-eval"):
        glosses = [{"text": prose(n, 9), "label": LABELS[n % 3]} for n in range(40)]
        write_jsonl(base / "data" / f"glosses{part}.jsonl", glosses)
        chats = [{"messages": [turn("user", prose(n, 5)), turn("assistant", prose(n, 9))]} for n in range(40)]
        write_jsonl(base / "data" / f"chats{part}.jsonl", chats)
    return base
