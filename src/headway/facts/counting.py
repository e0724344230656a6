"""Exact counts of architectures that no short words of a run file make: phi3, gemma3, opt, bloom, falcon, experts.

Read from the config alone; `tests/unit/test_facts_counting.py` holds them to transformers' models on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headway.facts.architectures import HEADS
from headway.facts.dimensions import Dimensions
from headway.facts.needed import require_heads, require_sizes
from headway.facts.schema import ExpertShape, ModelShape

Config = dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Parameters of the layers: a dense one, one with experts, and the routed experts of one layer."""

    dense: int
    sparse: int = 0
    routed: int = 0
    experts: ExpertShape | None = None


def count_shape(config: Config) -> ModelShape | None:
    """The shape by formula; None for an architecture that has none here.

    Raises:
        ModelError: a needed field is missing or no size; all of them are named.
    """
    counter = _COUNTERS.get(str(config.get("model_type")))
    if counter is None:
        return None
    require_sizes(config, _NEEDED.get(str(config["model_type"]), _SIZES))
    return counter(config)


def _read(
    config: Config, *, tied: bool = False, kv_heads: int | None = None, head_dim: int | None = None
) -> Dimensions:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    groups = int(config.get("num_key_value_heads") or kv_heads or heads)
    width = config.get("head_dim") or head_dim
    require_heads(hidden, heads, groups, free=bool(width) or "v_head_dim" in config)
    return Dimensions(
        vocab=int(config["vocab_size"]),
        hidden=hidden,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=groups,
        head_dim=int(width or hidden // heads),
        ffn=int(config["intermediate_size"]),
        positions=int(config.get("max_position_embeddings") or 0),
        tied=bool(config.get("tie_word_embeddings", tied)),
    )


def _shape(config: Config, size: Dimensions, block: Block, final_norm: int) -> ModelShape:
    moe = block.experts
    sparse_layers = moe.layers if moe else 0
    table = size.vocab * size.hidden
    ends = table * (1 if size.tied else 2)
    total = ends + (size.layers - sparse_layers) * block.dense + sparse_layers * block.sparse + final_norm
    return ModelShape(
        arch=str(config["model_type"]),
        parameters=total,
        trainable_parameters=total,
        embedding_parameters=ends,
        hidden=size.hidden,
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        ffn=size.ffn,
        vocab=size.vocab,
        max_sequence=size.positions,
        tied=size.tied,
        largest_layer_parameters=max(block.sparse, block.dense if sparse_layers < size.layers else 0, table),
        estimated=True,
        gated=config["model_type"] not in _PLAIN,
        layer_norm=config["model_type"] in _PLAIN,
        experts=moe,
        head=HEADS.get(str(config["model_type"]), "linear"),
    )


def _phi3(config: Config) -> ModelShape:
    size = _read(config)
    block = size.attention + 3 * size.hidden * size.ffn + 2 * size.hidden
    return _shape(config, size, Block(block), size.hidden)


def _gemma3(config: Config) -> ModelShape:
    size = _read(config, tied=True, kv_heads=4, head_dim=256)
    bias = size.bias + size.hidden if config.get("attention_bias") else 0
    block = size.attention + bias + 2 * size.head_dim + 3 * size.hidden * size.ffn + 4 * size.hidden
    return _shape(config, size, Block(block), size.hidden)


def _mpt(config: Config) -> ModelShape:
    """Norms without a bias, no learned positions (ALiBi); transformers takes four times hidden, whatever the ratio."""
    hidden, heads = int(config["d_model"]), int(config["n_heads"])
    ffn = 4 * hidden
    size = Dimensions(
        vocab=int(config["vocab_size"]),
        hidden=hidden,
        layers=int(config["n_layers"]),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        positions=int(config.get("max_seq_len") or 0),
        tied=bool(config.get("tie_word_embeddings", True)),
    )
    return _shape(config, size, Block(size.attention + 2 * hidden * ffn + 2 * hidden), hidden)


def _nemotron(config: Config) -> ModelShape:
    """Squared ReLU without a gate; norms with a bias; no other biases."""
    size = _read(config)
    block = size.attention + 2 * size.hidden * size.ffn + 4 * size.hidden
    return _shape(config, size, Block(block), 2 * size.hidden)


def _granite(config: Config) -> ModelShape:
    size = _read(config)
    biases = size.bias + size.hidden if config.get("attention_bias") else 0
    biases += 2 * size.ffn + size.hidden if config.get("mlp_bias") else 0
    block = size.attention + 3 * size.hidden * size.ffn + biases + 2 * size.hidden
    return _shape(config, size, Block(block), size.hidden)


def _olmo2(config: Config) -> ModelShape:
    """Norms of all query and of all key heads together, and two behind attention and MLP."""
    size = _read(config)
    biases = size.bias + size.hidden if config.get("attention_bias") else 0
    norms = size.query + size.key_value + 2 * size.hidden
    block = size.attention + 3 * size.hidden * size.ffn + biases + norms
    return _shape(config, size, Block(block), size.hidden)


def _starcoder2(config: Config) -> ModelShape:
    size = _read(config, tied=True, kv_heads=2)
    biases = size.bias + size.ffn + 2 * size.hidden if config.get("use_bias", True) else 0
    block = size.attention + 2 * size.hidden * size.ffn + biases + 4 * size.hidden
    return _shape(config, size, Block(block), 2 * size.hidden)


def _heads_alike(config: Config, layers: str, heads: str, ffn: int, *, positions: str = "") -> Dimensions:
    """Of an architecture with one key head a head, and keys of its own."""
    hidden, count = int(config["hidden_size"]), int(config[heads])
    require_heads(hidden, count, count, free=False)
    return Dimensions(
        vocab=int(config["vocab_size"]),
        hidden=hidden,
        layers=int(config[layers]),
        heads=count,
        kv_heads=count,
        head_dim=hidden // count,
        ffn=ffn,
        positions=int(config.get(positions) or 0),
        tied=bool(config.get("tie_word_embeddings", True)),
    )


def _opt(config: Config) -> ModelShape:
    """Learned positions, two rows more than it names; a narrower embedding has a matrix on either side."""
    ffn = int(config["ffn_dim"])
    size = _heads_alike(config, "num_hidden_layers", "num_attention_heads", ffn, positions="max_position_embeddings")
    hidden, width = size.hidden, int(config.get("word_embed_proj_dim") or size.hidden)
    biases = size.bias + ffn + 2 * hidden if config.get("enable_bias", True) else 0
    norm = 2 * hidden if config.get("layer_norm_elementwise_affine", True) else 0
    block = size.attention + 2 * hidden * ffn + biases + 2 * norm
    last = norm if config.get("do_layer_norm_before", True) and not config.get("_remove_final_layer_norm") else 0
    table = size.vocab * width * (1 if size.tied else 2)
    beside = (size.positions + 2) * hidden + (2 * width * hidden if width != hidden else 0)
    shape = _shape(config, size, Block(block), last)
    total = shape.parameters - shape.embedding_parameters + table + beside
    counts = {"parameters": total, "trainable_parameters": total, "embedding_parameters": table}
    return shape.model_copy(update={**counts, "largest_layer_parameters": max(block, size.vocab * width)})


def _bloom(config: Config) -> ModelShape:
    """A norm behind the embedding; no positions (ALiBi)."""
    size = _heads_alike(config, "n_layer", "n_head", 4 * int(config["hidden_size"]))
    hidden = size.hidden
    block = size.attention + size.bias + 2 * hidden * size.ffn + size.ffn + 6 * hidden
    return _shape(config, size, Block(block), 4 * hidden)


def _falcon(config: Config) -> ModelShape:
    """One key head for all, or several (the newer form), or one a head; attention and MLP in parallel."""
    ffn = int(config.get("ffn_hidden_size") or 4 * int(config["hidden_size"]))
    size = _heads_alike(config, "num_hidden_layers", "num_attention_heads", ffn, positions="max_position_embeddings")
    newer, hidden = bool(config.get("new_decoder_architecture")), size.hidden
    groups = int(config.get("num_kv_heads") or size.heads) if newer else 1
    size = replace(size, kv_heads=groups if newer or config.get("multi_query", True) else size.heads)
    norms = int(config.get("num_ln_in_parallel_attn") or 2) if newer else 2 - bool(config.get("parallel_attn", True))
    biases = size.bias + size.ffn + 2 * hidden if config.get("bias") else 0
    block = size.attention + 2 * hidden * size.ffn + biases + 2 * norms * hidden
    return _shape(config, size, Block(block), 2 * hidden)


def _moe(config: Config, size: Dimensions, ffn: int, layers: int) -> ExpertShape:
    count = next(int(config[name]) for name in _EXPERTS if config.get(name))
    return ExpertShape(
        count=count,
        per_token=int(config["num_experts_per_tok"]),
        ffn=ffn,
        layers=layers,
        parameters=count * 3 * size.hidden * ffn * layers,
    )


def _mixtral(config: Config) -> ModelShape:
    size = _read(config, kv_heads=8)
    moe = _moe(config, size, size.ffn, size.layers)
    routed = moe.parameters // moe.layers
    sparse = size.attention + routed + moe.count * size.hidden + 2 * size.hidden
    return _shape(config, size, Block(0, sparse, routed, moe), size.hidden)


def _sparse_layers(config: Config, layers: int) -> int:
    """Qwen: every `decoder_sparse_step`-th layer has experts, but for those named as dense."""
    step = int(config.get("decoder_sparse_step") or 1)
    dense: set[int] = set(config.get("mlp_only_layers") or ())
    return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _qwen_moe(config: Config) -> ModelShape:
    second = config["model_type"] == "qwen2_moe"
    size = _read(config, kv_heads=16 if second else 4)
    moe = _moe(config, size, int(config["moe_intermediate_size"]), _sparse_layers(config, size.layers))
    routed = moe.parameters // max(moe.layers, 1)
    shared = int(config["shared_expert_intermediate_size"]) if second else 0
    extra = 3 * size.hidden * shared + size.hidden if second else 0  # the shared expert and its gate
    biased = config.get("qkv_bias", True) if second else False
    attention = size.attention + (size.bias if biased else 0) + 2 * size.hidden
    if not second:
        attention += 2 * size.head_dim + (size.bias + size.hidden if config.get("attention_bias") else 0)
    moe = moe.model_copy(update={"shared_ffn": shared})
    block = Block(
        dense=attention + 3 * size.hidden * size.ffn,
        sparse=attention + routed + moe.count * size.hidden + extra,
        routed=routed,
        experts=moe,
    )
    return _shape(config, size, block, size.hidden)


def _deepseek(config: Config) -> ModelShape:
    """Latent attention: queries and keys and values through narrow matrices with a norm in between."""
    size = _read(config)
    hidden, heads = size.hidden, size.heads
    rope, plain, value = (int(config[k]) for k in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    narrow, latent = config.get("q_lora_rank"), int(config["kv_lora_rank"])
    wide = heads * (rope + plain)
    query = int(narrow) * (hidden + 1 + wide) if narrow else hidden * wide
    key = hidden * (latent + rope) + latent + latent * heads * (plain + value)
    attention = query + key + heads * value * hidden + 2 * hidden
    if config.get("attention_bias"):
        attention += (int(narrow) if narrow else 0) + latent + rope + hidden
    dense_layers = min(int(config.get("first_k_dense_replace") or 0), size.layers)
    moe = _moe(config, size, int(config["moe_intermediate_size"]), size.layers - dense_layers)
    shared = int(config.get("n_shared_experts") or 0) * moe.ffn
    routed = moe.parameters // max(moe.layers, 1)
    moe = moe.model_copy(update={"shared_ffn": shared})
    block = Block(
        dense=attention + 3 * hidden * size.ffn,
        sparse=attention + routed + moe.count * hidden + 3 * hidden * shared,
        routed=routed,
        experts=moe,
    )
    shape = _shape(config, size, block, hidden)
    return shape.model_copy(update={"head_dim": rope + plain, "kv_heads": heads})


def _gpt_oss(config: Config) -> ModelShape:
    """Biases everywhere; each head has a sink; experts have biases of their own."""
    size = _read(config, kv_heads=8, head_dim=64)
    moe = _moe(config, size, size.ffn, size.layers)
    routed = moe.parameters // moe.layers + moe.count * (2 * size.ffn + size.hidden)
    moe = moe.model_copy(update={"parameters": routed * moe.layers})
    attention = size.attention + size.bias + size.hidden + size.heads
    sparse = attention + routed + moe.count * (size.hidden + 1) + 2 * size.hidden
    return _shape(config, size, Block(0, sparse, routed, moe), size.hidden)


_PLAIN = ("mpt", "nemotron", "starcoder2", "opt", "bloom", "falcon")  # two matrices an MLP, norms with a mean
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_SPARSE = (*_SIZES, _EXPERTS, "num_experts_per_tok")
_LATENT = ("moe_intermediate_size", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank")
# Sizes without which an architecture cannot be counted; of several names one is enough.
_NEEDED: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "opt": (*_SIZES[:-1], "ffn_dim", "max_position_embeddings"),
    "bloom": ("vocab_size", "hidden_size", "n_layer", "n_head"),
    "falcon": _SIZES[:-1],
    "mpt": ("vocab_size", "d_model", "n_layers", "n_heads"),
    "mixtral": _SPARSE,
    "gpt_oss": _SPARSE,
    "qwen2_moe": (*_SPARSE, "moe_intermediate_size", "shared_expert_intermediate_size"),
    "qwen3_moe": (*_SPARSE, "moe_intermediate_size"),
    "deepseek_v2": (*_SPARSE, *_LATENT),
    "deepseek_v3": (*_SPARSE, *_LATENT),
}
_COUNTERS: dict[str, Callable[[Config], ModelShape]] = {
    "phi3": _phi3,
    "gemma3_text": _gemma3,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "granite": _granite,
    "olmo2": _olmo2,
    "starcoder2": _starcoder2,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
}
COUNTED = tuple(_COUNTERS)
