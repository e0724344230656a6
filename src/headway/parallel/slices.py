"""A whole model's state as slices and back: what every rank does that holds the model and its optimizer whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from headway.errors import CheckpointError
from headway.model.naming import named_state, plain_name
from headway.parallel.collectives import world
from headway.parallel.optimizers import set_step_count, state_tensors
from headway.parallel.seam import Slice, SliceReader


def persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Name -> buffer, for the buffers that belong to a saved model."""
    saved = module.state_dict(keep_vars=True).keys()
    return {plain_name(name): buffer for name, buffer in module.named_buffers() if name in saved}


def whole_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The state's parameters and persistent buffers of a module that every rank holds whole."""
    for name, tensor in [*named_state(module), *persistent_buffers(module).items()]:
        yield name, tensor.detach().cpu()


def replicated_slices(module: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Slice]:
    """Whole tensors, dealt to the ranks in turn, so that together they are written once."""
    rank, size = world()
    for index, (name, parameter) in enumerate(named_state(module)):
        if index % size != rank:
            continue
        yield whole_slice(name, "weight", parameter)
        for kind, tensor in sorted(state_tensors(optimizer, parameter).items()):
            yield whole_slice(name, kind, tensor)
    if rank == 0:
        yield from buffer_slices(module)


def buffer_slices(module: nn.Module) -> Iterator[Slice]:
    for name, buffer in persistent_buffers(module).items():
        yield whole_slice(name, "buffer", buffer)


def whole_slice(name: str, kind: str, tensor: torch.Tensor) -> Slice:
    return Slice(name, kind, tuple(tensor.shape), 0, tensor.detach().reshape(-1))


def check_names(module: nn.Module, reader: SliceReader) -> None:
    """The checkpoint must hold exactly this model's tensors. Raises CheckpointError naming what differs."""
    mine = {name for name, _ in named_state(module)} | persistent_buffers(module).keys()
    missing, extra = sorted(mine - set(reader.names())), sorted(set(reader.names()) - mine)
    if missing or extra:
        raise CheckpointError(
            f"the checkpoint is of another model: missing {missing[:5]}, not in the model {extra[:5]}"
            f" ({len(missing)} and {len(extra)} names)",
            fix="resume with the model that the run was started with",
        )


@torch.no_grad()
def restore_weights(module: nn.Module, reader: SliceReader) -> None:
    check_names(module, reader)
    for name, parameter in named_state(module):
        parameter.copy_(reader.read(name, "weight", 0, parameter.numel()).view(parameter.shape))
    for name, buffer in persistent_buffers(module).items():
        buffer.copy_(reader.read(name, "buffer", 0, buffer.numel()).view(buffer.shape))


@torch.no_grad()
def restore_replicated_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer, reader: SliceReader) -> None:
    for name, parameter in named_state(module):
        for kind, tensor in state_tensors(optimizer, parameter).items():
            tensor.copy_(reader.read(name, kind, 0, tensor.numel()).view(tensor.shape))
    set_step_count(optimizer, reader.scalars["optimizer_step"])
