"""LoRA through PEFT in a module of the user's own.

The factory makes the base, the same at a start and at a resume; the pairs go beside its linear layers, and only they
are trained and kept. A layer that torch or the module reads without calling it would leave its pair without effect:
those that are known so are never adapted, and of others the first step tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from headway.model.adapter import LoraSource
from headway.model.naming import mark_adapted
from headway.model.own import OwnSource, callable_layers
from headway.plan.schema import Plan

_UNCALLED = "headway_uncalled"


class OwnLoraSource(LoraSource):
    """LoRA's source around a factory's module.

    Raises:
        ModelError: when it is made, a target that means none of `callable_layers`, and what the factory's source says.
    """

    builds_whole = True
    _task_type = None  # PEFT's wrappers for tasks ask the base for transformers' methods

    def __init__(self, plan: Plan, base: OwnSource):
        self.base = base  # pyright: ignore[reportIncompatibleVariableOverride]
        self._plain = base.skeleton()
        self._settle(plan, callable_layers(self._plain))
        self._transposed = False
        self._identity = ""

    def build(self) -> nn.Module:
        """See `LoraSource.build`; the base's hash goes along, so that a resume knows it again."""
        module = super().build()
        mark_adapted(module, self._identity)
        if not self._plan.numerics.compile:  # which would compile the hooks along
            for name in self._names:
                _await_call(module.get_submodule(name))
        return module

    def _base_model(self) -> nn.Module:
        module = self.base.build()
        self._identity = weights_digest(module)
        return module

    def merged(self, adapter: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """See `LoraSource.merged`; buffers that a training changes are the trained ones."""
        for name, value in super().merged(self.pairs(adapter)):
            yield name, adapter.get(name, value)

    def save_merged(
        self, folder: Path, merged: Iterable[tuple[str, torch.Tensor]], config_from: nn.Module
    ) -> list[str]:
        return self.base.save(folder, merged, self._plain)


def _await_call(layer: nn.Module) -> None:
    """Note of a layer that it was not called yet, until it is."""

    def called(*_: object) -> None:
        layer.__dict__.pop(_UNCALLED)
        hook.remove()

    layer.__dict__[_UNCALLED] = True
    hook = layer.register_forward_hook(called)


def uncalled_layers(module: nn.Module) -> list[str]:
    """The layers of an own module's adapter that no forward pass has called yet, by name."""
    return [name for name, part in module.named_modules() if _UNCALLED in part.__dict__]


def weights_digest(module: nn.Module) -> str:
    """sha256 over the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
