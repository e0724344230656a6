"""The model source of a plan: the row of its kind, and the adapter around it where the plan has one."""

from __future__ import annotations

from headway.model.own import OwnSource, is_source
from headway.model.seam import ModelSource
from headway.plan.schema import Plan
from headway.registry import resolve


def source_of(plan: Plan) -> ModelSource:
    """Raises ModelError for a model that cannot be built, ConfigError for an unknown kind, MissingExtra for PEFT."""
    if plan.adapter is not None:
        return resolve("adapter", plan.adapter.kind)(plan)
    made = resolve("model", plan.model.kind)
    if ":" in plan.model.kind and not is_source(made):
        return OwnSource(plan, made)
    return made(plan)
