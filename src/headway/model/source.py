"""The model source of a plan: the row of its kind, and the adapter around it where the plan has one."""

from __future__ import annotations

from headway.errors import ModelError, Problem
from headway.model.own import NO_SOURCE, OwnSource, is_source
from headway.model.seam import ModelSource
from headway.plan.schema import Plan
from headway.registry import require_extra, resolve


def source_of(plan: Plan) -> ModelSource:
    """Raises ModelError for a model that cannot be built, ConfigError for an unknown kind, MissingExtra for PEFT."""
    if ":" not in plan.model.kind:
        return resolve(*(("adapter", plan.adapter.kind) if plan.adapter else ("model", plan.model.kind)))(plan)
    made = resolve("model", plan.model.kind)
    if plan.adapter is None:
        return made(plan) if is_source(made) else OwnSource(plan, made)
    if is_source(made):
        raise ModelError(problems=[Problem("adapter", NO_SOURCE, plan.model.kind, "remove adapter")])
    require_extra("adapter", plan.adapter.kind)
    from headway.model.own_adapter import OwnLoraSource

    return OwnLoraSource(plan, OwnSource(plan, made))
