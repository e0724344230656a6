"""From a model source to a filled module on this rank's device."""

from __future__ import annotations

import torch
from torch import nn

from headway.model.seam import ModelSource
from headway.plan.schema import Plan

Made = dict[nn.Parameter, nn.Parameter]  # on the meta device -> with memory


def build_filled(source: ModelSource, device: torch.device) -> nn.Module:
    """The model on `device`, every module filled by name, ready for training."""
    module = source.build().to(device)
    for name, part in module.named_modules():
        source.fill(name, part)
    source.prepare_for_training(module)
    return module


def materialise(part: nn.Module, device: torch.device, dtype: torch.dtype, made: Made) -> None:
    """Memory on `device`, not initialised, for the parameters that stand directly in `part`, and its buffers there.

    made: what was made of the model's so far, so that tied parameters stay one.
    """
    for local, parameter in part._parameters.items():
        if parameter is None or parameter.device.type != "meta":
            continue
        if parameter not in made:
            whole = torch.empty(parameter.shape, dtype=dtype, device=device)
            made[parameter] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
        part._parameters[local] = made[parameter]
    for local, buffer in part._buffers.items():
        part._buffers[local] = None if buffer is None else buffer.to(device)


def rank_device(plan: Plan) -> torch.device:
    """This rank's device; `train.build` has already made it current."""
    if plan.launch.device == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
