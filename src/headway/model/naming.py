"""Names of parameters as checkpoints, exports and certificates know them, whatever an adapter put around the layers.

PEFT wraps a layer `X`: its weight becomes `X.base_layer.weight`, and the pair beside it `X.lora_A.default.weight` and
`X.lora_B.default.weight`. Outside of the live module these are `X.weight`, `X.lora_A.weight` and `X.lora_B.weight`: the
names of the model without an adapter, and those of PEFT's own files after their prefix `base_model.model.`.

A model that was saved from within a wrapper carries the wrapper's name in front of its own; those are taken off.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from headway.errors import ModelError

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")  # of DDP and DeepSpeed, torch.compile, FSDP
PAIR = ("lora_A", "lora_B")
_ADAPTER = "default"  # PEFT's name of the one adapter
_MARK = "headway_adapted"
_SHAPE = "headway_shape"


def mark_adapted(module: nn.Module, base: str = "") -> None:
    """Note that the module trains an adapter: its frozen weights are made anew at a resume, and in no checkpoint.

    base: their hash, where no folder's files have one.
    """
    module.__dict__[_MARK] = base


def is_adapted(module: nn.Module) -> bool:
    return _MARK in module.__dict__


def adapted_base(module: nn.Module) -> str:
    """What `mark_adapted` was told of the base; '' of any other module."""
    return module.__dict__.get(_MARK, "")


def mark_held(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """Note that the layer holds its weight packed, and what shape it has in the base."""
    layer.__dict__[_SHAPE] = shape


def base_shape(layer: nn.Module) -> tuple[int, ...] | None:
    """Of a layer that holds its weight in 4 bits, the shape in the base; None of any other."""
    return layer.__dict__.get(_SHAPE)


def scales_of(layer: Any) -> list[torch.Tensor]:
    """What a layer that holds its weight in 4 bits keeps beside it; nothing of any other."""
    state = layer.quant_state if base_shape(layer) is not None else None
    if state is None:
        return []
    return [state.absmax, *([state.state2.absmax] if state.nested else [])]


def is_partitioned(module: nn.Module) -> bool:
    """Whether ZeRO-3 has spread its parameters: a forward pass needs all ranks."""
    return any(hasattr(parameter, "ds_tensor") for parameter in module.parameters())


def plain_name(name: str) -> str:
    """The name, of a parameter or of a module, without what PEFT put into it."""
    parts = name.split(".")
    kept = [
        part
        for index, part in enumerate(parts)
        if part != "base_layer" and not (part == _ADAPTER and index and parts[index - 1] in PAIR)
    ]
    return ".".join(kept)


def unwrapped_names(names: Iterable[str], known: Container[str]) -> dict[str, str]:
    """Stored name -> the name without the wrappers that stood around the model when it was saved.

    Only leading parts are taken off, and only where the model itself (`known`) has no such name: a true submodule may
    be called `module`.

    Raises:
        ModelError: two stored names become one.
    """
    found: dict[str, str] = {}
    sources: dict[str, str] = {}
    for name in sorted(names):
        parts = name.split(".")
        while parts[0] in WRAPPERS and len(parts) > 1 and ".".join(parts) not in known:
            parts = parts[1:]
        plain = ".".join(parts)
        if plain in sources:
            rule = f"the stored tensors {sources[plain]} and {name} are both {plain}, without a wrapper's prefix"
            raise ModelError(rule, fix="save the model itself, not what wraps it")
        found[name], sources[plain] = plain, name
    return found


def named_state(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that belong to the run's state: all, tied ones once; of an adapted module the adapter's."""
    if not is_adapted(module):
        yield from module.named_parameters()
        return
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield plain_name(name), parameter
