"""Which parameters are trained and which are frozen: stored with every checkpoint, compared at every resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from headway.errors import CheckpointError
from headway.model.naming import adapted_base, base_shape, plain_name
from headway.plan.schema import Plan

CENSUS = "census.json"
_SHOWN = 5

Census = dict[str, Any]  # {"base": sha256, "trained": {name: shape}, "frozen": {name: shape}}


def census_of(module: nn.Module, plan: Plan) -> Census:
    """Names and whole shapes, also of parameters that ZeRO-3 has partitioned or that are held in 4 bits.

    `base`: of an adapter.
    """
    base = plan.adapter.base or adapted_base(module) if plan.adapter else ""
    found: Census = {"base": base, "trained": {}, "frozen": {}}
    held = {f"{name}.weight": shape for name, part in module.named_modules() if (shape := base_shape(part))}
    for name, parameter in module.named_parameters():
        shape = list(held.get(name) or getattr(parameter, "ds_shape", parameter.shape))
        found["trained" if parameter.requires_grad else "frozen"][plain_name(name)] = shape
    return found


def encoded(census: Census) -> bytes:
    return (json.dumps(census, separators=(",", ":")) + "\n").encode()


def require_same(stored: Mapping[str, Any], now: Census, name: str) -> None:
    """Raises CheckpointError where a checkpoint is of another base model, or trained other parameters."""
    if stored["base"] != now["base"]:
        raise CheckpointError(
            f"{name} holds an adapter for another base model: its weights had the hash {stored['base'][:16]}, "
            f"those of the model are {now['base'][:16]}",
            fix="resume with the model that the run was started with",
        )
    differences: list[str] = []
    for kind, other in (("trained", "frozen"), ("frozen", "trained")):
        turned = [each for each in stored[kind] if each in now[other]]
        lost = [each for each in stored[kind] if each not in now[kind] and each not in now[other]]
        added = [each for each in now[kind] if each not in stored[kind] and each not in stored[other]]
        reshaped = [each for each, shape in stored[kind].items() if now[kind].get(each, shape) != shape]
        for what, names in (
            (f"{kind} then, {other} now", turned),
            (f"{kind} then, absent now", lost),
            (f"{kind} now, absent then", added),
            (f"{kind}, of another shape", reshaped),
        ):
            if names:
                differences.append(f"{len(names)} {what}: {', '.join(names[:_SHOWN])}")
    if differences:
        raise CheckpointError(
            f"{name} is of another model:\n" + "\n".join(differences),
            fix="resume with the model and the adapter that the run was started with",
        )
