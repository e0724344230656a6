"""Counts of further architectures, and known models, against what transformers builds on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headway.errors import ModelError
from headway.facts.catalogue import find_model, known_models, near_models
from headway.facts.counting import COUNTED, count_shape
from headway.facts.shape import shape_of
from headway.model.heads import head_kind
from headway.model.probe import experts_of

SIZES = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
PLAIN = {**SIZES, "intermediate_size": 80, "max_position_embeddings": 32, "num_key_value_heads": 2}
PLAIN |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
MOE = {**PLAIN, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 12}
LATENT = {
    **{key: value for key, value in MOE.items() if key not in ("num_experts", "head_dim")},
    "num_key_value_heads": 4,
    "n_routed_experts": 5,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
}
LEFT_OUT = {**SIZES, "bos_token_id": None, "eos_token_id": None}
OPT = {**SIZES, "ffn_dim": 80, "max_position_embeddings": 32}
BLOOM = {"vocab_size": 101, "hidden_size": 48, "n_layer": 3, "n_head": 4}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("phi3", PLAIN),
    ("phi3", {**PLAIN, "tie_word_embeddings": True}),
    ("gemma3_text", {**PLAIN, "head_dim": 16}),
    ("gemma3_text", {**PLAIN, "attention_bias": True, "tie_word_embeddings": True}),
    ("mpt", {"vocab_size": 101, "d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 32}),
    ("mpt", {"vocab_size": 101, "d_model": 48, "n_layers": 2, "n_heads": 4, "expansion_ratio": 3}),
    ("nemotron", PLAIN),
    ("granite", PLAIN),
    ("granite", {**PLAIN, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("olmo2", PLAIN),
    ("olmo2", {**PLAIN, "attention_bias": True, "num_key_value_heads": 4}),
    ("starcoder2", PLAIN),
    ("starcoder2", {**LEFT_OUT, "intermediate_size": 80, "use_bias": False}),
    ("opt", OPT),
    ("opt", {**OPT, "word_embed_proj_dim": 24, "do_layer_norm_before": False, "enable_bias": False}),
    ("bloom", BLOOM),
    ("bloom", {**BLOOM, "tie_word_embeddings": False}),
    ("falcon", SIZES),
    ("falcon", {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "ffn_hidden_size": 80}),
    ("falcon", {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("falcon", {**SIZES, "multi_query": False, "parallel_attn": False, "tie_word_embeddings": False}),
    ("mixtral", {**PLAIN, "num_local_experts": 5, "num_experts_per_tok": 2}),
    ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 40}),
    ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 40, "decoder_sparse_step": 2, "head_dim": 12}),
    ("qwen3_moe", MOE),
    ("qwen3_moe", {**MOE, "mlp_only_layers": [0], "attention_bias": True}),
    ("deepseek_v2", LATENT),
    ("deepseek_v2", {**LATENT, "q_lora_rank": 20, "attention_bias": True}),
    ("deepseek_v3", {**LATENT, "q_lora_rank": 20}),
    ("gpt_oss", {**PLAIN, "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 12}),
]


@pytest.mark.parametrize(("model_type", "keys"), CASES)
def test_counts_equal_the_built_model(model_type: str, keys: dict[str, Any]) -> None:
    config = {"model_type": model_type, **keys}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    counted = shape_of(config)
    assert shape_of(config, "preference") == counted  # the same head
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert counted.head == head_kind(model)
    assert counted.parameters == counted.trainable_parameters == sum(sizes.values())
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == counted.layers)
    largest = max(sum(p.numel() for p in block.parameters()) for block in blocks)
    assert counted.largest_layer_parameters == max(largest, counted.vocab * counted.hidden)
    routed = sum(n for name, n in sizes.items() if ".experts." in name)
    assert (counted.experts.parameters if counted.experts else 0) == routed
    assert experts_of(model, model.config.get_text_config()) == counted.experts  # as of an architecture without formula


def test_every_counted_architecture_has_a_case() -> None:
    assert {model_type for model_type, _ in CASES} == set(COUNTED)
    assert count_shape({"model_type": "llama"}) is None


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ModelError, match="mixtral config has no num_local_experts or num_experts"):
        shape_of({"model_type": "mixtral", **PLAIN, "num_experts_per_tok": 2})
    with pytest.raises(ModelError, match="has no qk_rope_head_dim"):
        shape_of({"model_type": "deepseek_v2", **{k: v for k, v in LATENT.items() if k != "qk_rope_head_dim"}})


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
        ("LLAMA3.1_405B", 405.85),
        ("Llama2-7B full", 6.74),
        ("Qwen3_30B_a3B", 30.53),
        ("Qwen2.5-7B-Instruct", 7.62),
        ("mistralai/Mixtral-8x7B-v0.1", 46.70),
        ("deepseek-ai/DeepSeek-V3", 671.03),
        ("google/gemma-2-9b-it", 9.24),
        ("bert-large-uncased (seq-cls)", 0.3336),
        ("Phi-3-mini-4k-instruct", 3.82),
        ("gpt2-xl", 1.558),
        ("facebook/opt-30b", 29.97),
        ("bigscience/bloom-7b1", 7.069),
        ("tiiuae/falcon-40b", 41.30),
        ("granite-3.1-8b-base", 8.171),
    ],
)
def test_known_models_by_any_spelling(name: str, billions: float) -> None:
    config = find_model(name)
    assert config is not None
    assert shape_of(config).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_the_catalogue_is_counted_without_torch() -> None:
    for name, config in known_models().items():
        assert shape_of(config).parameters > 1e7, name
    assert find_model("a model of my own") is None
    assert "llama-3.1-8b" in near_models("lama-3.1-8b")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "qwen3_moe", "vocab_size": 100},
            ("hidden_size", "num_experts_per_tok", "moe_intermediate_size"),
        ),
        ({"model_type": "llama", "vocab_size": 100}, ("hidden_size", "num_hidden_layers", "intermediate_size")),
        ({"model_type": "mpt", "d_model": 8}, ("vocab_size", "n_layers", "n_heads")),
        ({"model_type": "llama", **PLAIN, "num_hidden_layers": 0}, ("num_hidden_layers = 0", "above zero")),
        ({"model_type": "phi3", **PLAIN, "vocab_size": "101"}, ("vocab_size = '101'", "whole number")),
        ({"model_type": "llama", **PLAIN, "hidden_size": -48}, ("hidden_size = -48",)),
        ({"model_type": "llama", **PLAIN, "num_key_value_heads": 3}, ("= 3", "4 is not a multiple of 3")),
        ({"model_type": "phi3", **PLAIN, "num_attention_heads": 5}, ("= 5", "48 is not a multiple of 5", "head_dim")),
    ],
)
def test_every_field_that_is_missing_or_no_size_is_named(config: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        shape_of(config)
    for part in said:
        assert part in str(caught.value)
