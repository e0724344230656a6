"""How each transformers architecture names what a run file says in short words, and the defaults that it fills in.

One row an architecture. `defaults` are transformers' own where a config.json leaves the key out (they differ between
architectures: a qwen2 file without num_key_value_heads means 32, a llama file means as many as heads).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

_ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


@dataclass(frozen=True)
class Arch:
    """One architecture: class name, key names, shape of its blocks.

    norm: rms or layer. gated: the MLP has gate, up and down (else up and down). rotary: no limit is built into the
    weights. kv: takes fewer key and value heads than heads. tied: ties input and output embeddings unless told not to.
    """

    causal_lm: str
    norm: Literal["rms", "layer"]
    gated: bool
    rotary: bool = True
    kv: bool = True
    tied: bool = False
    head_dim_key: bool = True
    head_dim_free: bool = False  # heads need not divide hidden when head_dim is given
    dropout: tuple[str, ...] = ("attention_dropout",)
    names: dict[str, str] = field(default_factory=dict[str, str])  # short word -> this architecture's key
    scratch: dict[str, Any] = field(default_factory=dict[str, Any])  # written into configs made from scratch
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])  # read where a config.json has no such key

    def key(self, word: str) -> str:
        return self.names.get(word, KEYS[word])


# What most architectures call the run file's words.
KEYS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "max_sequence": "max_position_embeddings",
    "tie_embeddings": "tie_word_embeddings",
    "head_dim": "head_dim",
}

_RMS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_parameters": _ROPE}
_GPT2_NAMES = {
    "hidden": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "ffn": "n_inner",
    "max_sequence": "n_positions",
}
_BERT_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")

ARCHITECTURES: dict[str, Arch] = {
    "llama": Arch("LlamaForCausalLM", "rms", gated=True, scratch={**_RMS, "attention_bias": False, "mlp_bias": False}),
    # transformers' default window of 4096 would silently cut attention in longer sequences
    "mistral": Arch(
        "MistralForCausalLM",
        "rms",
        gated=True,
        head_dim_free=True,
        scratch={**_RMS, "sliding_window": None},
        defaults={"num_key_value_heads": 8},
    ),
    "qwen2": Arch(
        "Qwen2ForCausalLM",
        "rms",
        gated=True,
        head_dim_key=False,
        scratch={**_RMS, "use_sliding_window": False},
        defaults={"num_key_value_heads": 32},
    ),
    "qwen3": Arch(
        "Qwen3ForCausalLM",
        "rms",
        gated=True,
        head_dim_free=True,
        scratch={**_RMS, "use_sliding_window": False, "attention_bias": False},
        defaults={"num_key_value_heads": 32, "head_dim": 128},
    ),
    "gemma": Arch(
        "GemmaForCausalLM",
        "rms",
        gated=True,
        tied=True,
        head_dim_free=True,
        scratch={**_RMS, "hidden_act": "gelu_pytorch_tanh", "attention_bias": False},
        defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True},
    ),
    "gemma2": Arch(
        "Gemma2ForCausalLM",
        "rms",
        gated=True,
        tied=True,
        scratch={
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "rope_parameters": _ROPE,
            "attention_bias": False,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        defaults={"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True},
    ),
    "gpt2": Arch(
        "GPT2LMHeadModel",
        "layer",
        gated=False,
        rotary=False,
        kv=False,
        tied=True,
        head_dim_key=False,
        dropout=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        names=_GPT2_NAMES,
        scratch={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
        defaults={"tie_word_embeddings": True, "attn_pdrop": 0.1, "resid_pdrop": 0.1},
    ),
    "gpt_neox": Arch(
        "GPTNeoXForCausalLM",
        "layer",
        gated=False,
        kv=False,
        head_dim_key=False,
        dropout=("attention_dropout", "hidden_dropout"),
        scratch={
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": True,
            "attention_bias": True,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25},
        },
        defaults={"attention_bias": True},
    ),
    "phi": Arch(
        "PhiForCausalLM",
        "layer",
        gated=False,
        head_dim_key=False,
        dropout=("resid_pdrop", "embd_pdrop", "attention_dropout"),
        scratch={
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            "qk_layernorm": False,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
        },
    ),
    "bert": Arch(
        "BertForMaskedLM",
        "layer",
        gated=False,
        rotary=False,
        kv=False,
        tied=True,
        head_dim_key=False,
        dropout=_BERT_DROPOUT,
        scratch={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2},
        defaults={
            "tie_word_embeddings": True,
            "type_vocab_size": 2,
            "max_position_embeddings": 512,
            "attention_probs_dropout_prob": 0.1,
            "hidden_dropout_prob": 0.1,
        },
    ),
}

# Counted architectures whose head is no plain output layer: `headway.model.heads` reads it off the built model.
HEADS: dict[str, Literal["pieces", "capped", "whole"]] = {
    "bert": "pieces",
    "gemma2": "capped",
    "granite": "pieces",
    "opt": "whole",
}
SCRATCH = tuple(name for name in ARCHITECTURES if name != "bert")  # what task causal_lm can train from scratch
