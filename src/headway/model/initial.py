"""Fresh weights: the architecture's own scheme, drawn for each module from a seed of its own.

A module's values depend on the plan's seed and the module's name only: not on the rank, the strategy, the device, the
dtype or the order of the calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import guard_torch_init_functions

from headway.model.skeleton import seeded, tied_names


def module_seed(seed: int, name: str) -> int:
    """63 bits of sha256 over the plan's seed and the module's name."""
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Initialiser:
    """Runs transformers' `_init_weights` on the skeleton's modules, one at a time, with real tensors in that one.

    Some architectures initialise a layer from its parent (gpt2 scales the weights that feed the residual stream there):
    such parents are found once, by what they write on the meta device, and run after the layer itself.
    """

    def __init__(self, skeleton: PreTrainedModel, seed: int):
        self._seed = seed
        self._modules = dict(skeleton.named_modules())
        self._owners = {name: self._owner(name) for name in self._modules}
        self._tied = tied_names(skeleton)
        self._after: dict[str, list[str]] = {}  # module -> parents that write into it, nearest first
        for name in sorted(self._modules, key=lambda name: -name.count(".") - bool(name)):
            for child in self._written_children(name):
                self._after.setdefault(child, []).append(name)

    def values(self, name: str) -> dict[str, torch.Tensor]:
        """The direct parameters and buffers of module `name` by local name, on the host; tied parameters left out."""
        module = self._modules[name]
        drawn: dict[str, torch.Tensor] = {}
        for local, parameter in module.named_parameters(recurse=False):
            if f"{name}.{local}".lstrip(".") not in self._tied:
                dtype = torch.float32 if parameter.is_floating_point() else parameter.dtype
                drawn[local] = torch.empty(parameter.shape, dtype=dtype)
        buffers = {local: buffer.clone() for local, buffer in module.named_buffers(recurse=False)}
        with _standing_in(module, drawn, buffers), seeded(module_seed(self._seed, name)):
            for place in [name, *self._after.get(name, [])]:
                self._initialise(place)
        return drawn | buffers

    @torch.no_grad()
    def _initialise(self, name: str) -> None:
        with guard_torch_init_functions():
            self._owners[name]._init_weights(self._modules[name])

    def _owner(self, name: str) -> PreTrainedModel:
        """The nearest enclosing transformers model: transformers lets each submodel initialise its own modules."""
        while not isinstance(self._modules[name], PreTrainedModel):
            name = name.rpartition(".")[0]
        return self._modules[name]  # pyright: ignore[reportReturnType]

    def _written_children(self, name: str) -> list[str]:
        below = [
            (f"{name}.{child}".lstrip("."), tensor)
            for child, module in self._modules[name].named_modules()
            if child
            for tensor in module.parameters(recurse=False)
        ]
        before = [tensor._version for _, tensor in below]
        if below:
            with seeded(0):
                self._initialise(name)
        return sorted({child for (child, tensor), old in zip(below, before, strict=True) if tensor._version != old})


@contextmanager
def _standing_in(
    module: nn.Module, parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]
) -> Iterator[None]:
    """Tensors in place of the module's own while the block runs."""
    kept = dict(module._parameters), dict(module._buffers)
    module._parameters.update({local: nn.Parameter(t, requires_grad=False) for local, t in parameters.items()})
    module._buffers.update(buffers)
    try:
        yield
    finally:
        module._parameters.update(kept[0])
        module._buffers.update(kept[1])
