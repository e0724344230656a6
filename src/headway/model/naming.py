"""Names of parameters as checkpoints, exports and certificates know them, whatever an adapter put around the layers.

PEFT wraps a layer `X`: its weight becomes `X.base_layer.weight`, and the pair beside it `X.lora_A.default.weight` and
`X.lora_B.default.weight`. Outside of the live module these are `X.weight`, `X.lora_A.weight` and `X.lora_B.weight`: the
names of the model without an adapter, and those of PEFT's own files after their prefix `base_model.model.`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

PAIR = ("lora_A", "lora_B")
_ADAPTER = "default"  # PEFT's name of the one adapter
_MARK = "headway_adapted"


def mark_adapted(module: nn.Module) -> None:
    """Note that the module trains an adapter: its frozen weights are those of a folder, in no checkpoint."""
    module.__dict__[_MARK] = True


def is_adapted(module: nn.Module) -> bool:
    return bool(module.__dict__.get(_MARK))


def plain_name(name: str) -> str:
    """The name, of a parameter or of a module, without what PEFT put into it."""
    parts = name.split(".")
    kept = [
        part
        for index, part in enumerate(parts)
        if part != "base_layer" and not (part == _ADAPTER and index and parts[index - 1] in PAIR)
    ]
    return ".".join(kept)


def named_state(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that belong to the run's state: all, tied ones once; of an adapted module the adapter's."""
    if not is_adapted(module):
        yield from module.named_parameters()
        return
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield plain_name(name), parameter
