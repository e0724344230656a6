"""What an adapter adds to a model's shape, counted from the config alone where the architecture is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headway.errors import ModelError, Problem
from headway.facts.architectures import ARCHITECTURES
from headway.facts.schema import AdapterShape, ModelShape
from headway.facts.shape import probe_adapter, read_dimensions

ALL_LINEAR = "all-linear"
# Architectures whose blocks hold these seven linear layers and no other.
_GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")


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
    added = (_counted(config, rank, targets) if config else shape.adapter) or probe_adapter(config, rank, targets)
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


def _counted(config: dict[str, Any], rank: int, targets: Sequence[str] | str) -> AdapterShape | None:
    model = str(config.get("model_type"))
    if model not in _GATED:
        return None
    size = read_dimensions(config, ARCHITECTURES[model])
    block = {
        "self_attn.q_proj": (size.hidden, size.query),
        "self_attn.k_proj": (size.hidden, size.key_value),
        "self_attn.v_proj": (size.hidden, size.key_value),
        "self_attn.o_proj": (size.query, size.hidden),
        "mlp.gate_proj": (size.hidden, size.ffn),
        "mlp.up_proj": (size.hidden, size.ffn),
        "mlp.down_proj": (size.ffn, size.hidden),
    }
    layers = [
        LinearLayer(f"model.layers.{number}.{name}", inputs, outputs)
        for number in range(size.layers)
        for name, (inputs, outputs) in block.items()
    ]
    return adapter_shape(layers, targets, rank)
