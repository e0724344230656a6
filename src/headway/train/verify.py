"""The built engine against the plan: a contradiction stops the run before its first step, an idle option is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from headway.errors import CheckFailed, Problem
from headway.parallel.live import settings
from headway.parallel.seam import Engine
from headway.plan.live import FORCE_NAMES, LIVE_SHARED, expected_settings
from headway.plan.schema import Plan

# A module of the user's own may hold weights in any type; an engine of the user's own may show what it likes.
_OF_OWN_CODE = {"weights"}


def verify(engine: Engine, plan: Plan) -> list[str]:
    """Read the live values back; returns warnings. Every rank finds the same.

    Raises:
        CheckFailed: the engine says other than the plan, and no --force names it.
    """
    if ":" in plan.strategy.kind:
        return []
    warnings: list[str] = []
    problems: list[Problem] = []
    found = settings(engine)
    wrong: dict[str, list[str]] = {}
    for key, wanted in expected_settings(plan).items():
        if found.get(key) == wanted:
            continue
        name = FORCE_NAMES[key]
        finding = f"the engine was built with {found.get(key)!r}, the plan says {wanted!r}"
        if name in LIVE_SHARED:
            finding = f"{key}: {finding}"
        if key in _OF_OWN_CODE and ":" in plan.model.kind and name not in plan.forced:
            warnings.append(f"{name}: {finding}")
        else:
            wrong.setdefault(name, []).append(finding)
    for name, findings in wrong.items():
        if name in plan.forced:
            warnings.append(f"{name}: {'; '.join(findings)} (passed by --force)")
        else:
            problems.append(Problem(name, "; ".join(findings), fix="report it with the run's record.json"))
    if problems:
        forced = " ".join(f"--force {problem.key}" for problem in problems)
        raise CheckFailed("the built engine contradicts the plan:", problems=problems, fix=f"or, knowingly: {forced}")
    return [*warnings, *without_effect(engine, plan)]


def without_effect(engine: Engine, plan: Plan) -> Iterator[str]:
    """Options that are on in the plan and of which the built model and engine show nothing."""
    module, numerics, strategy = engine.module, plan.numerics, plan.strategy
    if numerics.activation_checkpointing and not _recomputes(module):
        yield "train.activation_checkpointing has no effect: no layer of the built model recomputes its activations"
    if numerics.compile and not any(getattr(part, "_compiled_call_impl", None) for part in module.modules()):
        yield "train.compile has no effect: no part of the built model is compiled"
    if (used := _attention(module)) and plan.model.attention in ("flash", "flex") and plan.model.attention not in used:
        yield f"model.attention = {plan.model.attention} has no effect: the built model attends by {used!r}"
    offloaded = [("optimizer", strategy.offload_optimizer), ("parameters", strategy.offload_parameters)]
    if plan.launch.device == "cpu" and (parts := [name for name, on in offloaded if on]):
        yield f"strategy.offload ({', '.join(parts)}) has no effect on a CPU: the host's memory is the only one"
    if strategy.compression is not None and plan.batch.data_parallel_size == 1:
        yield "strategy.gradient_compression has no effect: one process sends no gradients"


def _recomputes(module: nn.Module) -> bool:
    """Transformers marks its layers; Headway leaves the way back on a module of the user's own."""
    marked = any(getattr(part, "gradient_checkpointing", False) for part in module.modules())
    return marked or "gradient_checkpointing_disable" in module.__dict__ or _has_own_switch(module)


def _has_own_switch(module: Any) -> bool:
    """A module that brings its own switch is asked by it, and how it keeps the answer is its own affair."""
    return hasattr(module, "gradient_checkpointing_enable") and not hasattr(module, "config")


def _attention(module: Any) -> str:
    """The attention kernel that the built model names; '' where it names none."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", "") or "")
