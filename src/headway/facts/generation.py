"""What a folder's generation_config.json says and cannot mean: settings of sampling or of beams with neither on.

transformers ignores such settings when it generates, and in several releases refuses to save a config that has them:
after hours of training, at the export. So they are told before the start, and left out of the export.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from headway.errors import ModelError

FILE = "generation_config.json"
# Setting -> its values that say nothing, as transformers' own validation has them.
_OF_SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (None, 1.0),
    "top_k": (None, 50),
    "top_p": (None, 1.0),
    "min_p": (None,),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
}
_OF_BEAMS: dict[str, tuple[Any, ...]] = {"early_stopping": (None, False), "length_penalty": (None, 1.0)}


def read_generation(folder: Path) -> dict[str, Any] | None:
    """The folder's generation config as it stands; None where there is none. Raises ModelError where it is no JSON."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", fix="correct it, or take it away") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object", fix="correct it, or take it away")
    return cast("dict[str, Any]", content)


def idle_settings(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that have no effect beside the others."""
    idle: dict[str, Any] = {}
    if generation.get("do_sample") is not True:
        idle |= _said(generation, _OF_SAMPLING)
    if generation.get("num_beams") in (None, 1):
        idle |= _said(generation, _OF_BEAMS)
    return idle


def _said(generation: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: generation[name] for name in neutral if generation.get(name) not in neutral[name]}


def generation_note(folder: Path) -> str:
    """What the export leaves out of the generation config, in words; "" where it is sound, absent or unreadable."""
    try:
        idle = idle_settings(read_generation(folder) or {})
    except ModelError:
        return ""
    if not idle:
        return ""
    named = ", ".join(f"{name} {value}" for name, value in idle.items())
    return (
        f"the model's {FILE} contradicts itself: {named} without do_sample: true or num_beams above 1; "
        "the export leaves that out, and generates as before"
    )
