"""Small transformers models, plans and packed windows for the tests of models, tasks and exports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.data.seam import IGNORE, Sample
from headway.model.huggingface import HuggingFaceSource
from headway.plan.schema import Plan

VOCAB = 101
SEQUENCE = 32
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCAB}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "intermediate_size": 48}
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

# Norms of several kinds, tied and untied heads, learned and rotary positions, a window, caps, scales, experts.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_GROUPED, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCAB, "n_positions": SEQUENCE, **_NO_DROPOUT},
    "gpt_neox": {**_SIZES, "intermediate_size": 48},
    "qwen2": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": 5},
    "gemma2": {**_GROUPED, "head_dim": 8, "sliding_window": 8},
    "granite": {**_GROUPED, "logits_scaling": 3.0},
    "mixtral": {**_GROUPED, "num_local_experts": 4},
}
_OTHERS: dict[str, dict[str, Any]] = {
    "opt": {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": SEQUENCE, "dropout": 0.0},
    **dict.fromkeys(("gemma3_text", "olmo2", "phi3"), _GROUPED),
}
DECODERS = ("llama", "gpt2", "qwen2", "gpt_neox", "mistral")


def config_of(arch: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": arch, **_NO_TOKENS, **(CONFIGS | _OTHERS)[arch], **changes}


@cache
def _plan() -> Plan:
    overrides = ("train.sequence=32", "strategy=single", "launch.processes=1", "train.precision=fp32")
    return plan_of(SMALL, LAPTOP, *overrides)


def plan_for(arch: str, *, config: dict[str, Any] | None = None, path: str | None = None, **changes: Any) -> Plan:
    """A plan for one of CONFIGS. changes: section -> {field: value}; the tokenizer is left out."""
    plan = _plan()
    wanted: dict[str, dict[str, Any]] = {
        "model": {
            "kind": "pretrained" if path else "config",
            "path": path,
            "config": config or config_of(arch),
            "attention": "eager" if arch == "gemma2" else "sdpa",
        },
        "data": {"tokenizer": ""},
        "shape": {"vocab": VOCAB, "arch": arch},
        "export": {"dtype": "fp32"},
    }
    for section, values in changes.items():
        wanted[section] = {**wanted.get(section, {}), **values}
    return plan.model_copy(update={k: getattr(plan, k).model_copy(update=v) for k, v in wanted.items()})


def filled(source: HuggingFaceSource, *, backwards: bool = False) -> PreTrainedModel:
    """A model on the host with the source's weights, in evaluation mode."""
    model: Any = source.build()
    parts = list(model.named_modules())
    for name, part in reversed(parts) if backwards else parts:
        source.fill(name, part)
    return model.eval()


def model_for(arch: str, **changes: Any) -> PreTrainedModel:
    return filled(HuggingFaceSource(plan_for(arch, **changes)))


def window(lengths: Sequence[int], seed: int = 0) -> Sample:
    """A packed window of documents with these lengths; the last token of each has no target."""
    generator = np.random.default_rng(seed)
    parts = [generator.integers(0, VOCAB, length + 1) for length in lengths]
    labels = [np.append(part[1:-1], IGNORE) for part in parts]
    columns = (
        [part[:-1] for part in parts],
        labels,
        [np.arange(length) for length in lengths],
        [np.full(length, number) for number, length in enumerate(lengths)],
    )
    joined = [np.concatenate([np.empty(0), *column]).astype(np.int32) for column in columns]
    return Sample(0, *joined)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients by name, taken away from the model."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Over all tensors, relative to the largest value of each; inf where the names differ.

    A tensor that is nothing but rounding beside the others (the gradient of an attention's key bias) is measured by a
    millionth of the largest of them.
    """
    if one.keys() != other.keys() or not one:
        return float("inf")
    floor = max(1e-8, 1e-6 * max(float(tensor.abs().max()) for tensor in one.values()))
    return max(float((one[k] - other[k]).abs().max() / one[k].abs().max().clamp_min(floor)) for k in one)
