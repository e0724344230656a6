"""What an adapter adds to a model's shape, counted from the config alone where the architecture is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headway.errors import ModelError, Problem
from headway.facts.schema import AdapterShape, ModelShape
from headway.facts.shape import probe_adapter

ALL_LINEAR = "all-linear"
# Architectures whose blocks hold these seven linear layers and no other.
_GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "olmo2")

_LAYERS = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers"}  # where their blocks stand


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer by its full name."""

    name: str
    inputs: int
    outputs: int


def matches(name: str, target: str) -> bool:
    """Whether a target of the run file means this layer: the whole name, or its end after a dot."""
    return name == target or name.endswith(f".{target}")


def chosen_layers(layers: Sequence[LinearLayer], targets: Iterable[str] | str) -> list[LinearLayer]:
    """The layers that the targets mean.

    Raises:
        ModelError: targets that mean no layer, each with near names. Only linear layers can be meant, and never the
            output head, which computes the loss.
    """
    if not layers:
        rule = "has nothing to stand beside: the model has no linear layer that is called, with a weight of its own"
        raise ModelError(problems=[Problem("adapter", rule, fix="remove adapter to train all weights")])
    if targets == ALL_LINEAR:
        return list(layers)
    wanted = list(targets)
    ends = sorted({layer.name.rpartition(".")[2] for layer in layers})
    problems: list[Problem] = []
    for target in wanted:
        if any(matches(layer.name, target) for layer in layers):
            continue
        near = get_close_matches(target, ends, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(ends)}"
        problems.append(Problem("adapter.targets", f"names no linear layer of the model; {hint}", target, "all-linear"))
    if problems:
        raise ModelError(problems=problems)
    return [layer for layer in layers if any(matches(layer.name, target) for target in wanted)]


def with_adapter(shape: ModelShape, config: dict[str, Any], rank: int, targets: Sequence[str] | str) -> ModelShape:
    """The shape of the model with the adapter in it: only the adapter is trained.

    config: {} of a user's own module, whose shape names its adapter (`probe_own`). Raises ModelError where a target
    means no layer.
    """
    known = _counted(shape, config, rank, targets) if config else shape.adapter
    added = known or probe_adapter(config, rank, targets)
    whole = shape.parameters + added.parameters
    largest = shape.largest_layer_parameters + -(-added.parameters // max(shape.layers, 1))
    changes = {"parameters": whole, "trainable_parameters": added.parameters, "adapter": added}
    return shape.model_copy(update=changes | {"largest_layer_parameters": largest})


def adapter_shape(layers: Sequence[LinearLayer], targets: Iterable[str] | str, rank: int) -> AdapterShape:
    """A pair of matrices, [rank, inputs] and [outputs, rank], for each of the model's `layers` that the targets mean.

    Raises ModelError as `chosen_layers` does.
    """
    chosen = chosen_layers(layers, targets)
    return AdapterShape(
        parameters=sum(rank * (layer.inputs + layer.outputs) for layer in chosen),
        layers=len(chosen),
        rank=rank,
        inputs=sum(layer.inputs for layer in chosen),
        linear_parameters=sum(layer.inputs * layer.outputs for layer in layers),
    )


def _counted(shape: ModelShape, config: dict[str, Any], rank: int, targets: Sequence[str] | str) -> AdapterShape | None:
    """By formula; None for an architecture that has none here, or has more linear layers than its blocks."""
    block = _block(shape)
    if block is None or config.get("add_cross_attention"):
        return None
    layers = [
        LinearLayer(f"{_LAYERS.get(shape.arch, 'model.layers')}.{number}.{name}", inputs, outputs)
        for number in range(shape.layers)
        for name, (inputs, outputs) in block.items()
    ]
    return adapter_shape(layers, targets, rank)


def _block(shape: ModelShape) -> dict[str, tuple[int, int]] | None:
    """Inputs and outputs of the linear layers in one block, which hold all of the model's."""
    hidden, ffn = shape.hidden, shape.ffn
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if shape.arch in _GATED:
        return {
            "self_attn.q_proj": (hidden, query),
            "self_attn.k_proj": (hidden, key_value),
            "self_attn.v_proj": (hidden, key_value),
            "self_attn.o_proj": (query, hidden),
            "mlp.gate_proj": (hidden, ffn),
            "mlp.up_proj": (hidden, ffn),
            "mlp.down_proj": (ffn, hidden),
        }
    fused = {
        "phi3": ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"),
        "gpt2": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        "gpt_neox": ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    }.get(shape.arch)
    if fused is None:
        return None
    sizes = ((hidden, query + 2 * key_value), (query, hidden), (hidden, ffn * (1 + shape.gated)), (ffn, hidden))
    return dict(zip(fused, sizes, strict=True))
