"""What a config must say before parameters can be counted: every field that is missing or no size, in one error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import ModelError, Problem

_FIX = "correct the model's config.json"


def require_sizes(config: Mapping[str, Any], names: Sequence[str | tuple[str, ...]]) -> None:
    """A name, or several of which one is enough, for each number that the counts need: whole and above zero.

    Raises:
        ModelError: all that are missing, and one Problem for each that is no size.
    """
    missing: list[str] = []
    problems: list[Problem] = []
    for each in names:
        choices = (each,) if isinstance(each, str) else each
        name = next((name for name in choices if config.get(name) is not None), None)
        if name is None:
            missing.append(" or ".join(choices))
        elif not is_size(config[name]):
            problems.append(Problem(name, "must be a whole number above zero", config[name], _FIX))
    if not missing and not problems:
        return
    kind = config.get("model_type", "?")
    said = f"the {kind} config has no {', '.join(missing)}" if missing else ""
    fix = f"add {'it' if len(missing) == 1 else 'them'} to the model's config.json" if missing else ""
    raise ModelError(said, problems=problems, fix=fix)


def is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def require_heads(hidden: int, heads: int, kv_heads: int, *, free: bool) -> None:
    """free: a width of the heads is stated, so they need not divide hidden. Raises ModelError with every problem."""
    problems: list[Problem] = []
    if not free and hidden % heads:
        rule = f"must divide the hidden size: {hidden} is not a multiple of {heads}"
        problems.append(Problem("heads", rule, heads, f"{_FIX}, or state head_dim in it"))
    if heads % kv_heads:
        rule = f"must divide the heads: {heads} is not a multiple of {kv_heads}"
        problems.append(Problem("key and value heads", rule, kv_heads, _FIX))
    if problems:
        raise ModelError(problems=problems)
