"""Two plans, key by key."""

from __future__ import annotations

from typing import Any

from headway.plan.explain import flatten
from headway.plan.schema import Plan

# Consequences and explanations: what is shown is what was decided.
_LEFT_OUT = ("reasons.", "cluster.", "memory.", "facts.", "shape.", "version", "headway", "forced")


def differences(a: Plan, b: Plan) -> list[tuple[str, Any, Any]]:
    """(key, value in a, value in b) where two plans decide differently."""
    left, right = (dict(flatten(plan.model_dump(mode="json"))) for plan in (a, b))
    keys = [key for key in {**left, **right} if not key.startswith(_LEFT_OUT)]
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]
