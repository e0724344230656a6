"""From a model source to a filled module on this rank's device."""

from __future__ import annotations

import torch
from torch import nn

from headway.model.seam import ModelSource
from headway.plan.schema import Plan


def build_filled(source: ModelSource, device: torch.device) -> nn.Module:
    """The model on `device`, every module filled by name, ready for training."""
    module = source.build().to(device)
    for name, part in module.named_modules():
        source.fill(name, part)
    source.prepare_for_training(module)
    return module


def rank_device(plan: Plan) -> torch.device:
    """This rank's device; `train.build` has already made it current."""
    if plan.launch.device == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
