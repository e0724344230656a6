"""Two plans, key by key."""

from __future__ import annotations

from typing import Any, cast

from headway.plan.schema import Plan

# Consequences and explanations: what is shown is what was decided.
_LEFT_OUT = ("reasons.", "cluster.", "memory.", "facts.", "shape.", "version", "headway", "forced")


def differences(a: Plan, b: Plan) -> list[tuple[str, Any, Any]]:
    """(key, value in a, value in b) where two plans decide differently."""
    left, right = _flat(a.model_dump(mode="json")), _flat(b.model_dump(mode="json"))
    keys = [key for key in {**left, **right} if not key.startswith(_LEFT_OUT)]
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, object] = {}
    for key, item in cast("dict[str, object]", value).items():
        flat |= _flat(item, f"{prefix}.{key}" if prefix else key)
    return flat
