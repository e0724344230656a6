"""Parameter counts by formula against the models that transformers builds on the meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from headway.config.schema import ModelArch
from headway.errors import ModelError
from headway.facts import probing
from headway.facts.architectures import ARCHITECTURES, SCRATCH
from headway.facts.model_config import scratch_config
from headway.facts.shape import shape_of
from headway.model.heads import head_kind

NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
PLAIN = {**SIZES, "intermediate_size": 80, "max_position_embeddings": 32, **NO_IDS}
GPT2 = {"vocab_size": 101, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 32, **NO_IDS}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", PLAIN),
    ("llama", {**PLAIN, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("llama", {**PLAIN, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    ("llama", {**PLAIN, "head_dim": 20, "attention_bias": True}),
    ("mistral", {**PLAIN, "num_key_value_heads": 2}),
    ("mistral", {**PLAIN, "num_key_value_heads": 4, "tie_word_embeddings": True, "head_dim": 16}),
    ("mistral", {k: v for k, v in PLAIN.items() if k != "num_attention_heads"} | {"num_attention_heads": 8}),
    ("qwen2", {**PLAIN, "num_key_value_heads": 2}),
    ("qwen2", {**PLAIN, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    ("qwen2", {**PLAIN, "num_attention_heads": 32, "hidden_size": 64}),  # key and value heads left to the default
    ("qwen3", {**PLAIN, "num_key_value_heads": 2}),  # head_dim left to the default, 128
    ("qwen3", {**PLAIN, "num_key_value_heads": 2, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ("gemma", {**PLAIN, "num_key_value_heads": 1}),
    (
        "gemma",
        {**PLAIN, "num_key_value_heads": 2, "head_dim": 12, "attention_bias": True, "tie_word_embeddings": False},
    ),
    ("gemma2", {**PLAIN, "num_key_value_heads": 2}),
    ("gemma2", {**PLAIN, "num_key_value_heads": 4, "head_dim": 12, "tie_word_embeddings": False}),
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, "n_inner": 100}),
    ("gpt2", {**GPT2, "tie_word_embeddings": False}),
    ("gpt_neox", PLAIN),
    ("gpt_neox", {**PLAIN, "attention_bias": False, "tie_word_embeddings": True}),
    ("phi", PLAIN),
    ("phi", {**PLAIN, "qk_layernorm": True, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("bert", PLAIN),
    ("bert", {**PLAIN, "type_vocab_size": 5, "tie_word_embeddings": False}),
]


def on_meta(config: dict[str, Any]) -> Any:
    kind = AutoModelForMaskedLM if config["model_type"] == "bert" else AutoModelForCausalLM
    built = AutoConfig.for_model(**config)
    with torch.device("meta"):
        return kind.from_config(built)


def size(*modules: torch.nn.Module) -> int:
    return sum({id(p): p.numel() for module in modules for p in module.parameters()}.values())


@pytest.mark.parametrize(("model_type", "keys"), CASES)
def test_counts_equal_the_built_model(model_type: str, keys: dict[str, Any]) -> None:
    config = {"model_type": model_type, **keys}
    model = on_meta(config)
    counted = shape_of(config)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == counted.layers)
    assert counted.parameters == counted.trainable_parameters == size(model)
    assert counted.embedding_parameters == size(embedding, head)
    assert counted.largest_layer_parameters == max(size(blocks[0]), size(embedding))
    assert counted.tied == (embedding.weight is head.weight)
    assert counted.head == head_kind(model)


@pytest.mark.parametrize("arch", SCRATCH)
def test_configs_from_scratch_are_whole(arch: str) -> None:
    """What is written in short words is what transformers builds, and the formulas agree."""
    words = ModelArch(arch=arch, hidden=64, layers=2, heads=4, dropout=0.1)
    config = scratch_config(words, vocab=96, sequence=24)
    model = on_meta(config)
    counted = shape_of(config)
    assert type(model).__name__ == ARCHITECTURES[arch].causal_lm == config["architectures"][0]
    assert counted.parameters == size(model)
    assert (counted.vocab, counted.hidden, counted.layers, counted.heads) == (96, 64, 2, 4)
    assert (counted.kv_heads, counted.head_dim, counted.max_sequence) == (4, 16, 24)
    assert model.config.max_position_embeddings == 24
    assert model.config.pad_token_id is None
    for key in ARCHITECTURES[arch].dropout:
        assert getattr(model.config, key) == 0.1


def test_every_key_of_a_config_from_scratch_is_one_that_transformers_knows() -> None:
    for arch in SCRATCH:
        config = scratch_config(ModelArch(arch=arch, hidden=64, layers=2, heads=4), vocab=96, sequence=24)
        known = AutoConfig.for_model(arch).to_dict().keys() | {"model_type", "architectures", "use_sliding_window"}
        assert config.keys() - known == set(), arch


def test_missing_fields_are_all_named() -> None:
    with pytest.raises(ModelError) as caught:
        shape_of({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4})
    for name in ("vocab_size", "num_hidden_layers", "intermediate_size"):
        assert name in str(caught.value)


def test_an_unknown_architecture_is_probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shape = shape_of({"model_type": "llama", **PLAIN}).model_copy(update={"arch": "mamba"})
    config = {"model_type": "mamba", "state_size": 16}
    script = tmp_path / "probe.py"
    script.write_text(
        "import json, sys\n"
        f"assert json.load(open(sys.argv[3])) == {config!r}\n"
        "print('a line of chatter')\n"
        f"print({json.dumps(shape.model_dump(mode='json'))!r})\n"
    )
    stub = tmp_path / "python"
    stub.write_text(f'#!/bin/sh\nexec {probing.sys.executable!r} "{script}" "$@"\n')
    stub.chmod(0o755)
    monkeypatch.setattr(probing.sys, "executable", str(stub))
    monkeypatch.setattr(probing, "CACHE", tmp_path / "kept")
    assert shape_of(config) == shape
    script.write_text("import sys; sys.exit('KeyError: no such architecture')\n")
    with pytest.raises(ModelError, match=r"mamba.*no such architecture"):
        shape_of({**config, "state_size": 32})
    assert shape_of(config) == shape  # kept
