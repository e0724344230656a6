"""Pretrained folders with an adapter beside them, for the tests of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.models import config_of, plan_for
from headway.facts.adapters import with_adapter
from headway.facts.shape import shape_of
from headway.model.adapter import LoraSource
from headway.model.identity import weights_identity
from headway.plan.schema import AdapterPlan, Plan

RANK, ALPHA = 4, 12.0


def pretrained(folder: Path, arch: str = "llama", **changes: Any) -> dict[str, Any]:
    """A folder of random weights; returns its config."""
    torch.manual_seed(3)
    config = config_of(arch, **changes)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)
    return config


def lora_plan(folder: Path, arch: str = "llama", targets: Sequence[str] | str = "all-linear", **changes: Any) -> Plan:
    """A plan for an adapter beside the folder that `pretrained` wrote."""
    plan = plan_for(arch, path=str(folder), **changes)
    shape = with_adapter(shape_of(plan.model.config), plan.model.config, RANK, targets)
    adapter = AdapterPlan(
        kind="lora",
        rank=RANK,
        alpha=ALPHA,
        dropout=0.0,
        targets=targets if isinstance(targets, str) else tuple(targets),
        base=weights_identity(folder, folder.parent),
    )
    return plan.model_copy(update={"adapter": adapter, "shape": shape})


def qlora_plan(folder: Path, arch: str = "llama", *, kind: str = "nf4", double: bool = True, **changes: Any) -> Plan:
    """The same beside a base in 4 bits. A run file would be refused on a CPU; bitsandbytes computes it there."""
    plan = lora_plan(folder, arch, **changes)
    held = {"kind": "qlora", "quantization": kind, "double_quantization": double}
    adapter = plan.adapter and plan.adapter.model_copy(update=held)
    return plan.model_copy(update={"adapter": adapter})


def adapted(source: LoraSource, *, trained: bool = True) -> Any:
    """The filled model on the host, in evaluation mode; `trained`: B is not zero any more."""
    model: Any = source.build()
    for name, part in model.named_modules():
        source.fill(name, part)
    source.prepare_for_training(model)
    if trained:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.eval()
